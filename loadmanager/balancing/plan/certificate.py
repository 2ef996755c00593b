"""The least load that had to move, whatever the algorithm: a lower bound for every plan, by resource.

A broker must lose what it uses beyond its limit, and every bundle that a hard rule or a drain sends away; an idle
broker must get what it lacks. Bundles can't be cut: where a broker has few, the least sum of them that is enough
counts. Where a complete plan leaves a broker above its limit (there is no place, or its largest bundle alone is above
it), the bound is for as low as it gets. Rest times are no excuse: the bound includes what only rests.
"""

from __future__ import annotations

import numpy as np

from loadmanager.balancing.decision import Certificate
from loadmanager.balancing.model import Floats, Ints
from loadmanager.balancing.plan.cover import EXACT, cover
from loadmanager.balancing.plan.draft import Draft
from loadmanager.balancing.plan.objective import EPSILON
from loadmanager.balancing.plan.wording import percent
from loadmanager.load.usage import RESOURCES


def certificate_of(draft: Draft) -> Certificate | None:
    """The bound for the draft's model, in the resource where it is largest; None if no resource counts."""
    scale = draft.scale
    if not scale.resources:
        return None
    must = np.flatnonzero(draft.eligibility.misplaced | draft.eligibility.drained)
    bounds = [_bound(draft, at, must) for at in range(len(scale.resources))]
    if len(bounds) == 1:
        peak = np.maximum.reduce(scale.usage, axis=0, initial=0.0)
        lacking = np.where(scale.takes_part, np.maximum(0.0, scale.idle - peak), 0.0)
        bounds[0] = max(bounds[0], float((lacking / scale.per_load[0] * scale.unit[0]).sum()) if lacking.any() else 0.0)
    at = int(np.argmax(bounds))
    rows = np.array([step.row for step in draft.steps], np.int64)
    moved = float(draft.model.bundles.load[rows, scale.resources[at]].sum() * scale.unit[at])
    resource = RESOURCES[scale.resources[at]]
    return Certificate(bounds[at], moved, resource, _text(draft, bounds[at], moved, resource))


def _bound(draft: Draft, at: int, must: Ints) -> float:
    """In mean brokers."""
    scale, bundles = draft.scale, draft.model.bundles
    load, n = bundles.load[:, scale.resources[at]], len(draft.peak)
    leaving = np.bincount(bundles.owner[must], load[must], minlength=n).astype(np.float64)
    ceiling = scale.limit if draft.cut_short else np.maximum(scale.limit, draft.usage[at])
    excess = np.where(scale.takes_part, scale.usage[at] - ceiling, 0.0)
    over = np.flatnonzero(excess > EPSILON)
    for broker, least in zip(over.tolist(), _least(draft, over, at, excess), strict=True):
        leaving[broker] = max(leaving[broker], least)
    return float(leaving.sum() * scale.unit[at])


def _least(draft: Draft, brokers: Ints, at: int, excess: Floats) -> list[float]:
    """What each of these must lose in natural units, as far as it can."""
    holdings = draft.settled_holdings
    load = draft.model.bundles.load[:, draft.scale.resources[at]]
    least: list[float] = []
    for broker in brokers.tolist():
        mine = load[holdings.of(broker)]
        mine = mine[mine > 0]
        need = float(excess[broker] / draft.scale.per_load[at, broker])
        if len(mine) <= EXACT:
            least.append(float(mine[cover(mine, mine, need * (1 - EPSILON))].sum()))
        else:
            least.append(_relaxed(np.sort(mine), need))
    return least


def _relaxed(ascending: Floats, need: float) -> float:
    """Of many bundles: the need, or as many of the smallest as of the largest it takes. All, if they aren't enough."""
    count = int(np.searchsorted(np.cumsum(ascending[::-1]), need * (1 - EPSILON))) + 1
    return max(min(need, float(ascending.sum())), float(ascending[:count].sum()))


def _text(draft: Draft, bound: float, moved: float, resource: str) -> str:
    left = len(draft.hot())
    rest = f"; {left} brokers stay out of tolerance for now" if left else ""
    if bound <= 0:
        return (
            f"nothing had to move, and {'nothing' if moved <= 0 else percent(moved) + ' of a mean broker'} does{rest}"
        )
    return (
        f"whatever the algorithm, {percent(bound)} of a mean broker's {resource} had to move; "
        f"this moves {percent(moved)}, {moved / bound:.3f} times as much{rest}"
    )
