"""Per-minute means of step functions. Pure DataFrame code: `gold.py` decides which minutes are made, and when.

A report is in force from its time until the first of these: the next report of its broker, the deletion of the broker's
load data, its time to live, or the horizon, after which nothing is known yet. A column's mean over a minute weighs each
report by the part of the minute in which it was in force.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as f
from pyspark.sql.types import DoubleType, LongType

from loadmanager.history import utc
from loadmanager.history.schemas import BROKER_MINUTE, BUNDLE_MINUTE

MINUTE_US = 60_000_000
_BROKER_MEANS = (
    *("cpu_percent", "memory_percent", "in_rate_bytes_s", "out_rate_bytes_s", "in_rate_msg_s", "out_rate_msg_s"),
    "bundles",
)
_BUNDLE_MEANS = (
    *("in_rate_msg_s", "out_rate_msg_s", "in_rate_bytes_s", "out_rate_bytes_s", "cpu_percent"),
    *("keys", "sessions"),
)


class Span(msgspec.Struct, frozen=True, order=True):
    """Whole minutes, in microseconds since 1970: from `begin` to before `end`."""

    begin: int
    end: int


class Reach(msgspec.Struct, frozen=True):
    """How far a report reaches: `ttl_us` at most, and not beyond the horizon (microseconds since 1970)."""

    ttl_us: int
    horizon_us: int


def broker_minutes(reports: DataFrame, reach: Reach, spans: Iterable[Span]) -> DataFrame:
    """Rows of BROKER_MINUTE in the spans. `reports`: rows of BROKER_LOAD, all from `ttl_us` before each span on."""
    steps = in_force(reports, reach).where(f.col("at").isNotNull())
    weighed = by_minute(steps, spans)
    inside = f.when(f.col("weight_us") > 0, f.col("cpu_percent"))
    began = f.col("minute_us") <= f.col("begin_us")
    rows = weighed.groupBy("minute_us", "broker", "incarnation").agg(
        _covered(),
        f.count(f.when(began, f.lit(1))).alias("reports"),
        f.max(inside).alias("cpu_percent_max"),
        f.max_by("capacity", f.struct("begin_us", "offset")).alias("capacity"),
        *map(_mean, _BROKER_MEANS),
    )
    return _finished(rows).select(*BROKER_MINUTE.names)


def bundle_minutes(
    totals: DataFrame, bundles: DataFrame, deletions: DataFrame, reach: Reach, spans: Iterable[Span]
) -> DataFrame:
    """Rows of BUNDLE_MINUTE in the spans, from rows of BUNDLE_TOTAL and BUNDLE_LOAD as for `broker_minutes`.

    `deletions` are the rows of BROKER_LOAD that delete: with a broker's load its bundles' loads are gone.
    """
    columns = ("partition", "offset", "appended_at", "broker", "at")
    reports = totals.select(*columns).unionByName(deletions.select(*columns))
    steps = in_force(reports, reach).where(f.col("at").isNotNull())
    of_bundles = bundles.drop("at", "broker", "appended_at", "day").join(steps, ["partition", "offset"])
    rows = (
        by_minute(of_bundles, spans)
        .groupBy("minute_us", "bundle", "namespace", "broker")
        .agg(_covered(), *map(_mean, _BUNDLE_MEANS))
    )
    return _finished(rows).select(*BUNDLE_MINUTE.names)


def in_force(reports: DataFrame, reach: Reach) -> DataFrame:
    """The reports, including deletions (`at` is null), with `begin_us` and `end_us`, between which each is in force."""
    begin = f.unix_micros(f.coalesce("at", "appended_at"))
    order = Over.partitionBy("broker").orderBy("begin_us", "partition", "offset")
    end = f.least(f.lead("begin_us").over(order), f.col("begin_us") + f.lit(reach.ttl_us), f.lit(reach.horizon_us))
    return reports.withColumn("begin_us", begin).withColumn("end_us", end)


def by_minute(steps: DataFrame, spans: Iterable[Span]) -> DataFrame:
    """One row for each minute of the spans that a step touches, with `weight_us`, its part of it."""
    minute = f.lit(MINUTE_US).cast(LongType())
    first = f.col("begin_us") - f.pmod("begin_us", minute)
    minutes = f.sequence(first, f.greatest(first, f.col("end_us") - 1), minute)
    each = steps.where(f.col("end_us") >= f.col("begin_us")).withColumn("minute_us", f.explode(minutes))
    end = f.least(f.col("end_us"), f.col("minute_us") + MINUTE_US)
    weight = end - f.greatest(f.col("begin_us"), f.col("minute_us"))
    return each.where(within(f.col("minute_us"), spans)).withColumn("weight_us", weight)


def within(time_us: Column, spans: Iterable[Span]) -> Column:
    """Whether a time lies in one of the spans."""
    inside = f.lit(False)
    for span in spans:
        inside = inside | ((time_us >= span.begin) & (time_us < span.end))
    return inside


def _covered() -> Column:
    return (f.sum("weight_us") / f.lit(1_000_000.0)).alias("covered_s")


def _mean(column: str) -> Column:
    weight = f.when(f.col(column).isNotNull(), f.col("weight_us"))
    return f.try_divide(f.sum(f.col(column).cast(DoubleType()) * weight), f.sum(weight)).alias(column)


def _finished(rows: DataFrame) -> DataFrame:
    minute = f.timestamp_micros("minute_us")
    there = rows.where(f.col("covered_s") > 0)
    return there.withColumn("minute", minute).withColumn("day", utc.day_of(f.col("minute")))
