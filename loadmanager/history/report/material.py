"""What a report shows: values whose size is bounded, whatever the lake's size, and the queries that make them.

Spark aggregates, and only the few rows of `Material` are collected. Each question is a job of its own, and is announced
to `asked`, so that people see the progress.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from loadmanager.errors import NotFound
from loadmanager.history.analyses import ANALYSES, Options, Tables
from loadmanager.history.analyses.analysis import relation, shared, usage_of
from loadmanager.history.lake import Window
from loadmanager.history.minutes import Reach, in_force
from loadmanager.history.published import Published
from loadmanager.history.texts import on_spark
from loadmanager.model.load import Weights

BUCKETS = 240
"""The most times in a picture."""
BROKERS = 40
"""The most brokers in the heat map."""
BUNDLES = 4
"""Bundles whose forecast is drawn."""
CANDIDATES = 20
"""Hottest bundles that are tried for a forecast: one that was split since has none."""
FAILOVERS = 20
KINDS = 4
"""Kinds of brokers whose capacity model is drawn: those that were seen the longest."""
ROWS = 500
"""Rows of any other table."""

Rows = list[dict[str, Any]]

LENGTHS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
HOUR_S, DAY_S = 3_600, 86_400


def bucket_s(begin: datetime, end: datetime) -> int:
    """How long a bucket is, so that there are at most BUCKETS from begin to end."""
    span_s = (end - begin).total_seconds()
    for length in LENGTHS_S:
        if span_s / length <= BUCKETS:
            return length
    return DAY_S * -(-int(span_s) // (DAY_S * BUCKETS))


class Span(msgspec.Struct, frozen=True):
    """The time that the report is about: the window, as far as there are reports.

    UTC; `bucket_s` is a picture's step.
    """

    begin: datetime
    end: datetime
    bucket_s: int

    @property
    def seconds(self) -> float:
        return (self.end - self.begin).total_seconds()


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What other jobs published; None where they did not run yet."""

    replay: Published | None = None
    audit: Published | None = None
    advice: Published | None = None


class Material(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is drawn or said. Rows are plain dicts, with the columns that each line names."""

    span: Span
    tolerance: float
    brokers: int
    """How many reported at all."""
    cells: Rows
    """at, broker, usage: of the BROKERS with the highest peaks, time-weighted means."""
    levels: Rows
    """at, mean, max, std, broker (the fullest): over all brokers that took part."""
    rounds: Rows
    """at, rounds, moves, strategy: of the leader's rounds that began moves, by bucket."""
    moves: Rows
    """at, how, moves: by bucket."""
    gap_shares: Rows
    """how, low_s, high_s, moves: a histogram of gaps on a logarithmic scale."""
    gaps: Rows
    """As the analysis `gaps`."""
    failovers: Rows
    """As the analysis `failovers`, the latest first, FAILOVERS at most."""
    lost: int
    """How many rows `failovers` would have without a limit."""
    history: Rows
    """bundle, at, load: by hour, of the bundles in `forecast`."""
    forecast: Rows
    """As the analysis `forecast`, of the BUNDLES hottest that have one, the hottest first."""
    measure: str
    capacity: Rows
    """As the analysis `capacity`, of KINDS kinds, the one that was seen the longest first."""
    kinds: int
    """How many kinds there are."""
    found: Found


GAP_STEPS = 4
"""Bars of the gaps' histogram per factor of ten."""
LEAST_GAP_S = 1e-3
HOURS_BEFORE = 72
"""Hours of the past that are drawn before a forecast."""

QUESTIONS = ("brokers", "decisions", "transfers", "failovers", "forecast", "capacity")


def collect(
    tables: Tables,
    window: Window,
    options: Options,
    found: Found,
    *,
    ttl_s: float,
    asked: Callable[[str], None] = lambda _: None,
) -> Material:
    """What the report of the window shows. Raises NotFound where no broker reported in it.

    `ttl_s`: how long a report holds without a next one (twice `load_report_max_interval_s`).
    """
    asked("brokers")
    span = span_of(tables, window)
    within = Window(span.begin, span.end)
    usages = bucket_usages(tables, span, options.weights, ttl_s).persist()
    try:
        brokers, cells = _cells(usages)
        levels = _levels(usages)
    finally:
        usages.unpersist()
    with shared(tables) as common:
        asked("decisions")
        rounds = _rounds(common, within, span)
        asked("transfers")
        moves, shares, gaps = _transfers(common, within, options, span)
        asked("failovers")
        lost, failovers = _failovers(common, within, options)
        asked("forecast")
        history, forecast = _forecast(common, within, options)
        asked("capacity")
        kinds, capacity = _capacity(common, within, options)
    return Material(
        span=span,
        tolerance=options.tolerance,
        brokers=brokers,
        cells=cells,
        levels=levels,
        rounds=rounds,
        moves=moves,
        gap_shares=shares,
        gaps=gaps,
        failovers=failovers,
        lost=lost,
        history=history,
        forecast=forecast,
        measure=options.measure,
        capacity=capacity,
        kinds=kinds,
        found=found,
    )


def rows_of(answer: DataFrame, most: int = ROWS) -> Rows:
    """At most so many rows, as plain dicts with times in UTC."""
    return answer.limit(most).toArrow().to_pylist(maps_as_pydicts="lossy")


def span_of(tables: Tables, window: Window) -> Span:
    """From the window's first report to its last, or the last change of a bundle. Raises NotFound without a report."""
    reports = window.cut(tables("broker_load"))
    [edges] = rows_of(reports.agg(f.min("at").alias("begin"), f.max("at").alias("end")))
    begin, end = edges["begin"], edges["end"]
    if begin is None or end is None:
        raise NotFound(_nothing(tables, window))
    [moved] = rows_of(window.cut(tables("transition")).agg(f.max("at").alias("end")))
    end = max(end, moved["end"] or end, begin + timedelta(seconds=1))
    return Span(begin, end, bucket_s(begin, end))


def _nothing(tables: Tables, window: Window) -> str:
    [edges] = rows_of(tables("broker_load").agg(f.min("at").alias("begin"), f.max("at").alias("end")))
    if edges["begin"] is None:
        return "no broker's report is in the lake yet: run `loadmanager history ingest` first"
    return (
        f"no broker reported in that time; the lake has reports from {_time(edges['begin'])} to {_time(edges['end'])}"
    )


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S}"


def _cells(usages: DataFrame) -> tuple[int, Rows]:
    peaks = usages.groupBy("broker").agg(f.max("usage").alias("peak"))
    [count] = rows_of(peaks.agg(f.count("*").alias("brokers")))
    top = peaks.orderBy(f.desc("peak"), "broker").limit(BROKERS).select("broker")
    cells = usages.join(f.broadcast(top), "broker").select("at", "broker", f.round("usage", 4).alias("usage"))
    return count["brokers"], rows_of(cells.orderBy("at", "broker"), BROKERS * (BUCKETS + 2))


def _levels(usages: DataFrame) -> Rows:
    covered, usage = f.col("covered_s"), f.col("usage")
    time, total, squares = f.sum(covered), f.sum(covered * usage), f.sum(covered * usage * usage)
    mean = total / time
    levels = usages.groupBy("at").agg(
        mean.alias("mean"),
        f.max("usage").alias("max"),
        f.sqrt(f.greatest(f.lit(0.0), squares / time - mean * mean)).alias("std"),
        f.max_by("broker", "usage").alias("broker"),
        f.count("*").alias("brokers"),
    )
    return rows_of(levels.orderBy("at"), BUCKETS + 2)


def _rounds(tables: Tables, window: Window, span: Span) -> Rows:
    rounds = window.cut(tables("decision")).where(f.col("begun") > 0).dropDuplicates(["id"])
    at = begin_of(f.col("at"), span.bucket_s).alias("at")
    summed = rounds.groupBy(at).agg(
        f.count("*").alias("rounds"), f.sum("begun").alias("moves"), f.max("strategy").alias("strategy")
    )
    return rows_of(summed.orderBy("at"), BUCKETS + 2)


def _transfers(tables: Tables, window: Window, options: Options, span: Span) -> tuple[Rows, Rows, Rows]:
    moves = _answer("transfers", tables, window, options)
    at = begin_of(f.col("served_at"), span.bucket_s).alias("at")
    counts = moves.groupBy(at, "how").agg(f.count("*").alias("moves"))
    step = f.floor(f.log10(f.greatest(f.col("gap_s"), f.lit(LEAST_GAP_S))) * GAP_STEPS)
    shares = moves.where(f.col("gap_s").isNotNull()).groupBy("how", step.alias("step")).agg(f.count("*").alias("moves"))
    shares = shares.select(
        "how",
        "moves",
        f.pow(f.lit(10.0), f.col("step") / GAP_STEPS).alias("low_s"),
        f.pow(f.lit(10.0), (f.col("step") + 1) / GAP_STEPS).alias("high_s"),
    )
    gaps = _answer("gaps", tables, window, options).orderBy(f.desc("moves"))
    return rows_of(counts.orderBy("at", "how"), BUCKETS * 4), rows_of(shares.orderBy("how", "low_s")), rows_of(gaps, 50)


def _failovers(tables: Tables, window: Window, options: Options) -> tuple[int, Rows]:
    failovers = _answer("failovers", tables, window, options).withColumn("lost", f.count("*").over(Over.partitionBy()))
    rows = rows_of(failovers.orderBy(f.desc("revoked_at"), "broker"), FAILOVERS)
    return (rows[0]["lost"] if rows else 0), [{key: row[key] for key in row if key != "lost"} for row in rows]


def _capacity(tables: Tables, window: Window, options: Options) -> tuple[int, Rows]:
    rows = rows_of(_answer("capacity", tables, window, options).orderBy(f.desc("minutes"), "kind"))
    kinds = list({row["kind"]: None for row in rows})
    return len(kinds), [row for row in rows if row["kind"] in kinds[:KINDS]]


def _forecast(tables: Tables, window: Window, options: Options) -> tuple[Rows, Rows]:
    options = msgspec.structs.replace(options, top=CANDIDATES)
    hottest = _answer("hot_bundles", tables, window, options).select("rank", "bundle").orderBy("rank")
    ranked = [row["bundle"] for row in rows_of(hottest, CANDIDATES)]
    future = _answer("forecast", tables, window, options).where(f.col("bundle").isin(ranked)) if ranked else None
    predicted = rows_of(future.orderBy("bundle", "at"), CANDIDATES * options.horizon_h) if future is not None else []
    there = {row["bundle"] for row in predicted}
    names = [name for name in ranked if name in there][:BUNDLES]
    predicted = [row for name in names for row in predicted if row["bundle"] == name]
    if not predicted:
        return [], []
    past = relation(tables, "hourly", window, options).where(f.col("bundle").isin(names))
    past = past.select("bundle", f.timestamp_seconds(f.col("hour") * HOUR_S).alias("at"), "load")
    first = min(row["at"] for row in predicted) - timedelta(hours=HOURS_BEFORE)
    return rows_of(
        past.where(f.col("at") >= f.lit(first)).orderBy("bundle", "at"), 4 * HOURS_BEFORE * BUNDLES
    ), predicted


def _answer(name: str, tables: Tables, window: Window, options: Options) -> Any:
    return ANALYSES[name].run(tables, window, options)


FROM_MINUTES_S = 600
"""From this bucket length on, minutes are exact enough: at most a tenth of a bucket lies in a neighbour."""


def bucket_usages(tables: Tables, span: Span, weights: Weights, ttl_s: float) -> DataFrame:
    """`at` (the bucket's begin), `broker`, `covered_s`, `usage`: time-weighted, of all brokers and buckets."""
    if span.bucket_s >= FROM_MINUTES_S:
        minutes = tables("broker_minute")
        rows = minutes.where((f.col("minute") >= f.lit(span.begin)) & (f.col("minute") < f.lit(span.end)))
        pieces = rows.withColumns({"usage": f.expr(usage_of(weights)), "at": begin_of(f.col("minute"), span.bucket_s)})
    else:
        pieces = _pieces(steps(tables, span, ttl_s), weights, span.bucket_s)
    weighted = f.sum(f.col("covered_s") * f.col("usage")) / f.sum("covered_s")
    return (
        pieces.where(f.col("covered_s") > 0)
        .groupBy("at", "broker")
        .agg(f.sum("covered_s").alias("covered_s"), weighted.alias("usage"))
    )


def steps(tables: Tables, span: Span, ttl_s: float) -> DataFrame:
    """The span's reports with the time in which each was in force, `since` to `until`, cut to the span."""
    first = span.begin - timedelta(seconds=2 * ttl_s)
    taken = f.col("appended_at").between(f.lit(first), f.lit(span.end))
    reports, changes = tables("broker_load"), tables("transition").where(taken)
    near = reports.where(f.col("at").between(f.lit(first), f.lit(span.end)) | (f.col("at").isNull() & taken))
    reach = Reach(ttl_us=round(ttl_s * 1e6), horizon_us=round(span.end.timestamp() * 1e6))
    times = on_spark(in_force(reach), {"report": near, "transition": changes})
    rows = near.join(times.select("partition", "offset", "begin_us", "end_us"), ["partition", "offset"])
    since = f.greatest(f.timestamp_micros("begin_us"), f.lit(span.begin))
    rows = rows.withColumns({"since": since, "until": f.timestamp_micros("end_us")})
    return rows.where(f.col("since") < f.col("until"))


def _pieces(rows: DataFrame, weights: Weights, length_s: int) -> DataFrame:
    """Each step cut at the edges of buckets."""
    first, last = (f.floor(f.unix_seconds(edge) / length_s) for edge in ("since", "until"))
    numbers = f.explode(f.sequence(first, last)).alias("number")
    pieces = rows.select("broker", f.expr(usage_of(weights)).alias("usage"), "since", "until", numbers)
    begin = f.timestamp_seconds(f.col("number") * length_s)
    end = f.timestamp_seconds((f.col("number") + 1) * length_s)
    overlap = (f.unix_micros(f.least("until", end)) - f.unix_micros(f.greatest("since", begin))) / f.lit(1e6)
    return pieces.select(begin.alias("at"), "broker", "usage", overlap.alias("covered_s"))


def begin_of(time: Column, length_s: int) -> Column:
    """The begin of the bucket that a time lies in."""
    return f.timestamp_seconds(f.floor(f.unix_seconds(time) / length_s) * length_s)
