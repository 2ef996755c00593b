"""Moves ahead of tomorrow's peak: where the forecast puts some broker beyond tolerance under the present placement.

The moves start at most one rest time of a bundle before the peak, so that rounds leave the bundles alone until then.
`relief` finds them, greedily: it repeats the one move off the fullest broker that lowers its usage most. The
improvement's interval comes from random draws of the forecast's errors, the same draws with and without the moves.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
from pyspark.sql import functions as f

from loadmanager.history.advising.origin import Origin
from loadmanager.history.analyses import ANALYSES
from loadmanager.history.analyses.analysis import Options, Tables
from loadmanager.history.lake import Window
from loadmanager.history.replay.ranking import LEVEL_PERCENT, Interval
from loadmanager.leader.plans.advice import MOST_MOVES, Advice, Expected, Measure, MoveBundles, PreMove
from loadmanager.model.cluster import Floats, Ints
from loadmanager.settings import Settings

METHOD = "forecast"
TABLES = ("bundle_minute", "broker_minute", "bundle_total", "transition")
BUNDLES = 2_000
"""The bundles with the largest forecasts, at most so many; the others stay where they are."""
BROKERS = 2_000
NINETY_PERCENT = 1.645
"""Standard deviations from `predicted` to a forecast's `low` and `high`."""
SHORTEST_MS, LONGEST_MS = 600_000, 3_600_000
HOUR_MS = 3_600_000


class Found(msgspec.Struct, frozen=True):
    """What the driver collects: rows of bundles and brokers, and the forecast hours in ms."""

    bundles: list[str]
    brokers: list[str]
    hours: list[int]
    ahead: Ahead


def advised(tables: Tables, window: Window, options: Options, settings: Settings, origin: Origin) -> Advice | str:
    """Advice, or why there is none."""
    found = _found(tables, window, options, origin)
    if found is None:
        return "too few bundles or brokers have a forecast"
    relieved = relief(found.ahead, options.tolerance, MOST_MOVES)
    if relieved is None:
        return f"no moves are certain to help in the next {len(found.hours)} hours"
    peak_ms = found.hours[relieved.hour]
    first_ms = peak_ms - min(LONGEST_MS, max(SHORTEST_MS, round(settings.bundle_rest_s * 1000)))
    if peak_ms <= origin.data_to_ms:
        return "the peak is over"
    change = MoveBundles(_pre_moves(found, relieved), first_ms, peak_ms)
    gain = relieved.gain
    expected = Expected(Measure.SPREAD, relieved.before, relieved.after, gain.low, gain.high)
    cores = float(found.ahead.predicted[:, relieved.hour].sum())
    at = datetime.fromtimestamp(peak_ms / 1000, UTC)
    reason = (
        f"At {at:%Y-%m-%d %H:%M} UTC brokers are forecast to carry {cores:.3g} cores, with a "
        f"spread of {relieved.before:.1%} where bundles are now; {len(change.moves)} moves before then make the spread "
        f"{relieved.after:.1%} (better by {gain.low:.1%} to {gain.high:.1%})."
    )
    return origin.advice(change, reason, expected, METHOD, TABLES)


def _pre_moves(found: Found, relieved: Relief) -> tuple[PreMove, ...]:
    holder = found.ahead.holder
    return tuple(
        PreMove(found.bundles[bundle], found.brokers[int(holder[bundle])], found.brokers[to])
        for bundle, to in relieved.moves
    )


def _found(tables: Tables, window: Window, options: Options, origin: Origin) -> Found | None:
    brokers = _brokers(tables, window, origin)
    if len(brokers) < 2:
        return None
    rows = {row["broker"]: number for number, row in enumerate(brokers)}
    bundles = [row for row in _bundles(tables, window, options) if row["broker"] in rows]
    hours = sorted({each["at_ms"] for row in bundles for each in row["ahead"]})
    if not bundles or not hours:
        return None
    predicted, deviation = np.zeros((len(bundles), len(hours))), np.zeros((len(bundles), len(hours)))
    column = {hour: number for number, hour in enumerate(hours)}
    for number, row in enumerate(bundles):
        for each in row["ahead"]:
            predicted[number, column[each["at_ms"]]] = each["predicted"]
            deviation[number, column[each["at_ms"]]] = (each["high"] - each["predicted"]) / NINETY_PERCENT
    holder = np.array([rows[row["broker"]] for row in bundles], np.int64)
    capacity = np.array([row["cores"] for row in brokers], np.float64)
    used = np.array([row["used"] for row in brokers], np.float64)
    rest = np.maximum(0.0, used - np.bincount(holder, predicted[:, 0], minlength=len(brokers)))
    ahead = Ahead(predicted, deviation, holder, capacity, rest)
    return Found([row["bundle"] for row in bundles], [row["broker"] for row in brokers], hours, ahead)


def _brokers(tables: Tables, window: Window, origin: Origin) -> list[Any]:
    """Brokers of the last hour: their cores, and how many they used."""
    rows = window.cut(tables("broker_minute"), "minute").where(f.col("covered_s") > 0)
    rows = rows.where(f.unix_millis("minute") >= origin.data_to_ms - HOUR_MS)
    cores = f.coalesce(f.col("capacity")["cpu"], f.lit(1.0))
    found = rows.groupBy("broker").agg(
        f.max_by(cores, "minute").alias("cores"),
        f.avg(f.col("cpu_percent") / 100 * cores).alias("used"),
    )
    return found.where((f.col("cores") > 0) & f.col("used").isNotNull()).orderBy("broker").limit(BROKERS).collect()


def _bundles(tables: Tables, window: Window, options: Options) -> list[Any]:
    """The bundles with the largest forecasts, where each is now, and its load by the hour."""
    forecast = ANALYSES["forecast"].run(tables, window, msgspec.structs.replace(options, measure="cpu"))
    hour = f.struct(f.unix_millis("at").alias("at_ms"), "predicted", "high")
    heavy = forecast.groupBy("bundle").agg(f.sum("predicted").alias("total"), f.collect_list(hour).alias("ahead"))
    rows = window.cut(tables("bundle_minute"), "minute").where(f.col("covered_s") > 0)
    where = rows.groupBy("bundle").agg(f.max_by("broker", "minute").alias("broker"))
    return heavy.join(where, "bundle").orderBy(f.desc("total"), "bundle").limit(BUNDLES).collect()


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
    gain: Interval


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
    gain = Interval(before - after, min(float(low), before - after), max(float(high), before - after))
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
