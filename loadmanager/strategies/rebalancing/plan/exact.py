"""Exact search: the plan's objective as a mixed integer program (HiGHS), over all placements of some bundles.

The program has all of the objective but the square of the excess. Its limit is in nodes, not seconds, so that the same
model gets the same answer everywhere. SciPy brings the solver; it is imported only when needed, since that is slow.
Without SciPy nothing is searched.

`search` covers the few fullest brokers and the emptiest ones of their pool. It is used only if the cheaper stages leave
a broker out of tolerance. It keeps their moves, and bundles in an anti-affinity group stay where they are.

`settle` covers small pools as a whole: the cheapest placement of all movable bundles, in place of the stages' result.
The stages choose one move after another; with few bundles that shows in the result. The program starts from the pool
before any move, and its result replaces the draft's moves of the pool only if the objective is lower. If brokers stay
above their ceilings, a second search asks for a placement without any. If the round moves nothing else for balance, it
may exceed the round's budget like a first move, by a pair of the largest bundles. Else moves that only help together
would never be made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import msgspec
import numpy as np

from loadmanager.model.cluster import FREE, NOWHERE, Flags, Floats, Ints
from loadmanager.strategies.rebalancing.decision import Stage
from loadmanager.strategies.rebalancing.plan.draft import BUDGETED, FULL, PATIENCE, Draft, Holdings
from loadmanager.strategies.rebalancing.plan.scale import EPSILON, OUT_OF_TOLERANCE, OVER, UNDER, UNEVEN

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint


SOLVER_INSTALLED = find_spec("scipy") is not None
GAP = 0.002
"""A placement whose cost is within this fraction of the proven bound is good enough."""


class Subproblem(msgspec.Struct, frozen=True, eq=False):
    """The part of the model to search: b brokers, k bundles, r resources."""

    brokers: Ints
    rows: Ints
    home: Ints
    """(k,), position of the bundle's broker in `brokers`; NOWHERE if it is not among them."""
    part: Floats
    """(r, k, b): the usage by each bundle on each broker."""
    allowed: Flags
    """(k, b)"""
    cost: Floats
    """(k, b): the cost of moving there, 0 at home."""
    rest: Floats
    """(r, b): the brokers' usage without these bundles."""
    most: Floats
    """(b,): the most usage of each broker."""
    others: Ints
    """(b,): how many other bundles they hold."""
    room: Ints
    """(b,): how many of these bundles they may hold."""
    moves: int
    """The most of these bundles that may move."""
    sizes: Floats
    """(k, b): the part of the round's budget that the move takes."""
    budget: float


def subproblem_of(
    draft: Draft,
    brokers: Ints,
    rows: Ints,
    here: Ints,
    *,
    home: Ints,
    stays: Ints,
    allowed: Flags,
    sizes: Floats,
    most: Floats,
    moves: int,
    budget: float,
) -> Subproblem:
    """The subproblem with these bundles and brokers.

    `here` (k,): where the draft has them, as a position in `brokers`, or NOWHERE. `stays`: positions in `rows` of
    bundles that may stay at home, at no cost.
    """
    part = draft.loads_of(rows)[:, :, None] * draft.scale.per_load[:, None, brokers]
    cost = draft.costs_of(rows, brokers)
    allowed[stays, home[stays]], cost[stays, home[stays]], sizes[stays, home[stays]] = True, 0.0, 0.0
    inside, b = np.flatnonzero(here != NOWHERE), len(brokers)
    now = here[inside]
    mine = np.bincount(now, minlength=b)
    others = draft.bundles[brokers] - mine
    return Subproblem(
        brokers=brokers,
        rows=rows,
        home=home,
        part=part,
        allowed=allowed,
        cost=cost,
        rest=draft.usage[:, brokers] - np.array([np.bincount(now, each[inside, now], b) for each in part]),
        most=np.maximum(most, FULL),
        others=others,
        room=np.maximum(mine, draft.model.brokers.max_bundles[brokers] - others),
        moves=moves,
        sizes=sizes,
        budget=budget,
    )


class _Columns:
    """The columns of each kind of variable in the program."""

    def __init__(self, subproblem: Subproblem) -> None:
        k, b = subproblem.allowed.shape
        ends = np.cumsum([k * b, b, b, b, b, len(subproblem.rest) * b]).tolist()
        self.places = slice(0, ends[0])
        """(k, b): whether the bundle is there."""
        self.over, self.whether, self.lacking, self.empty, self.picks = (
            slice(begin, end) for begin, end in pairwise(ends)
        )
        """(b,): how far over the limit, whether over, how far below idle, whether empty.

        The last one is (r, b): which resource counts for idleness.
        """
        self.uneven = ends[-1]
        """Whether any broker is above its ceiling."""
        self.width = ends[-1] + 1


def solve(draft: Draft, subproblem: Subproblem, nodes: int, *, even: bool = False) -> Ints | None:
    """(k,): the position of each bundle's best broker; None if the search found nothing, or no solver is installed.

    `even`: of the placements that leave no broker above its ceiling.
    """
    if not SOLVER_INSTALLED:
        return None
    from scipy.optimize import Bounds, milp

    k, b = subproblem.allowed.shape
    at, target = _Columns(subproblem), draft.scale.target[subproblem.brokers]
    most = np.maximum(0.0, subproblem.most - draft.scale.limit[subproblem.brokers])
    cost, upper, integral = np.zeros(at.width), np.ones(at.width), np.ones(at.width)
    cost[at.places], upper[at.places] = subproblem.cost.ravel(), subproblem.allowed.ravel()
    cost[at.over], upper[at.over], integral[at.over] = OVER, most, 0
    cost[at.whether] = OUT_OF_TOLERANCE * target
    cost[at.lacking], upper[at.lacking], integral[at.lacking] = UNDER, draft.scale.idle[subproblem.brokers], 0
    cost[at.empty], integral[at.empty], cost[at.uneven] = target, 0, UNEVEN
    upper[at.uneven] = 0.0 if even else 1.0
    result = milp(
        cost,
        integrality=integral,
        bounds=Bounds(0.0, cast(float, upper)),  # an array, whatever the stub says
        constraints=list(_constraints(draft, subproblem, at, most)),
        options={"node_limit": nodes, "mip_rel_gap": GAP},
    )
    if result.x is None:
        return None
    return np.asarray(result.x[at.places].reshape(k, b).argmax(axis=1), dtype=np.int64)


def _constraints(draft: Draft, subproblem: Subproblem, at: _Columns, most: Floats) -> Iterator[LinearConstraint]:
    from scipy.optimize import LinearConstraint

    k, b = subproblem.allowed.shape
    one, each = np.eye(b), np.arange(k)
    limit, ceiling = draft.scale.limit[subproblem.brokers], draft.scale.ceiling[subproblem.brokers]
    idle = draft.scale.idle[subproblem.brokers]
    placed = np.zeros((k, at.width))
    placed[:, at.places].reshape(k, k, b)[each, each] = 1.0
    yield LinearConstraint(placed, 1, 1)
    for resource, (part, rest) in enumerate(zip(subproblem.part, subproblem.rest, strict=True)):
        over, under = np.zeros((b, at.width)), np.zeros((b, at.width))
        over[:, at.places] = under[:, at.places] = (part[None, :, :] * one[:, None, :]).reshape(b, k * b)
        over[:, at.over], under[:, at.lacking] = -one, one
        under[:, at.picks][:, resource * b : (resource + 1) * b] = np.diag(-idle)
        yield LinearConstraint(over, -np.inf, cast(float, limit - rest))
        yield LinearConstraint(under, -rest, np.inf)
    flags, uneven, picks = np.zeros((b, at.width)), np.zeros((b, at.width)), np.zeros((b, at.width))
    flags[:, at.over], flags[:, at.whether] = one, np.diag(-most)
    uneven[:, at.over], uneven[:, at.uneven] = one, -most
    picks[:, at.picks] = np.tile(one, len(subproblem.rest))
    yield LinearConstraint(flags, -np.inf, 0.0)
    yield LinearConstraint(uneven, -np.inf, cast(float, ceiling - limit))
    yield LinearConstraint(picks, 1, 1)
    count = np.zeros((b, at.width))
    count[:, at.places] = np.tile(one, k)
    if (subproblem.room < k).any():
        # a limit of 2**63 means none, but spoils the tolerances of HiGHS
        yield LinearConstraint(count, -np.inf, cast(float, np.minimum(subproblem.room, k)))
    below = (subproblem.others == 0) & (subproblem.rest.max(axis=0) < idle)
    if below.any():
        some = count.copy()
        some[:, at.empty] = one
        yield LinearConstraint(some[below], 1, np.inf)
    if subproblem.moves < k or np.isfinite(subproblem.budget):
        spent = np.zeros((2, at.width))
        spent[0, at.places], spent[1, at.places] = (subproblem.cost > 0).ravel(), subproblem.sizes.ravel()
        yield LinearConstraint(
            spent, -np.inf, cast(float, [min(subproblem.moves, k), min(subproblem.budget, float(k))])
        )


HOTTEST, BROKERS = 8, 20
SEARCHED_BUNDLES, SEARCHED_CELLS = 200, 1000
"""Limits of bundles, and of bundles times brokers."""
SEARCHED_NODES = 200


def search(draft: Draft, holdings: Holdings) -> bool:
    """Make the moves of a better placement, as one group. Returns True if there was one."""
    hot = draft.hot()
    if not hot or draft.moves_left == 0:
        return False
    subproblem = subproblem_around(draft, holdings, hot[0])
    if subproblem is None:
        return False
    places = solve(draft, subproblem, SEARCHED_NODES)
    return places is not None and _make_moves(draft, subproblem, places)


def subproblem_around(draft: Draft, holdings: Holdings, hottest: int) -> Subproblem | None:
    """The fullest brokers of a pool, its emptiest ones, and their largest bundles."""
    pool = draft.scale.pool[hottest]
    hot = [broker for broker in draft.hot() if draft.scale.pool[broker] == pool][:HOTTEST]
    cold = [broker for broker in draft.coldest(hottest, BROKERS) if broker not in hot][: BROKERS - len(hot)]
    while hot:
        most = min(SEARCHED_BUNDLES, SEARCHED_CELLS // (len(hot) + len(cold)))
        rows = _largest_movable(draft, holdings, hot, cold, most)
        if len(rows) >= 4 or len(cold) <= 2:
            break
        cold = cold[: len(cold) // 2]
    else:
        return None
    brokers = np.array([*hot, *cold])
    if not rows.size or not cold:
        return None
    home = np.array([int(np.flatnonzero(brokers == owner)[0]) for owner in draft.model.bundles.owner[rows].tolist()])
    allowed = np.array(
        [draft.open_to(row, int(brokers[at]))[brokers] == 0 for row, at in zip(rows.tolist(), home, strict=True)]
    )
    return subproblem_of(
        draft,
        brokers,
        rows,
        home,
        home=home,
        stays=np.arange(len(rows)),
        allowed=allowed,
        sizes=np.zeros(allowed.shape),
        most=draft.peak[brokers],
        moves=draft.moves_left,
        budget=np.inf,
    )


def _largest_movable(draft: Draft, holdings: Holdings, hot: list[int], cold: list[int], most: int) -> Ints:
    """The largest bundles of the full brokers first, then those of the empty ones."""
    group = draft.model.constraints.group

    def largest(brokers: list[int], count: int) -> Ints:
        rows = draft.untaken(np.concatenate([holdings.of(broker) for broker in brokers] or [np.zeros(0, np.int64)]))
        rows = rows[group[rows] == FREE]
        return rows[np.argsort(-draft.size[rows], kind="stable")[:count]]

    mine = largest(hot, most * 2 // 3)
    return np.concatenate((mine, largest(cold, most - len(mine))))


def _make_moves(draft: Draft, subproblem: Subproblem, places: Ints) -> bool:
    changed = np.flatnonzero(places != subproblem.home)
    size = float(draft.size[subproblem.rows[changed]].sum())
    if not changed.size or not draft.affords(size, moves=len(changed)):
        return False
    hot = draft.hot()
    if not draft.worth(hot[0], size, sum(draft.over(broker) for broker in hot)):
        return False
    if _whole_gain(draft, subproblem, places) <= EPSILON:
        return False
    group = draft.group()
    # moves from the fullest brokers come last: the others make room first
    for at in sorted(changed.tolist(), key=lambda at: float(draft.peak[subproblem.brokers[subproblem.home[at]]])):
        row, source = int(subproblem.rows[at]), int(subproblem.brokers[subproblem.home[at]])
        destination = int(subproblem.brokers[places[at]])
        draft.make(row, source, destination, Stage.EXACT, gain=draft.gain(row, source, destination), group=group)
    return True


def _whole_gain(draft: Draft, subproblem: Subproblem, places: Ints) -> float:
    """The fall of the whole objective, of which the program omits squares and idle brokers."""
    k, b = subproblem.allowed.shape
    at = np.arange(k)
    shift = np.zeros((k, b))
    shift[at, places] += 1
    shift[at, subproblem.home] -= 1
    after = (draft.usage[:, subproblem.brokers] + (subproblem.part * shift).sum(axis=1)).max(axis=0)
    peak, scale = draft.peak.copy(), draft.scale
    peak[subproblem.brokers] = after
    above = scale.takes_part & (peak - scale.ceiling > EPSILON)
    gain = UNEVEN * (len(draft.uneven) - len(np.unique(scale.pool[above]))) - float(subproblem.cost[at, places].sum())
    for position, broker in enumerate(subproblem.brokers.tolist()):
        count = int(draft.bundles[broker])
        gain += draft.costs.usage(broker, float(draft.peak[broker]), count)
        gain -= draft.costs.usage(broker, float(after[position]), count + int(shift[:, position].sum()))
    return gain


CELLS, ALL_CELLS = 800, 2400
"""Limits of bundles times brokers times resources: for one pool, and for all pools searched in a round."""
PAIR = 2
"""The second search may exceed the budget by this many of the largest bundle: as many as a swap moves."""
NODES, EVEN_NODES = 100, 300
"""The search in general, and the second one, for placements with no broker above its ceiling."""


def settle(draft: Draft) -> Draft:
    """The draft, or a better one."""
    cells = 0
    for pool in _worthwhile(draft):
        subproblem = subproblem_of_pool(draft, pool)
        if subproblem is None or cells + subproblem.part.size > ALL_CELLS:
            continue
        cells += subproblem.part.size
        draft = _better(draft, subproblem, solve(draft, subproblem, NODES))
        if pool in draft.uneven:
            if _moved(draft) <= EPSILON:
                pair = PAIR * float(draft.size[subproblem.rows].max())
                subproblem = msgspec.structs.replace(subproblem, budget=subproblem.budget + pair)
            draft = _better(draft, subproblem, solve(draft, subproblem, EVEN_NODES, even=True))
    return draft


def _better(draft: Draft, subproblem: Subproblem, places: Ints | None) -> Draft:
    """The draft with these places if that is better, else the draft."""
    if places is None:
        return draft
    other = _redraft(draft, dict(zip(subproblem.rows.tolist(), subproblem.brokers[places].tolist(), strict=True)))
    if other is None or other.total >= draft.total * (1 - GAP) - EPSILON or not _patient(draft, other, subproblem):
        return draft
    return other


def _worthwhile(draft: Draft) -> list[int]:
    """The small enough pools with moves, or with brokers that are hot or idle."""
    scale, owner = draft.scale, draft.model.bundles.owner
    busy = {int(scale.pool[broker]) for broker in (*draft.hot(), *draft.idle())}
    busy |= {int(scale.pool[step.destination]) for step in draft.steps}
    sizes = np.bincount(scale.pool[scale.takes_part], minlength=1)
    bundles = np.bincount(scale.pool[owner[draft.eligibility.free]], minlength=len(sizes))
    return [
        pool for pool in sorted(busy) if sizes[pool] > 1 and sizes[pool] * bundles[pool] * len(scale.resources) <= CELLS
    ]


def subproblem_of_pool(draft: Draft, pool: int) -> Subproblem | None:
    """The pool before any move, with all its movable bundles; None if they are too many, or none."""
    brokers = np.flatnonzero(draft.scale.pool == pool)
    now = draft.model.bundles.owner.copy()
    for step in draft.steps:
        now[step.row] = step.destination
    rows = _movable(draft, brokers, now)
    k, b = len(rows), len(brokers)
    if k == 0 or k * b * len(draft.scale.resources) > CELLS:
        return None
    position = np.full(len(draft.peak) + 1, NOWHERE)
    position[brokers] = np.arange(b)
    home, here = position[draft.model.bundles.owner[rows]], position[now[rows]]
    must = (draft.eligibility.misplaced | draft.eligibility.drained)[rows]
    moved = np.isin([step.row for step in draft.steps], rows)
    spent = sum(
        float(draft.size[s.row])
        for s, mine_too in zip(draft.steps, moved, strict=True)
        if mine_too and s.stage in BUDGETED
    )
    return subproblem_of(
        draft,
        brokers,
        rows,
        here,
        home=home,
        stays=np.flatnonzero((home != NOWHERE) & ~must),
        allowed=np.array([_allowed(draft, row)[brokers] for row in rows.tolist()]),
        sizes=np.where(must[:, None], 0.0, draft.size[rows][:, None]).repeat(b, axis=1),
        most=np.maximum(draft.scale.usage.max(axis=0), draft.peak)[brokers],
        moves=draft.moves_left + int(moved.sum()),
        budget=spent + max(0.0, draft.load_left),
    )


def _movable(draft: Draft, brokers: Ints, now: Ints) -> Ints:
    """Bundles that may move for balance, those that must come here, and those that the draft moved anyway."""
    owner = draft.model.bundles.owner
    inside = np.zeros(len(draft.peak) + 1, np.bool_)
    inside[brokers] = True
    must = draft.eligibility.misplaced | draft.eligibility.drained
    chosen = (draft.eligibility.free & inside[owner]) | (draft.taken & inside[now]) | (must & inside[now] & draft.taken)
    chosen &= draft.model.constraints.group == FREE
    torn = {step.group for step in draft.steps if step.group and not chosen[step.row]}
    chosen[[step.row for step in draft.steps if step.group in torn]] = False
    return np.flatnonzero(chosen)


def _allowed(draft: Draft, row: int) -> Flags:
    source = int(draft.model.bundles.owner[row])
    allowed = draft.rules_for(row, source) == 0
    if not allowed.any() and (draft.eligibility.misplaced[row] or draft.eligibility.drained[row]):
        allowed = draft.rules_for(row, source, returning=True) == 0
    return allowed


def _redraft(draft: Draft, chosen: Mapping[int, int], *, apart: bool = True) -> Draft | None:
    """The draft with these places, by row, in place of its own.

    Moves that gain by themselves are made one by one, the others together. None if these gain nothing, although the
    places of bundles that must go may be better.
    """
    again = draft.emptied()
    groups: dict[int, int] = {0: 0}
    for step in draft.steps:
        if step.row not in chosen:
            group = groups.setdefault(step.group, step.group and again.group())
            again.make(step.row, step.source, step.destination, step.stage, gain=step.gain, group=group)
    owner = draft.model.bundles.owner
    moving = {row: to for row, to in chosen.items() if to != owner[row]}
    _send_away(again, moving)
    if apart:
        _one_by_one(again, moving, draft)
    before = again.total
    _together(again, moving)
    gains = not moving or again.total < before - EPSILON
    if gains:
        return again
    return _redraft(draft, chosen, apart=False) if apart else None


def _send_away(again: Draft, moving: dict[int, int]) -> None:
    """Move the bundles that must go, the largest first."""
    for row in sorted(moving, key=lambda row: (-float(again.size[row]), row)):
        eligible, source = again.eligibility, int(again.model.bundles.owner[row])
        if eligible.misplaced[row] or eligible.drained[row]:
            stage = Stage.POLICY if eligible.misplaced[row] else Stage.DRAIN
            again.make(row, source, moving[row], stage, gain=again.gain(row, source, moving[row]))
            del moving[row]


def _one_by_one(again: Draft, moving: dict[int, int], draft: Draft) -> None:
    """Make moves that gain by themselves and put no further broker out of tolerance, the largest first."""
    found = True
    while found:
        found = False
        for row in sorted(moving, key=lambda row: (-float(again.size[row]), row)):
            source, to = int(again.model.bundles.owner[row]), moving[row]
            full = again.bundles[to] >= again.model.brokers.max_bundles[to]
            if full or again.peaks_with(row)[to] > again.scale.limit[to] + EPSILON:
                continue
            gain = again.gain(row, source, to)
            if gain > EPSILON:
                again.make(row, source, to, _stage(draft, row), gain=gain)
                del moving[row]
                found = True


def _stage(draft: Draft, row: int) -> Stage:
    """The stage of a move: OVERLOAD if the draft moved the bundle for that."""
    if draft.taken[row] and not draft.eligibility.rested[row]:
        return Stage.OVERLOAD
    return Stage.EXACT


def _together(again: Draft, moving: Mapping[int, int]) -> None:
    """Make the other moves as one group; moves that make room come first."""
    group = again.group() if len(moving) > 1 else 0
    owner = again.model.bundles.owner
    for row in sorted(moving, key=lambda row: (float(again.peak[owner[row]]), row)):
        before, at = again.total, len(again.steps)
        again.make(row, int(owner[row]), moving[row], Stage.EXACT, gain=0.0, group=group)
        again.steps[at] = msgspec.structs.replace(again.steps[at], gain=before - again.total)


def _patient(draft: Draft, other: Draft, subproblem: Subproblem) -> bool:
    """Whether the extra load moved is justified: while bundles only rest, it must not be many times the excess."""
    less = _moved(other) - _moved(draft)
    held = np.isin(draft.model.bundles.owner, subproblem.brokers) & draft.eligibility.settled
    if less <= EPSILON or draft.eligibility.rested[held].all():
        return True
    relief = _over(draft.scale.limit, draft.scale.usage.max(axis=0)) - _over(draft.scale.limit, other.peak)
    return _moved(other) <= PATIENCE * relief


def _moved(draft: Draft) -> float:
    return sum(float(draft.size[step.row]) for step in draft.steps if step.stage in BUDGETED)


def _over(limit: Floats, peak: Floats) -> float:
    return float(np.maximum(0.0, peak - limit).sum())
