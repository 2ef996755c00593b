"""Urgent moves: bundles that a hard rule or a drain sends away, groups that share a broker, overloaded brokers.

Rest times yield here, except to anti-affinity. These moves do not use the round's budget of load, but count against its
number of moves.
"""

from __future__ import annotations

import numpy as np

from loadmanager.model.cluster import FREE, NOWHERE, Flags, Ints
from loadmanager.strategies.rebalancing.decision import Stage
from loadmanager.strategies.rebalancing.plan.draft import Draft
from loadmanager.strategies.rebalancing.plan.holdings import Holdings
from loadmanager.strategies.rebalancing.plan.objective import EPSILON, TOGETHER
from loadmanager.strategies.rebalancing.plan.singles import press, relieve


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
    press(draft, draft.free_holdings, Stage.OVERLOAD, above=threshold)
    resting = draft.eligibility.urgent & ~draft.eligibility.rested
    if _overloaded(draft) and resting.any():
        others = Holdings(draft.model.bundles.owner, resting, len(draft.peak))
        relieve(draft, others, Stage.OVERLOAD, above=threshold, down_to=threshold)
        press(draft, others, Stage.OVERLOAD, above=threshold, down_to=threshold)


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
    if _gain(draft, rows, source, destination, float(after[destination])) <= EPSILON:
        return False
    group = draft.group() if len(rows) > 1 else 0
    for at, row in enumerate(rows.tolist()):
        gain = draft.gain(row, source, destination) + (TOGETHER if at == 0 else 0.0)
        draft.make(row, source, destination, Stage.POLICY, gain=gain, group=group)
    return True


def _gain(draft: Draft, rows: Ints, source: int, destination: int, after: float) -> float:
    """By how much the objective falls if all of them move."""
    moved, usage = len(rows), draft.costs.usage
    there, here = int(draft.bundles[destination]), int(draft.bundles[source])
    load = draft.loads_of(rows).sum(axis=1)
    left = float((draft.usage[:, source] - load * draft.scale.per_load[:, source]).max(initial=0.0))
    fall = usage(source, float(draft.peak[source]), here) - usage(source, left, here - moved)
    fall += usage(destination, float(draft.peak[destination]), there) - usage(destination, after, there + moved)
    return TOGETHER + fall - sum(draft.cost_of(row, destination) for row in rows.tolist())
