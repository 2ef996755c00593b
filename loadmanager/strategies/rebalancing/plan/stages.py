"""The stages that move bundles one by one or in pairs, in the order in which they run.

Urgent moves come first: bundles that a hard rule or a drain sends away, giants, overloaded brokers, groups that share a
broker. Rest times yield there, except to anti-affinity; these moves do not use the round's budget of load, but count
against its number of moves. Then load above the limit of each broker goes to the emptiest brokers, and idle brokers get
their part. Swaps and chains follow if no single move helps.
"""

from __future__ import annotations

import msgspec
import numpy as np

from loadmanager.model.cluster import FREE, NOWHERE, Flags, Floats, Ints
from loadmanager.strategies.rebalancing.decision import Stage
from loadmanager.strategies.rebalancing.plan.cover import cover
from loadmanager.strategies.rebalancing.plan.draft import FULL, Draft, Holdings
from loadmanager.strategies.rebalancing.plan.scale import EPSILON, OVER, TOGETHER


def evacuate(draft: Draft, chosen: Flags, stage: Stage) -> None:
    """Move these bundles to allowed brokers, the largest first; back to a former owner only if necessary."""
    rows = draft.untaken(np.flatnonzero(chosen))
    for row in rows[np.argsort(-draft.size[rows], kind="stable")].tolist():
        if draft.moves_left == 0:
            return
        source = int(draft.model.bundles.owner[row])
        destination, _ = draft.destination(row, source)
        if destination == NOWHERE:
            destination, _ = draft.destination(row, source, returning=True)
        if destination != NOWHERE:
            draft.make(row, source, destination, stage, gain=draft.gain(row, source, destination))


def relieve_overload(draft: Draft) -> None:
    """Relieve overloaded brokers: with rested bundles first, then if necessary with the others."""
    threshold = draft.scale.overloaded
    if not _overloaded(draft):
        return
    relieve(draft, draft.free_holdings, Stage.OVERLOAD, above=threshold)
    spill(draft, draft.free_holdings, Stage.OVERLOAD, above=threshold)
    resting = draft.eligibility.urgent & ~draft.eligibility.rested
    if _overloaded(draft) and resting.any():
        others = Holdings(draft.model.bundles.owner, resting, len(draft.peak))
        relieve(draft, others, Stage.OVERLOAD, above=threshold, down_to=threshold)
        spill(draft, others, Stage.OVERLOAD, above=threshold, down_to=threshold)


def _overloaded(draft: Draft) -> bool:
    return any(draft.peak[broker] > draft.scale.overloaded for broker in draft.hot())


def spread_groups(draft: Draft) -> bool:
    """If namespaces of an anti-affinity group unnecessarily share a broker or domain, move one away as a whole."""
    constraints = draft.model.constraints
    if constraints.presence is None:
        return False
    chosen = draft.eligibility.free & (constraints.group != FREE)
    moved = False
    for rows in _by_namespace(draft, draft.untaken(np.flatnonzero(chosen))):
        moved |= _spread(draft, rows)
    return moved


def _by_namespace(draft: Draft, rows: Ints) -> list[Ints]:
    """The bundles of each namespace on each broker."""
    if not rows.size:
        return []
    bundles = draft.model.bundles
    key = bundles.namespace[rows] * len(draft.peak) + bundles.owner[rows]
    order = np.argsort(key, kind="stable")
    return np.split(rows[order], np.flatnonzero(np.diff(key[order])) + 1)


def _spread(draft: Draft, rows: Ints) -> bool:
    """Move all of a namespace's bundles or none: moving some would only put it in two places."""
    first, source = int(rows[0]), int(draft.model.bundles.owner[rows[0]])
    if draft.affinity.held(first, source) != len(rows) or len(rows) > draft.moves_left:
        return False
    fewer = draft.affinity.better(first, source)
    fewer &= draft.affinity.held_by(first) == 0
    if not fewer.any():
        return False
    barrier = np.maximum.reduce([draft.open_to(row, source) for row in rows.tolist()])
    load = draft.loads_of(rows).sum(axis=1)
    after = (draft.usage + draft.scale.per_load * load[:, None]).max(axis=0, initial=0.0) + barrier
    room = draft.model.brokers.max_bundles - draft.bundles >= len(rows)
    after[~fewer | ~room] = np.inf
    after = draft.affinity.fewest(first, after)
    destination = int(after.argmin())
    most = max(draft.scale.overloaded, float(draft.scale.limit[destination]))
    if not np.isfinite(after[destination]) or after[destination] > most:
        return False
    if _gain_together(draft, rows, source, destination, float(after[destination])) <= EPSILON:
        return False
    group = draft.group() if len(rows) > 1 else 0
    for at, row in enumerate(rows.tolist()):
        gain = draft.gain(row, source, destination) + (TOGETHER if at == 0 else 0.0)
        draft.make(row, source, destination, Stage.POLICY, gain=gain, group=group)
    return True


def _gain_together(draft: Draft, rows: Ints, source: int, destination: int, after: float) -> float:
    """By how much the objective falls if all of them move."""
    moved, usage = len(rows), draft.costs.usage
    there, here = int(draft.bundles[destination]), int(draft.bundles[source])
    load = draft.loads_of(rows).sum(axis=1)
    left = float((draft.usage[:, source] - load * draft.scale.per_load[:, source]).max(initial=0.0))
    fall = usage(source, float(draft.peak[source]), here) - usage(source, left, here - moved)
    fall += usage(destination, float(draft.peak[destination]), there) - usage(destination, after, there + moved)
    return TOGETHER + fall - sum(draft.cost_of(row, destination) for row in rows.tolist())


def place_giants(draft: Draft) -> None:
    """Move giants that would do less harm elsewhere, the largest first.

    A giant is a bundle that no broker can hold within its limit, even with nothing else beside it. Each goes where it
    does least harm before anything else is placed: other bundles would take its room, and rest there.
    """
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


CONSIDERED = 4096
"""How many bundles of a broker are considered at once, the largest that fit."""
COMPARED = 3
"""For how many of the most promising bundles the gain is computed against every broker."""
DONORS = 8
SPECK = 0.005
"""A bundle below this fraction of the target is not worth a move if the target can't be reached anyway."""


def relieve(draft: Draft, holdings: Holdings, stage: Stage, *, above: float = 0.0, down_to: float = 0.0) -> None:
    """Bring brokers within tolerance, or down to `down_to` if that is more, the fullest first; only those `above`.

    It finds the cheapest set of bundles that brings a broker within tolerance (`cover.py`), with destinations that stay
    within theirs. The bundles of all brokers are placed together, the largest first: small ones would take the room of
    large ones.
    """
    ceilings = np.maximum(down_to, draft.scale.limit) + EPSILON
    sources = [b for b in draft.hot() if draft.peak[b] > max(above, ceilings[b])]
    left = {broker: draft.untaken(holdings.of(broker)) for broker in sources}
    while left and draft.moves_left:
        pieces: list[tuple[int, int]] = []
        rooms = _rooms(draft)
        for broker in list(left):
            if len(pieces) >= draft.moves_left:
                break
            # the bundles that some broker has room for, in the resource that this one lacks most
            rows, resource = draft.untaken(left[broker]), int(draft.usage[:, broker].argmax())
            load = draft.loads_of(rows)[resource]
            left[broker] = rows[(load > 0) & (load <= rooms[resource] + EPSILON)]
            mine = _pieces(draft, broker, left[broker], float(ceilings[broker]))
            if mine:
                pieces += ((broker, row) for row in mine)
            else:
                del left[broker]
        pieces.sort(key=lambda piece: -draft.size[piece[1]])
        _place_all(draft, pieces, left, stage, ceilings)


def _rooms(draft: Draft) -> list[float]:
    """The most room that a broker has left, in each resource, in natural units."""
    scale = draft.scale
    room = np.minimum(FULL, scale.limit) - draft.usage
    rooms = np.divide(room, scale.per_load, out=np.full(room.shape, np.inf), where=scale.per_load > 0)
    return rooms[:, scale.takes_part].max(axis=1, initial=-np.inf).tolist()


def _pieces(draft: Draft, broker: int, rows: Ints, ceiling: float) -> list[int]:
    """The cheapest sufficient set; if there is none, all bundles but specks."""
    resource = int(draft.usage[:, broker].argmax())
    need = float(draft.usage[resource, broker]) - ceiling
    if need <= 0 or not rows.size:
        return []
    part = draft.loads_of(rows)[resource] * draft.scale.per_load[resource, broker]
    if float(part.sum()) < need:
        return rows[part > SPECK * draft.scale.target[broker]].tolist()
    if len(rows) > CONSIDERED:
        kept = np.sort(np.argsort(-np.minimum(part, need), kind="stable")[:CONSIDERED])
        rows, part = rows[kept], part[kept]
    return rows[cover(part, _costs(draft, rows, broker), need)].tolist()


def _costs(draft: Draft, rows: Ints, broker: int) -> Floats:
    fixed = draft.costs.move(0.0, 1.0, float(draft.scale.target[broker]))
    return draft.model.constraints.weight[rows] * (draft.size[rows] + fixed) + EPSILON


def _place_all(
    draft: Draft, pieces: list[tuple[int, int]], left: dict[int, Ints], stage: Stage, ceilings: Floats
) -> None:
    """Move the bundles where they fit. If one has no place, its broker is tried again without it."""
    given_up: set[int] = set()
    for broker, row in pieces:
        if broker in given_up or draft.peak[broker] <= ceilings[broker] or draft.moves_left == 0:
            continue
        destination, after = draft.destination(row, broker)
        if destination == NOWHERE or after > min(FULL, float(draft.scale.limit[destination])) + EPSILON:
            given_up.add(broker)
            left[broker] = left[broker][~_no_easier(draft, left[broker], row)]
            continue
        gain = draft.gain(row, broker, destination, after)
        if gain > EPSILON and (stage is Stage.OVERLOAD or draft.affords(float(draft.size[row]))):
            draft.make(row, broker, destination, stage, gain=gain)
        else:
            left[broker] = left[broker][left[broker] != row]
    for broker in [each for each in left if not left[each].size]:
        del left[broker]


def _no_easier(draft: Draft, rows: Ints, unplaced: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """The bundle without a place, and those under the same rules that are at least as large in everything."""
    constraints, bundles = draft.model.constraints, draft.model.bundles
    larger = (draft.loads_of(rows) >= draft.load_of(unplaced)[:, None]).all(axis=0)
    same_rules = (constraints.kind[rows] == constraints.kind[unplaced]) & (constraints.group[rows] < 0)
    free = constraints.group[unplaced] < 0 and not bundles.left.get(unplaced)
    return (rows == unplaced) | (larger & same_rules & free)


def spill(draft: Draft, holdings: Holdings, stage: Stage, *, above: float = 0.0, down_to: float = 0.0) -> bool:
    """Move bundles without a place within tolerance to where they do less harm. Returns True if anything moved.

    Only these may go to a broker beyond its limit, if the objective still falls.
    """
    moved = False
    for broker in draft.hot():
        if draft.peak[broker] <= above:
            continue
        rows = draft.untaken(holdings.of(broker))
        while draft.over(broker) and draft.peak[broker] > down_to and rows.size and draft.moves_left:
            row = _spill(draft, broker, rows, stage)
            if row == NOWHERE:
                break
            rows = rows[rows != row]
            moved = True
    return moved


def _spill(draft: Draft, broker: int, rows: Ints, stage: Stage) -> int:
    best_gain, best, best_destination = EPSILON, NOWHERE, NOWHERE
    for row in _promising(draft, broker, rows).tolist():
        if stage is not Stage.OVERLOAD and not draft.affords(float(draft.size[row])):
            continue
        destination, after = draft.destination(row, broker)
        if destination == NOWHERE or after > max(FULL, float(draft.peak[broker])):
            continue
        gain = draft.gain(row, broker, destination)
        if gain > best_gain and draft.worth(broker, float(draft.size[row]), draft.relief(row, broker, destination)):
            best_gain, best, best_destination = gain, row, destination
    if best != NOWHERE:
        draft.make(best, broker, best_destination, stage, gain=best_gain)
    return best


def _promising(draft: Draft, broker: int, rows: Ints) -> Ints:
    """The bundles with the largest gain if the emptiest brokers of the pool took them."""
    if len(rows) <= COMPARED:
        return rows
    load = draft.loads_of(rows)
    without = (draft.usage[:, broker, None] - load * draft.scale.per_load[:, broker, None]).max(axis=0)
    gain = np.full(len(rows), -np.inf)
    for other in draft.coldest(broker, 2):
        after = (draft.usage[:, other, None] + load * draft.scale.per_load[:, other, None]).max(axis=0)
        np.maximum(gain, -draft.costs.usages(other, after), out=gain)
    gain -= draft.costs.usages(broker, without) + draft.model.constraints.weight[rows] * draft.size[rows]
    return rows[np.argsort(-gain, kind="stable")[:COMPARED]]


def fill(draft: Draft, holdings: Holdings) -> bool:
    """Move load to idle brokers, the emptiest first, from the fullest brokers of their pool."""
    moved = False
    for broker in draft.idle():
        while (
            draft.moves_left
            and draft.peak[broker] < draft.scale.idle[broker] - EPSILON
            and _fill(draft, holdings, broker)
        ):
            moved = True
    return moved


def _fill(draft: Draft, holdings: Holdings, broker: int) -> bool:
    """Move the cheapest sufficient set. Returns True if any of it could go."""
    donors = draft.coldest(broker, len(draft.peak))[::-1][:DONORS]
    rows = draft.untaken(
        np.concatenate([holdings.of(donor)[:CONSIDERED] for donor in donors] or [np.zeros(0, np.int64)])
    )
    part = (draft.loads_of(rows) * draft.scale.per_load[:, broker, None]).max(axis=0, initial=0.0)
    rows, part = rows[part > 0], part[part > 0]
    if not rows.size:
        return False
    need = float(draft.scale.idle[broker] - draft.peak[broker])
    moved = False
    for row in rows[cover(part, _costs(draft, rows, broker), need)].tolist():
        source = int(draft.model.bundles.owner[row])
        if not draft.moves_left or not draft.affords(float(draft.size[row])) or draft.open_to(row, source)[broker] > 0:
            continue
        gain = draft.gain(row, source, broker)
        if gain > EPSILON and draft.peaks_with(row)[broker] <= draft.scale.limit[broker]:
            draft.make(row, source, broker, Stage.BALANCE, gain=gain)
            moved = True
    return moved


GIVERS = 16
"""How many brokers out of tolerance are considered at once."""
PARTNERS, THIRD = 6, 3
COMPARED_BUNDLES = 48
"""How many bundles of a broker are compared: the largest, and as many spread over the rest."""
TRIED = 8


class _Exchange(msgspec.Struct, frozen=True):
    gain: float
    given: int
    returned: int
    partner: int
    third: int
    """The destination of the returned bundle: the giver itself in a swap."""


def exchange(draft: Draft, holdings: Holdings) -> bool:
    """Make the best swap or chain for each of the fullest brokers. Returns True if any was made.

    A bundle goes to a broker that gives another one back, or onward. For each broker out of tolerance, the emptiest
    brokers of its pool are tried as partners, and as third ones. All pairs of bundles are compared at once; of the
    best, the first that the hard rules allow is made, both moves or none.
    """
    made = False
    for broker in draft.hot()[:GIVERS]:
        if draft.moves_left >= 2 and draft.over(broker):
            made |= _exchange(draft, holdings, broker)
    return made


def _exchange(draft: Draft, holdings: Holdings, giver: int) -> bool:
    given = _sample(draft, draft.untaken(holdings.of(giver)))
    near = draft.coldest(giver, PARTNERS)
    found: list[_Exchange] = []
    for partner in near:
        returned = _sample(draft, draft.untaken(holdings.of(partner)))
        if not given.size or not returned.size:
            continue
        for third in (giver, *[other for other in near if other != partner][:THIRD]):
            found += _best(draft, given, returned, giver, partner, third)
    return any(_make_exchange(draft, each, giver) for each in sorted(found, key=lambda each: -each.gain)[:TRIED])


def _sample(draft: Draft, rows: Ints) -> Ints:
    if len(rows) <= COMPARED_BUNDLES:
        return rows
    order = rows[np.argsort(-draft.size[rows], kind="stable")]
    rest = order[COMPARED_BUNDLES // 2 :]
    return np.concatenate((order[: COMPARED_BUNDLES // 2], rest[:: -(-len(rest) // (COMPARED_BUNDLES // 2))]))


def _best(draft: Draft, given: Ints, returned: Ints, giver: int, partner: int, third: int) -> list[_Exchange]:
    """The best two pairs that gain something."""
    per_load, usage = draft.scale.per_load, draft.usage
    going, coming = draft.loads_of(given)[:, :, None], draft.loads_of(returned)[:, None, :]
    back = coming if third == giver else 0.0
    at_giver = _peaks(usage[:, giver], (back - going) * per_load[:, giver, None, None])
    at_partner = _peaks(usage[:, partner], (going - coming) * per_load[:, partner, None, None])
    gain = _usage_cost(draft, giver) - draft.costs.usages(giver, at_giver)
    gain = gain + _usage_cost(draft, partner) - draft.costs.usages(partner, at_partner)
    fits = at_partner <= FULL
    if third != giver:
        at_third = _peaks(usage[:, third], coming * per_load[:, third, None, None])
        gain += _usage_cost(draft, third) - draft.costs.usages(third, at_third)
        fits &= at_third <= FULL
    gain -= _move_costs(draft, given, partner)[:, None] + _move_costs(draft, returned, third)[None, :]
    gain = np.where(fits, gain, -np.inf)
    best = np.argsort(-gain, axis=None, kind="stable")[:2]
    pairs = [np.unravel_index(int(at), gain.shape) for at in best]
    return [
        _Exchange(float(gain[i, j]), int(given[i]), int(returned[j]), partner, third)
        for i, j in pairs
        if gain[i, j] > EPSILON
    ]


def _peaks(usage: Floats, change: Floats) -> Floats:
    return (usage[:, None, None] + change).max(axis=0)


def _usage_cost(draft: Draft, broker: int) -> float:
    return draft.costs.usage(broker, float(draft.peak[broker]), max(1, int(draft.bundles[broker])))


def _move_costs(draft: Draft, rows: Ints, destination: int) -> Floats:
    fixed = draft.costs.move(0.0, 1.0, float(draft.scale.target[destination]))
    return draft.model.constraints.weight[rows] * (draft.size[rows] + fixed)


def _make_exchange(draft: Draft, each: _Exchange, giver: int) -> bool:
    """Make the exchange if the hard rules and the budget allow it; the returned bundle goes first, to make room."""
    size = float(draft.size[each.given] + draft.size[each.returned])
    if not draft.worth(giver, size, draft.over(giver)) or not draft.affords(size, moves=2):
        return False
    freed = 1 if each.third == giver else 0
    if draft.forbids(each.given, giver, each.partner, freed=1):
        return False
    if draft.forbids(each.returned, each.partner, each.third, freed=freed):
        return False
    group = draft.group()
    for row, source, destination in ((each.returned, each.partner, each.third), (each.given, giver, each.partner)):
        draft.make(row, source, destination, Stage.SWAP, gain=draft.gain(row, source, destination), group=group)
    return True
