"""Each broker's usage per bucket of a picture: its reports' step function, averaged over time.

Short buckets use the reports themselves, long ones the minutes that the ingest made of them.
"""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from loadmanager.history.analyses.analysis import Tables
from loadmanager.history.analyses.figures import with_usages
from loadmanager.history.minutes import Reach, in_force
from loadmanager.history.report.material import Span
from loadmanager.history.texts import on_spark
from loadmanager.model.load import Weights

FROM_MINUTES_S = 600
"""From this bucket length on, minutes are exact enough: at most a tenth of a bucket lies in a neighbour."""


def usages(tables: Tables, span: Span, weights: Weights, ttl_s: float) -> DataFrame:
    """`at` (the bucket's begin), `broker`, `covered_s`, `usage`: time-weighted, of all brokers and buckets."""
    if span.bucket_s >= FROM_MINUTES_S:
        minutes = tables("broker_minute")
        rows = minutes.where((f.col("minute") >= f.lit(span.begin)) & (f.col("minute") < f.lit(span.end)))
        pieces = with_usages(rows, weights).withColumn("at", begin_of(f.col("minute"), span.bucket_s))
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
    numbers = f.explode(_numbers(length_s)).alias("number")
    pieces = with_usages(rows, weights).select("broker", "usage", "since", "until", numbers)
    begin = f.timestamp_seconds(f.col("number") * length_s)
    end = f.timestamp_seconds((f.col("number") + 1) * length_s)
    overlap = (f.unix_micros(f.least("until", end)) - f.unix_micros(f.greatest("since", begin))) / f.lit(1e6)
    return pieces.select(begin.alias("at"), "broker", "usage", overlap.alias("covered_s"))


def _numbers(length_s: int) -> Column:
    first = f.floor(f.unix_seconds("since") / length_s)
    last = f.floor(f.unix_seconds("until") / length_s)
    return f.sequence(first, last)


def begin_of(time: Column, length_s: int) -> Column:
    """The begin of the bucket that a time lies in."""
    return f.timestamp_seconds(f.floor(f.unix_seconds(time) / length_s) * length_s)
