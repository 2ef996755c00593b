"""Single moves: load above the limit of each broker goes to the emptiest brokers, and idle brokers get their part.

Stage two of the plan, and the relief of overloaded brokers in stage one. It finds the cheapest set of bundles that
brings a broker within tolerance (`cover.py`), with destinations that stay within theirs. Only the rest may go to a
broker beyond its limit, if the objective still falls (`press`).
"""

from __future__ import annotations

import numpy as np

from loadmanager.model.cluster import NOWHERE, Floats, Ints
from loadmanager.strategies.rebalancing.decision import Stage
from loadmanager.strategies.rebalancing.plan.cover import cover
from loadmanager.strategies.rebalancing.plan.draft import FULL, Draft
from loadmanager.strategies.rebalancing.plan.holdings import Holdings
from loadmanager.strategies.rebalancing.plan.objective import EPSILON

CONSIDERED = 4096
"""How many bundles of a broker are considered at once, the largest that fit."""
COMPARED = 3
"""For how many of the most promising bundles the gain is computed against every broker."""
DONORS = 8
SPECK = 0.005
"""A bundle below this fraction of the target is not worth a move if the target can't be reached anyway."""


def relieve(draft: Draft, holdings: Holdings, stage: Stage, *, above: float = 0.0, down_to: float = 0.0) -> None:
    """Bring brokers within tolerance, or down to `down_to` if that is more, the fullest first; only those `above`.

    The bundles of all of them are placed together, the largest first: small ones would take the room of large ones.
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
            left[broker] = _placeable(draft, broker, draft.untaken(left[broker]), rooms)
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


def _placeable(draft: Draft, broker: int, rows: Ints, rooms: list[float]) -> Ints:
    """The bundles that some broker has room for, in the resource that the broker lacks most."""
    resource = int(draft.usage[:, broker].argmax())
    load = draft.loads_of(rows)[resource]
    return rows[(load > 0) & (load <= rooms[resource] + EPSILON)]


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


def press(draft: Draft, holdings: Holdings, stage: Stage, *, above: float = 0.0, down_to: float = 0.0) -> bool:
    """Move bundles without a place within tolerance to where they do less harm; whether anything moved."""
    moved = False
    for broker in draft.hot():
        if draft.peak[broker] <= above:
            continue
        rows = draft.untaken(holdings.of(broker))
        while draft.over(broker) and draft.peak[broker] > down_to and rows.size and draft.moves_left:
            row = _press(draft, broker, rows, stage)
            if row == NOWHERE:
                break
            rows = rows[rows != row]
            moved = True
    return moved


def _press(draft: Draft, broker: int, rows: Ints, stage: Stage) -> int:
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
    """Move the cheapest sufficient set; whether any of it could go."""
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
