"""Queries the lake for what a report shows; Spark aggregates, and only the few rows of `Material` are collected.

Each question is a job of its own, and is announced to `asked`, so that people see the progress.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from loadmanager.errors import NotFound
from loadmanager.history.analyses import ANALYSES, Options, Tables
from loadmanager.history.analyses.figures import HOUR_S
from loadmanager.history.analyses.figures import begin_of as number_begin
from loadmanager.history.analyses.sharing import shared
from loadmanager.history.analyses.texts import relation
from loadmanager.history.lake import Window
from loadmanager.history.report import buckets
from loadmanager.history.report.material import (
    BROKERS,
    BUCKETS,
    BUNDLES,
    CANDIDATES,
    FAILOVERS,
    KINDS,
    ROWS,
    Found,
    Material,
    Rows,
    Span,
    bucket_s,
)

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
    usages = buckets.usages(tables, span, options.weights, ttl_s).persist()
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
    at = buckets.begin_of(f.col("at"), span.bucket_s).alias("at")
    summed = rounds.groupBy(at).agg(
        f.count("*").alias("rounds"), f.sum("begun").alias("moves"), f.max("strategy").alias("strategy")
    )
    return rows_of(summed.orderBy("at"), BUCKETS + 2)


def _transfers(tables: Tables, window: Window, options: Options, span: Span) -> tuple[Rows, Rows, Rows]:
    moves = _answer("transfers", tables, window, options)
    at = buckets.begin_of(f.col("served_at"), span.bucket_s).alias("at")
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
    past = past.select("bundle", number_begin(f.col("hour"), HOUR_S).alias("at"), "load")
    first = min(row["at"] for row in predicted) - timedelta(hours=HOURS_BEFORE)
    return rows_of(
        past.where(f.col("at") >= f.lit(first)).orderBy("bundle", "at"), 4 * HOURS_BEFORE * BUNDLES
    ), predicted


def _answer(name: str, tables: Tables, window: Window, options: Options) -> Any:
    return ANALYSES[name].run(tables, window, options)
