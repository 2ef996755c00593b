"""How unequal bundles are, day by day: the Gini coefficient of each resource and what the hottest few carry."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from loadmanager.history.analyses.analysis import Analysis, Options, Tables
from loadmanager.history.analyses.cluster import OF_BUNDLES, TITLES, bundle_hours, summed
from loadmanager.history.analyses.figures import DAY_S, HOUR_S, begin_of, over
from loadmanager.history.lake import Window

TOPS = (1, 10)


def run(tables: Tables, window: Window, options: Options) -> DataFrame:
    """One row per day (UTC) and resource that was used at all.

    `bundles` that were reported; `gini` of their loads, 0 (all alike) to 1 - 1/n; `top_1`, `top_10` and `top_1_percent`
    (rounded up to whole bundles): the part of the load that the hottest have.
    """
    day = f.floor(f.col("hour") / (DAY_S // HOUR_S)).alias("number")
    rows = summed(bundle_hours(tables, window), day, "bundle")
    kinds = [f.struct(f.lit(TITLES[n]).alias("resource"), f.col(f"load_{n}").alias("load")) for n in OF_BUNDLES]
    rows = rows.select("number", "bundle", f.inline(f.array(*kinds)))
    each = Over.partitionBy("number", "resource")
    rows = rows.withColumn("place", f.row_number().over(each.orderBy("load", "bundle")))
    rows = rows.withColumn("bundles", f.count("*").over(each))
    days = rows.groupBy("number", "resource", "bundles").agg(
        f.sum("load").alias("total"),
        f.sum(f.col("place") * f.col("load")).alias("placed"),
        *(_top(f.lit(count)).alias(f"sum_{count}") for count in TOPS),
        _top(f.ceil(f.col("bundles") / 100)).alias("sum_percent"),
    )
    n, total = f.col("bundles"), f.col("total")
    return days.where(total > 0).select(
        begin_of(f.col("number"), DAY_S).alias("day"),
        "resource",
        "bundles",
        f.greatest(f.lit(0.0), 2 * f.col("placed") / (n * total) - (n + 1) / n).alias("gini"),
        *(over(f.col(f"sum_{count}"), total).alias(f"top_{count}") for count in TOPS),
        over(f.col("sum_percent"), total).alias("top_1_percent"),
    )


def _top(count: Column) -> Column:
    return f.sum(f.when(f.col("place") > f.col("bundles") - count, f.col("load")).otherwise(0.0))


ANALYSIS = Analysis("skew", "Skew of the bundles", ("bundle_minute",), run, ("day", "resource"))
