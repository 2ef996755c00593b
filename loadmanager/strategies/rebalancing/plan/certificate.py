"""A lower bound of the load that any plan had to move that does as well as this one.

The measure is the whole plan, not the part that a limit on the round's moves leaves of it. A placement does as well if
it has no more misplaced bundles, no more usage above the ceilings and (with one resource) no more idleness, each summed
over brokers. The best placement does as well, so the bound also holds for it. A ceiling is the broker's limit, or the
load that cannot be taken from it, if that is more. The bound knows only the rules where bundles may go and which may
never move; a plan that keeps more rules (rest times, groups) moves no less. The proof is in
docs/decisions/0026-a-plan-claims-what-it-proves.md.
"""

from __future__ import annotations

import msgspec
import numpy as np

from loadmanager.model.cluster import ALLOWED, Flags, Floats, Ints
from loadmanager.model.load import RESOURCES
from loadmanager.strategies.rebalancing.decision import Certificate, percent
from loadmanager.strategies.rebalancing.plan.cover import EXACT, cover
from loadmanager.strategies.rebalancing.plan.draft import Draft
from loadmanager.strategies.rebalancing.plan.scale import EPSILON


class Attained(msgspec.Struct, frozen=True, eq=False):
    """What a whole plan leaves undone. Usages are summed over brokers."""

    must: Ints
    """Bundles that must go and have a possible place; `stay` of them stay."""
    stay: int
    above: int
    """Brokers above their ceiling."""
    excess: float
    """Their usage above their ceilings."""
    unavoidable: float
    """The excess that every placement leaves."""
    idleness: float
    pinned: bool
    """Whether load that can't be taken away keeps a broker above its limit: its ceiling is that load."""

    @property
    def out_of_tolerance(self) -> str:
        """What the excess counts."""
        return "out of tolerance" + (", beside load that can't be moved" if self.pinned else "")

    @property
    def proven(self) -> bool:
        """Whether no placement does better: no bundle that must go stays, and the excess is unavoidable."""
        return not self.stay and self.excess <= self.unavoidable + EPSILON


def certificate_of(whole: Draft, rows: Ints, *, cut_short: bool) -> Certificate | None:
    """The bound for the draft's model, in the resource where it is largest; None if no resource counts.

    `whole` is the plan without a limit on the round, `rows` are the bundles that this round moves.
    """
    scale = whole.scale
    if not scale.resources:
        return None
    attained = attained_by(whole)
    bounds = [_bound(whole, at, attained) for at in range(len(scale.resources))]
    if len(bounds) == 1 and attained.proven:
        bounds[0] = max(bounds[0], _lacking(whole, attained.idleness))
    at = int(np.argmax(bounds))
    load: Floats = whole.model.bundles.load[:, scale.resources[at]] * float(scale.unit[at])
    moved, in_all = float(load[rows].sum()), float(load[[step.row for step in whole.steps]].sum())
    found = Certificate(bounds[at], moved, RESOURCES[scale.resources[at]], "", in_all, attained.proven)
    text = certified(found, attained, idle=len(whole.idle()), cut_short=cut_short)
    return msgspec.structs.replace(found, text=text)


def attained_by(whole: Draft) -> Attained:
    """The results of the plan, and limits of what any plan could reach."""
    eligibility, scale = whole.eligibility, whole.scale
    may = (whole.model.constraints.forbidden == ALLOWED) & scale.takes_part  # (kinds, n)
    somewhere: Flags = np.logical_or.reduce(may, axis=1)
    must = (eligibility.misplaced | eligibility.drained) & somewhere[whole.model.constraints.kind]
    above = whole.above()
    return Attained(
        must=np.flatnonzero(must),
        stay=int(np.count_nonzero(must & ~whole.taken)),
        above=len(above),
        excess=float((whole.peak - scale.ceiling)[above].sum()),
        unavoidable=max(_giants(whole, at, may) for at in range(len(scale.resources))) if above.size else 0.0,
        idleness=float(np.maximum(0.0, scale.idle - whole.peak)[scale.takes_part].sum()),
        pinned=bool((scale.ceiling > scale.limit)[scale.takes_part].any()),
    )


def _giants(draft: Draft, at: int, may: Flags) -> float:
    """The excess of bundles that are too large for every broker, each on the broker where its excess is least.

    Two on one broker cause no less than the sum, since a broker's ceiling is not below the load that cannot be taken
    from it.
    """
    scale, model, eligibility = draft.scale, draft.model, draft.eligibility
    kind, owner, load = model.constraints.kind, model.bundles.owner, model.bundles.load[:, scale.resources[at]]
    room, per_load = scale.ceiling - scale.kept[at], scale.per_load[at]
    rooms = np.divide(room, per_load, out=np.full(len(room), np.inf), where=per_load > 0)
    most = np.where(may, rooms, 0.0).max(axis=1, initial=0.0)
    total = 0.0
    for row in np.flatnonzero(eligibility.settled & (load > most[kind])).tolist():
        places = may[kind[row]].copy()
        must = bool(eligibility.misplaced[row] or eligibility.drained[row])
        if not must or not places.any():
            if not scale.takes_part[owner[row]]:
                continue
            places[owner[row]] = True
        total += max(0.0, float((load[row] * per_load - room)[places].min()))
    return total


def _bound(draft: Draft, at: int, attained: Attained) -> float:
    """In mean brokers: the load that must leave its place, and what brokers must lose in addition."""
    scale, must = draft.scale, attained.must
    load = draft.model.bundles.load[:, scale.resources[at]]
    if attained.stay:
        return float(np.sort(load[must])[: len(must) - attained.stay].sum() * scale.unit[at])
    leaving = np.bincount(draft.model.bundles.owner[must], load[must], minlength=len(draft.peak)).astype(np.float64)
    over = np.where(scale.takes_part, scale.usage[at] - scale.ceiling, 0.0)
    brokers = np.flatnonzero(over > EPSILON)
    per_load = scale.per_load[at, brokers]
    if attained.excess > 0:
        more = np.maximum(0.0, over[brokers] - leaving[brokers] * per_load)
        beside = _at_least(more, per_load, attained.excess)
    else:
        least = np.array(_least(draft, brokers, at, over))
        beside = float(np.maximum(0.0, least - leaving[brokers]).sum())
    return (float(leaving.sum()) + beside) * float(scale.unit[at])


def _at_least(usage: Floats, per_load: Floats, waived: float) -> float:
    """The least load that adds up to these usages, less `waived` of their sum; waives at the largest brokers."""
    order = np.argsort(per_load, kind="stable")
    before = np.cumsum(usage[order]) - usage[order]
    kept = usage[order] - np.clip(waived - before, 0.0, usage[order])
    return float((kept / per_load[order]).sum())


def _lacking(draft: Draft, left: float) -> float:
    """The load that idle brokers must get, in mean brokers; for one resource."""
    scale = draft.scale
    lacking = np.maximum(0.0, scale.idle - scale.usage[0])
    brokers = np.flatnonzero(scale.takes_part & (lacking > EPSILON) & (scale.per_load[0] > 0))
    return _at_least(lacking[brokers], scale.per_load[0, brokers], left) * float(scale.unit[0])


def _least(draft: Draft, brokers: Ints, at: int, excess: Floats) -> list[float]:
    """The load that each of these brokers must lose, in natural units: bundles can't be cut."""
    holdings = draft.settled_holdings
    load = draft.model.bundles.load[:, draft.scale.resources[at]]
    least: list[float] = []
    for broker in brokers.tolist():
        mine = load[holdings.of(broker)]
        mine = mine[mine > 0]
        need = float((excess[broker] - EPSILON) / draft.scale.per_load[at, broker])
        if len(mine) <= EXACT:
            least.append(float(mine[cover(mine, mine, need)].sum()))
        else:
            least.append(_relaxed(np.sort(mine), need))
    return least


def _relaxed(ascending: Floats, need: float) -> float:
    """A bound for many bundles: the need, or the sum of as many smallest bundles as it takes largest ones.

    All of them, if they are not enough.
    """
    count = int(np.searchsorted(np.cumsum(ascending[::-1]), need * (1 - EPSILON))) + 1
    return max(min(need, float(ascending.sum())), float(ascending[:count].sum()))


def certified(found: Certificate, attained: Attained, *, idle: int, cut_short: bool) -> str:
    """The proven statement, and how much the plan moves."""
    whole = found.moved if found.whole is None else found.whole
    does = f"this plan moves {percent(found.moved)}"
    if cut_short:
        does = f"this round moves {percent(found.moved)}, the whole plan {percent(whole)}"
    left = f" ({counted(idle, 'broker')} {'stays' if idle == 1 else 'stay'} idle)" if idle else ""
    if found.proven and not attained.above:
        goal = "to have no broker out of tolerance that need not be"
    elif found.proven:
        excess = f"{points(attained.excess)} {attained.out_of_tolerance}"
        goal = f"brokers can't be together less than {excess}; to have no more"
    else:
        goal = f"to do no worse than this plan, which leaves {_undone(attained)}"
    if found.bound <= 0:
        return f"{goal}{left}, nothing is proven to have to move; {does}"
    times = f", {whole / found.bound:.3f} times as much" if found.proven else ""
    had = f"at least {percent(found.bound)} of a mean broker's {found.resource} must move, whatever the algorithm"
    return f"{goal}{left}, {had}; {does}{times}"


def _undone(attained: Attained) -> str:
    they = "it" if attained.stay == 1 else "they"
    parts = [f"{counted(attained.stay, 'bundle')} where {they} may not be"] if attained.stay else []
    if attained.above:
        known = f"of which {points(attained.unavoidable)} are proven to be unavoidable"
        brokers = f"{counted(attained.above, 'broker')} together {points(attained.excess)}"
        parts.append(f"{brokers} {attained.out_of_tolerance}, {known}")
    return " and ".join(parts)


def counted(count: int, noun: str) -> str:
    """`1 broker`, `2 brokers`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def points(usage: float) -> str:
    """`3.1 points`: a difference of usages."""
    return f"{usage * 100:.1f} points"
