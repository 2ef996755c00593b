"""The exact search over the few fullest brokers, and the emptiest ones of their pool: a mixed integer program (HiGHS).

Only where the cheaper stages leave a broker out of tolerance. It minimises the plan's own objective, but for the square
of the excess, over every placement of the chosen bundles at once. It is limited by nodes, not by seconds, so that the
same model gets the same answer everywhere. Bundles in an anti-affinity group stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import msgspec
import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from loadmanager.balancing.constraints import FREE
from loadmanager.balancing.decision import Stage
from loadmanager.balancing.model import Floats, Ints
from loadmanager.balancing.plan.draft import FULL, Draft
from loadmanager.balancing.plan.holdings import Holdings
from loadmanager.balancing.plan.objective import EPSILON, OUT_OF_TOLERANCE, OVER

HOTTEST, BROKERS = 8, 20
BUNDLES, CELLS = 200, 1000
"""At most so many bundles, and bundles times brokers."""
NODES = 200


class Excerpt(msgspec.Struct, frozen=True, eq=False):
    """The part of a draft that is searched: b brokers, k bundles."""

    brokers: Ints
    rows: Ints
    home: Ints
    """(k,), position of the bundle's broker in `brokers`."""
    part: Floats
    """(r, k, b): the usage that each bundle makes of each broker."""
    allowed: np.ndarray[tuple[int, int], np.dtype[np.bool_]]
    """(k, b)"""
    cost: Floats
    """(k, b): what moving there costs, 0 at home."""


def search(draft: Draft, holdings: Holdings) -> bool:
    """Make the moves of a better placement, as one group; whether there is one."""
    hot = draft.hot()
    if not hot or draft.moves_left == 0:
        return False
    excerpt = excerpt_of(draft, holdings, hot[0])
    if excerpt is None:
        return False
    places = solve(draft, excerpt)
    return places is not None and _make(draft, excerpt, places)


def excerpt_of(draft: Draft, holdings: Holdings, hottest: int) -> Excerpt | None:
    """The fullest broker with others of its pool that are out of tolerance, the emptiest, and their largest bundles."""
    pool = draft.scale.pool[hottest]
    hot = [broker for broker in draft.hot() if draft.scale.pool[broker] == pool][:HOTTEST]
    cold = [broker for broker in draft.coldest(hottest, BROKERS) if broker not in hot][: BROKERS - len(hot)]
    while hot:
        most = min(BUNDLES, CELLS // (len(hot) + len(cold)))
        rows = _movable(draft, holdings, hot, cold, most)
        if len(rows) >= 4 or len(cold) <= 2:
            break
        cold = cold[: len(cold) // 2]
    else:
        return None
    brokers = np.array([*hot, *cold])
    if not rows.size or not cold:
        return None
    home = np.array([int(np.flatnonzero(brokers == owner)[0]) for owner in draft.model.bundles.owner[rows].tolist()])
    part = draft.loads_of(rows)[:, :, None] * draft.scale.per_load[:, None, brokers]
    allowed = np.array(
        [draft.open_to(row, int(brokers[at]))[brokers] == 0 for row, at in zip(rows.tolist(), home, strict=True)]
    )
    weight, target = draft.model.constraints.weight[rows], draft.scale.target[brokers]
    cost = weight[:, None] * (draft.size[rows][:, None] + draft.costs.move(0.0, 1.0, 1.0) * target)
    allowed[np.arange(len(rows)), home] = True
    cost[np.arange(len(rows)), home] = 0.0
    return Excerpt(brokers, rows, home, part, allowed, cost)


def _movable(draft: Draft, holdings: Holdings, hot: list[int], cold: list[int], most: int) -> Ints:
    """Bundles of the full brokers first, the largest of each side."""
    group = draft.model.constraints.group

    def largest(brokers: list[int], count: int) -> Ints:
        rows = draft.untaken(np.concatenate([holdings.of(broker) for broker in brokers] or [np.zeros(0, np.int64)]))
        rows = rows[group[rows] == FREE]
        return rows[np.argsort(-draft.size[rows], kind="stable")[:count]]

    mine = largest(hot, most * 2 // 3)
    return np.concatenate((mine, largest(cold, most - len(mine))))


def solve(draft: Draft, excerpt: Excerpt) -> Ints | None:
    """(k,): the position of the broker each bundle should be on; None if the search found nothing."""
    k, b = excerpt.allowed.shape
    target, limit = draft.scale.target[excerpt.brokers], draft.scale.limit[excerpt.brokers]
    peak = draft.peak[excerpt.brokers]
    most = np.maximum(peak, FULL) - limit
    # Columns: (k, b) places, then b times how far a broker is over, then b times whether it is.
    cost = np.concatenate((excerpt.cost.ravel(), np.full(b, OVER), OUT_OF_TOLERANCE * target))
    upper = np.concatenate((excerpt.allowed.ravel().astype(np.float64), np.maximum(0.0, most), np.ones(b)))
    integral = np.concatenate((np.ones(k * b), np.zeros(b), np.ones(b)))
    result = milp(
        cost,
        integrality=integral,
        bounds=Bounds(0.0, cast(float, upper)),  # an array, whatever the stub says
        constraints=list(_constraints(draft, excerpt, limit, most)),
        options={"node_limit": NODES, "mip_rel_gap": 0.005},
    )
    if result.x is None:
        return None
    return np.asarray(result.x[: k * b].reshape(k, b).argmax(axis=1), dtype=np.int64)


def _constraints(draft: Draft, excerpt: Excerpt, limit: Floats, most: Floats) -> Iterator[LinearConstraint]:
    k, b = excerpt.allowed.shape
    here = np.zeros((k, b))
    here[np.arange(k), excerpt.home] = 1.0
    each = sparse.kron(sparse.eye_array(k), np.ones((1, b)))
    yield LinearConstraint(sparse.hstack((each, sparse.csr_array((k, 2 * b)))), 1, 1)
    none, one = sparse.csr_array((b, b)), sparse.eye_array(b)
    for resource, part in enumerate(excerpt.part):
        rest = draft.usage[resource, excerpt.brokers] - (part * here).sum(axis=0)
        on = sparse.hstack([sparse.diags_array(part[row]) for row in range(k)])
        yield LinearConstraint(sparse.hstack((on, -one, none)), -np.inf, limit - rest)
    yield LinearConstraint(
        sparse.hstack((sparse.csr_array((b, k * b)), one, -sparse.diags_array(np.maximum(0.0, most)))), -np.inf, 0.0
    )
    room = draft.model.brokers.max_bundles[excerpt.brokers] - draft.bundles[excerpt.brokers]
    if (room < k).any():
        count = sparse.hstack([sparse.eye_array(b)] * k)
        yield LinearConstraint(sparse.hstack((count, none, none)), -np.inf, here.sum(axis=0) + np.maximum(0, room))


def _make(draft: Draft, excerpt: Excerpt, places: Ints) -> bool:
    changed = np.flatnonzero(places != excerpt.home)
    size = float(draft.size[excerpt.rows[changed]].sum())
    if not changed.size or not draft.affords(size, moves=len(changed)):
        return False
    hot = draft.hot()
    if not draft.worth(hot[0], size, sum(draft.over(broker) for broker in hot)):
        return False
    if _gain(draft, excerpt, places) <= EPSILON:
        return False
    group = draft.group()
    # Those that leave the fullest brokers last: the others make room first.
    for at in sorted(changed.tolist(), key=lambda at: float(draft.peak[excerpt.brokers[excerpt.home[at]]])):
        row, source = int(excerpt.rows[at]), int(excerpt.brokers[excerpt.home[at]])
        destination = int(excerpt.brokers[places[at]])
        draft.make(row, source, destination, Stage.EXACT, gain=draft.gain(row, source, destination), group=group)
    return True


def _gain(draft: Draft, excerpt: Excerpt, places: Ints) -> float:
    """By how much the whole objective falls; the program leaves the squares and the idle ones out."""
    k, b = excerpt.allowed.shape
    at = np.arange(k)
    shift = np.zeros((k, b))
    shift[at, places] += 1
    shift[at, excerpt.home] -= 1
    after = (draft.usage[:, excerpt.brokers] + (excerpt.part * shift).sum(axis=1)).max(axis=0)
    gain = -float(excerpt.cost[at, places].sum())
    for position, broker in enumerate(excerpt.brokers.tolist()):
        count = int(draft.bundles[broker])
        gain += draft.costs.usage(broker, float(draft.peak[broker]), count)
        gain -= draft.costs.usage(broker, float(after[position]), count + int(shift[:, position].sum()))
    return gain
