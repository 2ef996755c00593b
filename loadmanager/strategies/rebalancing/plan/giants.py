"""Giants: bundles that no broker can hold within its limit, even with nothing else beside them.

Each goes where it does least harm, before anything else is placed: other bundles would take its room, and rest there.
"""

from __future__ import annotations

import numpy as np

from loadmanager.model.cluster import Floats, Ints
from loadmanager.strategies.rebalancing.decision import Stage
from loadmanager.strategies.rebalancing.plan.draft import FULL, Draft
from loadmanager.strategies.rebalancing.plan.objective import EPSILON, OVER


def place_giants(draft: Draft) -> None:
    """Move giants that would do less harm elsewhere, the largest first."""
    scale, owner = draft.scale, draft.model.bundles.owner
    rows = _giants(draft)
    place = {row: int(owner[row]) for row in rows.tolist()}
    for row in draft.untaken(rows[draft.eligibility.free[rows]]).tolist():
        if not draft.moves_left:
            return
        source, size = place[row], float(draft.size[row])
        beside = scale.kept.copy()
        for other, at in place.items():
            if other != row:
                beside[:, at] += draft.load_of(other) * scale.per_load[:, at]
        excess, barrier = _excess(draft, row, beside), draft.open_to(row, source)
        to = int((excess + barrier).argmin())
        after = float(draft.peaks_with(row)[to])
        gain = draft.gain(row, source, to, after)
        leaves = after - float(scale.limit[to]) - max(0.0, float(excess[to]))
        worth = OVER * float(excess[source] - excess[to]) > size + max(0.0, leaves)
        stage = Stage.OVERLOAD if draft.peak[source] > scale.overloaded else Stage.BALANCE
        fits = np.isfinite(barrier[to]) and after <= max(FULL, float(draft.peak[source]))
        if worth and fits and gain > EPSILON and (stage is Stage.OVERLOAD or draft.affords(size)):
            draft.make(row, source, to, stage, gain=gain)
            place[row] = to


def _giants(draft: Draft) -> Ints:
    """The rows of all giants, the largest first."""
    scale = draft.scale
    if not scale.takes_part.any() or not scale.resources:
        return np.zeros(0, np.int64)
    least = np.where(scale.takes_part, scale.per_load, np.inf).min(axis=1)
    load = draft.model.bundles.load[:, list(scale.resources)]
    settled = draft.eligibility.settled & scale.takes_part[draft.model.bundles.owner]
    large = settled & ((load * least).max(axis=1, initial=0.0) > scale.limit.min())
    rows = np.flatnonzero(large)
    rows = rows[np.argsort(-draft.size[rows], kind="stable")]
    too_large = (
        float((_excess(draft, row, scale.kept) + _barred(draft, row)).min()) > EPSILON for row in rows.tolist()
    )
    return rows[np.fromiter(too_large, np.bool_, len(rows))]


def _barred(draft: Draft, row: int) -> Floats:
    """(n,): 0 where the bundle is or may be, else infinite."""
    owner = int(draft.model.bundles.owner[row])
    barred = draft.rules_for(row, owner)
    barred[owner] = 0.0
    return barred


def _excess(draft: Draft, row: int, beside: Floats) -> Floats:
    """(n,): by how much brokers would be above their limits with the bundle and only this usage (r, n) beside it."""
    with_it = beside + draft.load_of(row)[:, None] * draft.scale.per_load
    excess: Floats = np.where(draft.scale.takes_part, with_it.max(axis=0) - draft.scale.limit, np.inf)
    return excess
