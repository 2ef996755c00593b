"""Which bundles to move before a peak, given the hourly forecast of each. Pure; works on arrays.

Greedy: repeat the one move off the fullest broker that lowers its usage most. The improvement's interval comes from
random draws of the forecast's errors, the same draws with and without the moves.
"""

from __future__ import annotations

import msgspec
import numpy as np

from loadmanager.history.advising.intervals import LEVEL_PERCENT, Mean
from loadmanager.model.cluster import Floats, Ints

DRAWS = 1_000
WORTH = 0.005
"""As a part of the mean usage: a move that gains less is not worth its gap."""


class Ahead(msgspec.Struct, frozen=True):
    """The forecast and the placement of now: m bundles, n brokers, h hours; loads in cores."""

    predicted: Floats
    """(m, h)"""
    deviation: Floats
    """(m, h): standard deviations of the errors."""
    holder: Ints
    """(m,): row of the broker."""
    capacity: Floats
    """(n,): cores."""
    rest: Floats
    """(n,): cores in use that are in no bundle's forecast."""


class Relief(msgspec.Struct, frozen=True):
    """Moves (bundle row, broker row) for an hour, the spread then without and with them, and how sure the gain is."""

    hour: int
    moves: tuple[tuple[int, int], ...]
    before: float
    after: float
    gain: Mean


def relief(ahead: Ahead, tolerance: float, most: int, seed: int = 0) -> Relief | None:
    """Moves for the busiest hour in which the present placement is beyond tolerance.

    None if no hour is, or if moves do not surely help.
    """
    spreads = [_spread(ahead, ahead.predicted[:, hour], ahead.holder) for hour in range(ahead.predicted.shape[1])]
    totals = ahead.predicted.sum(axis=0)
    late = [hour for hour in np.argsort(-totals, kind="stable") if spreads[hour] > tolerance]
    if not late:
        return None
    hour = int(late[0])
    moves = _moves(ahead, ahead.predicted[:, hour], tolerance, most)
    if not moves:
        return None
    holder = ahead.holder.copy()
    for bundle, to in moves:
        holder[bundle] = to
    return _sure(ahead, hour, moves, holder, seed)


def _sure(ahead: Ahead, hour: int, moves: list[tuple[int, int]], holder: Ints, seed: int) -> Relief | None:
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((DRAWS, len(holder)))
    loads = np.maximum(0.0, ahead.predicted[:, hour] + noise * ahead.deviation[:, hour])
    then = np.array([_spread(ahead, load, ahead.holder) for load in loads])
    now = np.array([_spread(ahead, load, holder) for load in loads])
    before, after = float(then.mean()), float(now.mean())
    low, high = np.percentile(then - now, LEVEL_PERCENT)
    if low <= 0:
        return None
    gain = Mean(before - after, min(float(low), before - after), max(float(high), before - after))
    return Relief(hour, tuple(moves), before, after, gain)


def _moves(ahead: Ahead, load: Floats, tolerance: float, most: int) -> list[tuple[int, int]]:
    holder, moves, moved = ahead.holder.copy(), list[tuple[int, int]](), set[int]()
    for _ in range(most):
        usage = _usage(ahead, load, holder)
        mean = float(usage.mean())
        fullest = int(usage.argmax())
        if mean <= 0 or usage[fullest] / mean - 1 <= tolerance / 2:
            break
        best = _best(ahead, load, holder, usage, fullest, moved)
        if best is None or usage[fullest] - best[0] < WORTH * mean:
            break
        _, bundle, to = best
        holder[bundle] = to
        moved.add(bundle)
        moves.append((bundle, to))
    return moves


def _best(
    ahead: Ahead, load: Floats, holder: Ints, usage: Floats, fullest: int, moved: set[int]
) -> tuple[float, int, int] | None:
    """The best move from the fullest to the least full broker, with the usage of the fuller of the two after it."""
    to = int(usage.argmin())
    rows = [int(row) for row in np.flatnonzero(holder == fullest) if int(row) not in moved and load[row] > 0]
    if to == fullest or not rows:
        return None
    left = usage[fullest] - load[rows] / ahead.capacity[fullest]
    right = usage[to] + load[rows] / ahead.capacity[to]
    level = np.maximum(left, right)
    at = int(level.argmin())
    return float(level[at]), rows[at], to


def _usage(ahead: Ahead, load: Floats, holder: Ints) -> Floats:
    used = ahead.rest + np.bincount(holder, load, minlength=len(ahead.capacity))
    usage: Floats = used / ahead.capacity
    return usage


def _spread(ahead: Ahead, load: Floats, holder: Ints) -> float:
    usage = _usage(ahead, load, holder)
    mean = float(usage.mean())
    return float(usage.max()) / mean - 1 if mean > 0 else 0.0
