"""Which bundles carry the most: the hottest of the window, with their part of the cluster's load.

Only bundles that brokers reported among their hottest are known at all; the cluster's load is that of all brokers.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from loadmanager.history.analyses.analysis import Analysis, Options, Tables
from loadmanager.history.analyses.cluster import OF_BUNDLES, TITLES, bundle_hours, cluster, size, summed, with_cpu
from loadmanager.history.analyses.figures import BYTES_IN, BYTES_OUT, CPU, MESSAGES, namespace_of, over
from loadmanager.history.lake import Window


def run(tables: Tables, window: Window, options: Options) -> DataFrame:
    """At most `options.top` rows, the hottest first.

    `covered_s` and means over that time (`cores`, `in_rate_bytes_s`, `out_rate_bytes_s`, `rate_msg_s`); `share`, the
    bundle's largest part of the cluster's load, and in which `resource`; `cumulative`, the sum of shares so far;
    `size`, its load as a part of the mean broker.
    """
    whole = cluster(tables, window, options)
    rows = with_cpu(summed(bundle_hours(tables, window), "bundle"), whole)
    largest = f.greatest(*(f.struct(_share(n).alias("share"), f.lit(TITLES[n]).alias("resource")) for n in OF_BUNDLES))
    rows = rows.withColumn("hottest", largest).select(
        "bundle",
        namespace_of(f.col("bundle")).alias("namespace"),
        "covered_s",
        _mean(CPU).alias("cores"),
        _mean(BYTES_IN).alias("in_rate_bytes_s"),
        _mean(BYTES_OUT).alias("out_rate_bytes_s"),
        _mean(MESSAGES).alias("rate_msg_s"),
        f.col("hottest.share").alias("share"),
        f.col("hottest.resource").alias("resource"),
        size().alias("size"),
    )
    order = (f.desc("share"), f.asc("bundle"))
    rows = rows.orderBy(*order).limit(options.top)
    ranks = Over.orderBy(*order)
    rows = rows.withColumn("rank", f.row_number().over(ranks)).withColumn(
        "cumulative", f.sum("share").over(ranks.rowsBetween(Over.unboundedPreceding, Over.currentRow))
    )
    return rows.select("rank", *(column for column in rows.columns if column != "rank"))


def _share(number: int) -> Column:
    return f.coalesce(over(f.col(f"load_{number}"), f.col(f"cluster_{number}")), f.lit(0.0))


def _mean(number: int) -> Column:
    return f.col(f"load_{number}") / f.col("covered_s")


ANALYSIS = Analysis("hot_bundles", "Hot bundles", ("bundle_minute", "broker_minute", "bundle_total"), run, ("rank",))
