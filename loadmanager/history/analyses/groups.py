"""Consumer groups: how far they are behind, how often they rebalance, and whether queues keep their consumers.

Reads `group_lag`; the answer is empty where no broker has coordinated a group.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from loadmanager.history.analyses.analysis import Analysis, Options, Tables
from loadmanager.history.analyses.figures import HOUR_S, over, seconds_between
from loadmanager.history.lake import Window

GROUP = ("group", "topic")
QUEUE = (*GROUP, "queue")


def run(tables: Tables, window: Window, options: Options) -> DataFrame:
    """One row per group and topic.

    `queues`; the lag of a queue, weighted by how long it was in force (`lag_mean`), its largest (`lag_max`) and the
    99th percentile of reports (`lag_p99`); `lag_last` summed over the queues' last reports; `rebalances`, changes of
    the generation, and `rebalances_h`, changes per hour; `stickiness`: of the queues that had a consumer before and
    after a rebalance, the part that kept it (null where there was none).
    """
    rows = window.cut(tables("group_lag"))
    lags = _lags(rows)
    return lags.join(_rebalances(rows), list(GROUP), "left").join(_kept(rows), list(GROUP), "left")


def _lags(rows: DataFrame) -> DataFrame:
    # of two reports at the same instant the later record counts
    order = Over.partitionBy(*QUEUE).orderBy("at", "partition", "offset")
    following = f.lead("at").over(order)
    rows = rows.withColumns({"in_force_s": seconds_between(f.col("at"), following), "last": following.isNull()})
    groups = rows.groupBy(*GROUP).agg(
        f.count_distinct("queue").alias("queues"),
        f.sum(f.col("lag") * f.col("in_force_s")).alias("weighed"),
        f.sum(f.when(f.col("lag").isNotNull(), f.col("in_force_s"))).alias("time"),
        f.avg("lag").alias("plain"),
        f.max("lag").alias("lag_max"),
        f.percentile("lag", 0.99).alias("lag_p99"),
        f.sum(f.when(f.col("last"), f.col("lag"))).alias("lag_last"),
    )
    mean = f.coalesce(over(f.col("weighed"), f.col("time")), f.col("plain"))
    return groups.select(*GROUP, "queues", mean.alias("lag_mean"), "lag_max", "lag_p99", "lag_last")


def _rebalances(rows: DataFrame) -> DataFrame:
    groups = rows.groupBy(*GROUP).agg(
        f.count_distinct("generation").alias("generations"), f.min("at").alias("first"), f.max("at").alias("last")
    )
    changes = f.greatest(f.lit(0), f.col("generations") - 1)
    hours = seconds_between(f.col("first"), f.col("last")) / HOUR_S
    return groups.select(*GROUP, changes.alias("rebalances"), over(changes, hours).alias("rebalances_h"))


def _kept(rows: DataFrame) -> DataFrame:
    held = rows.where(f.col("consumer").isNotNull() & f.col("generation").isNotNull())
    held = held.groupBy(*QUEUE, "generation").agg(
        f.max(f.struct("at", "partition", "offset", "consumer")).alias("last")
    )
    before = f.lag("last.consumer").over(Over.partitionBy(*QUEUE).orderBy("generation"))
    held = held.withColumn("before", before).where(f.col("before").isNotNull())
    same = f.col("last.consumer") == f.col("before")
    return held.groupBy(*GROUP).agg(over(f.count_if(same), f.count("*")).alias("stickiness"))


ANALYSIS = Analysis("groups", "Consumer groups", ("group_lag",), run, ("group", "topic"))
