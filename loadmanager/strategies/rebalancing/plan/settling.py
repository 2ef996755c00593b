"""Settles small pools as a whole: the cheapest placement of all movable bundles, in place of the stages' result.

The stages choose one move after another; with few bundles that shows in the result. The program starts from the pool
before any move, and its result replaces the draft's moves of the pool only if the objective is lower. If brokers stay
above their ceilings, a second search asks for a placement without any. Like a first move, it may exceed the round's
budget, by a pair of the largest bundles, if the round moves nothing else for balance: moves that only help together
would never be made.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from loadmanager.model.cluster import FREE, NOWHERE, Floats, Ints
from loadmanager.strategies.rebalancing.decision import Stage
from loadmanager.strategies.rebalancing.plan.draft import BUDGETED, PATIENCE, Draft
from loadmanager.strategies.rebalancing.plan.objective import EPSILON
from loadmanager.strategies.rebalancing.plan.program import GAP, Excerpt, excerpt_of, solve

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
        excerpt = excerpt_of_pool(draft, pool)
        if excerpt is None or cells + excerpt.part.size > ALL_CELLS:
            continue
        cells += excerpt.part.size
        draft = _better(draft, excerpt, solve(draft, excerpt, NODES))
        if pool in draft.uneven:
            if _moved(draft) <= EPSILON:
                pair = PAIR * float(draft.size[excerpt.rows].max())
                excerpt = msgspec.structs.replace(excerpt, budget=excerpt.budget + pair)
            draft = _better(draft, excerpt, solve(draft, excerpt, EVEN_NODES, even=True))
    return draft


def _better(draft: Draft, excerpt: Excerpt, places: Ints | None) -> Draft:
    """The draft with these places if that is better, else the draft."""
    if places is None:
        return draft
    other = _redraft(draft, dict(zip(excerpt.rows.tolist(), excerpt.brokers[places].tolist(), strict=True)))
    if other is None or other.total >= draft.total * (1 - GAP) - EPSILON or not _patient(draft, other, excerpt):
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


def excerpt_of_pool(draft: Draft, pool: int) -> Excerpt | None:
    """The pool before any move, with all its movable bundles; None if they are too many, or none."""
    brokers = np.flatnonzero(draft.scale.pool == pool)
    now = _places(draft)
    rows = _movable(draft, brokers, now)
    k, b = len(rows), len(brokers)
    if k == 0 or k * b * len(draft.scale.resources) > CELLS:
        return None
    position = np.full(len(draft.peak) + 1, NOWHERE)
    position[brokers] = np.arange(b)
    home, here = position[draft.model.bundles.owner[rows]], position[now[rows]]
    must = _must_go(draft, rows)
    moved = np.isin([step.row for step in draft.steps], rows)
    spent = sum(
        float(draft.size[s.row])
        for s, mine_too in zip(draft.steps, moved, strict=True)
        if mine_too and s.stage in BUDGETED
    )
    return excerpt_of(
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


def _places(draft: Draft) -> Ints:
    now = draft.model.bundles.owner.copy()
    for step in draft.steps:
        now[step.row] = step.destination
    return now


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


def _must_go(draft: Draft, rows: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return (draft.eligibility.misplaced | draft.eligibility.drained)[rows]


def _allowed(draft: Draft, row: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    source = int(draft.model.bundles.owner[row])
    allowed = draft.rules_for(row, source) == 0
    if not allowed.any() and _must_go(draft, np.array([row]))[0]:
        allowed = draft.rules_for(row, source, returning=True) == 0
    return allowed


def _redraft(draft: Draft, chosen: Mapping[int, int], *, apart: bool = True) -> Draft | None:
    """The draft with these places, by row, in place of its own.

    Moves that gain by themselves are made one by one, the others together. None if these gain nothing, although the
    places of bundles that must go may be better.
    """
    again = draft.anew()
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


def _patient(draft: Draft, other: Draft, excerpt: Excerpt) -> bool:
    """Whether the extra load moved is justified: while bundles only rest, it must not be many times the excess."""
    less = _moved(other) - _moved(draft)
    held = np.isin(draft.model.bundles.owner, excerpt.brokers) & draft.eligibility.settled
    if less <= EPSILON or draft.eligibility.rested[held].all():
        return True
    relief = _over(draft.scale.limit, draft.scale.usage.max(axis=0)) - _over(draft.scale.limit, other.peak)
    return _moved(other) <= PATIENCE * relief


def _moved(draft: Draft) -> float:
    return sum(float(draft.size[step.row]) for step in draft.steps if step.stage in BUDGETED)


def _over(limit: Floats, peak: Floats) -> float:
    return float(np.maximum(0.0, peak - limit).sum())
