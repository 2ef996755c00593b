"""Exact search over the few fullest brokers and the emptiest ones of their pool: a mixed integer program.

Used only if the cheaper stages leave a broker out of tolerance. It keeps their moves, and bundles in an anti-affinity
group stay where they are.
"""

from __future__ import annotations

import numpy as np

from loadmanager.model.cluster import FREE, Ints
from loadmanager.strategies.rebalancing.decision import Stage
from loadmanager.strategies.rebalancing.plan.draft import Draft
from loadmanager.strategies.rebalancing.plan.holdings import Holdings
from loadmanager.strategies.rebalancing.plan.objective import EPSILON
from loadmanager.strategies.rebalancing.plan.program import Excerpt, excerpt_of, solve

HOTTEST, BROKERS = 8, 20
BUNDLES, CELLS = 200, 1000
"""Limits of bundles, and of bundles times brokers."""
NODES = 200


def search(draft: Draft, holdings: Holdings) -> bool:
    """Make the moves of a better placement, as one group; whether there was one."""
    hot = draft.hot()
    if not hot or draft.moves_left == 0:
        return False
    excerpt = excerpt_around(draft, holdings, hot[0])
    if excerpt is None:
        return False
    places = solve(draft, excerpt, NODES)
    return places is not None and _make(draft, excerpt, places)


def excerpt_around(draft: Draft, holdings: Holdings, hottest: int) -> Excerpt | None:
    """The fullest brokers of a pool, its emptiest ones, and their largest bundles."""
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
    allowed = np.array(
        [draft.open_to(row, int(brokers[at]))[brokers] == 0 for row, at in zip(rows.tolist(), home, strict=True)]
    )
    return excerpt_of(
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


def _movable(draft: Draft, holdings: Holdings, hot: list[int], cold: list[int], most: int) -> Ints:
    """The largest bundles of the full brokers first, then those of the empty ones."""
    group = draft.model.constraints.group

    def largest(brokers: list[int], count: int) -> Ints:
        rows = draft.untaken(np.concatenate([holdings.of(broker) for broker in brokers] or [np.zeros(0, np.int64)]))
        rows = rows[group[rows] == FREE]
        return rows[np.argsort(-draft.size[rows], kind="stable")[:count]]

    mine = largest(hot, most * 2 // 3)
    return np.concatenate((mine, largest(cold, most - len(mine))))


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
    # moves from the fullest brokers come last: the others make room first
    for at in sorted(changed.tolist(), key=lambda at: float(draft.peak[excerpt.brokers[excerpt.home[at]]])):
        row, source = int(excerpt.rows[at]), int(excerpt.brokers[excerpt.home[at]])
        destination = int(excerpt.brokers[places[at]])
        draft.make(row, source, destination, Stage.EXACT, gain=draft.gain(row, source, destination), group=group)
    return True


def _gain(draft: Draft, excerpt: Excerpt, places: Ints) -> float:
    """By how much the whole objective falls; the program omits its squares and idle brokers."""
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
