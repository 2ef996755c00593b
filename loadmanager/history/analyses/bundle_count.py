"""How many bundles each namespace should have: fine enough to be balanced, below the limits, and no more.

    parts of a bundle = the most of 1,  ⌈size / (tolerance · even)⌉ where its size is larger than that,
                        and ⌈fill / FILL_AIMED_AT⌉ where it is beyond a limit

`size` is the bundle's mean load as a part of the mean broker, `even` the usage if all load were spread evenly. Filling
brokers one bundle at a time leaves them within the largest bundle of each other; so with no bundle above tolerance ·
even, no broker need be beyond tolerance. `fill` is the busiest hour's part of the split limits, for the fullest limit.
Cold neighbours are counted as the planner merges them: below `merge_below` of every limit, alone and together.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from loadmanager.history.analyses.analysis import Analysis, Options, Tables
from loadmanager.history.analyses.cluster import OF_BUNDLES, bundle_hours, cluster, size, with_cpu
from loadmanager.history.analyses.figures import BYTES_IN, BYTES_OUT, MESSAGES, namespace_of
from loadmanager.history.analyses.serving import last_known, there
from loadmanager.history.lake import Window
from loadmanager.model.boundaries import MOST_PARTS
from loadmanager.strategies.playground.bounds import IDLE
from loadmanager.strategies.splitting.splits import FILL_AIMED_AT, Limits

FILLS = ("keys", "sessions", "messages", "bytes")


def run(tables: Tables, window: Window, options: Options) -> DataFrame:
    """One row per namespace with a measured bundle that exists at the window's end.

    `bundles` that it has (by the channel, else those measured), `measured` of them; size of the `largest` and its name
    in `bundle`; `allowed` = tolerance · even (null while the cluster is idle); how many are `too_large` and
    `over_limits`; how many `parts` splits would add, and how many `merges` are possible; `advised` number of bundles,
    between `namespace_min_bundles` and `namespace_max_bundles`; `advice`: split, merge or keep.
    """
    rows = _bundles(tables, window, options)
    rows = _with_merges(_with_parts(rows, options), options)
    spaces = rows.groupBy("namespace").agg(
        f.count("*").alias("measured"),
        f.max(f.struct("size", "bundle")).alias("top"),
        f.max("allowed").alias("allowed"),
        f.count_if(f.col("size") > f.col("allowed")).alias("too_large"),
        f.count_if(f.col("fill") > 1).alias("over_limits"),
        f.sum(f.col("parts") - 1).alias("parts"),
        f.sum("merges").alias("merges"),
    )
    spaces = spaces.join(_existing(tables, window), "namespace", "left")
    bundles = f.coalesce(f.greatest("existing", "measured"), f.col("measured"))
    wanted = bundles + f.when(f.col("parts") > 0, f.col("parts")).otherwise(-f.col("merges"))
    least = f.least(bundles, f.lit(options.namespace_min_bundles))
    most = f.greatest(bundles, f.lit(options.namespace_max_bundles))
    advised = f.least(most, f.greatest(least, wanted))
    return spaces.select(
        *("namespace", bundles.alias("bundles"), "measured"),
        f.col("top.size").alias("largest"),
        f.col("top.bundle").alias("bundle"),
        *("allowed", "too_large", "over_limits", "parts", "merges"),
        advised.alias("advised"),
        f.when(advised > bundles, "split").when(advised < bundles, "merge").otherwise("keep").alias("advice"),
    )


def _bundles(tables: Tables, window: Window, options: Options) -> DataFrame:
    """Each bundle's load over the window, and of its busiest hour the figures that have limits."""
    limited: dict[str, Column] = {
        "keys": f.col("keys"),
        "sessions": f.col("sessions"),
        "messages": f.col(f"load_{MESSAGES}"),
        "bytes": f.col(f"load_{BYTES_IN}") + f.col(f"load_{BYTES_OUT}"),
    }
    bundles = (
        bundle_hours(tables, window)
        .groupBy("bundle")
        .agg(
            f.sum("covered_s").alias("covered_s"),
            *(f.sum(f"load_{number}").alias(f"load_{number}") for number in OF_BUNDLES),
            *(f.max(value / f.col("covered_s")).alias(name) for name, value in limited.items()),
        )
    )
    bundles = there(with_cpu(bundles, cluster(tables, window, options)), tables("transition"), window)
    allowed = f.when(f.col("even") >= IDLE, f.col("even") * options.tolerance)
    return bundles.select(
        *("bundle", namespace_of(f.col("bundle")).alias("namespace"), *FILLS),
        size().alias("size"),
        allowed.alias("allowed"),
    )


def _with_parts(rows: DataFrame, options: Options) -> DataFrame:
    fill = f.greatest(f.lit(0.0), f.lit(0.0), *_fills(options.limits, {name: f.col(name) for name in FILLS}))
    rows = rows.withColumn("fill", fill)
    by_size = f.when(f.col("size") > f.col("allowed"), f.ceil(f.try_divide("size", "allowed"))).otherwise(1)
    by_limit = f.when(f.col("fill") > 1, f.ceil(f.col("fill") / FILL_AIMED_AT)).otherwise(1)
    return rows.withColumn("parts", f.least(f.lit(MOST_PARTS), f.greatest(by_size, by_limit)).cast("long"))


def _fills(limits: Limits, values: Mapping[str, Column]) -> list[Column]:
    whole = (limits.keys, limits.sessions, limits.rate_msg_s, limits.bandwidth_bytes_s)
    return [values[name] / f.lit(float(limit)) for name, limit in zip(FILLS, whole, strict=True)]


def _with_merges(rows: DataFrame, options: Options) -> DataFrame:
    """Adds `merges`, on the last bundle of each run of cold neighbours: how many fewer bundles would hold its load."""
    edges = f.split(f.substring_index("bundle", "/", -1), "_")
    rows = rows.withColumns({"low": edges[0], "high": edges[1]})
    space = Over.partitionBy("namespace").orderBy("low")
    cold = (f.col("fill") < options.merge_below) & (f.col("parts") == 1) & f.lit(options.limits.any)
    rows = rows.withColumn("cold", cold)
    goes_on = f.col("cold") & f.lag("cold").over(space) & (f.lag("high").over(space) == f.col("low"))
    rows = rows.withColumn("run", f.sum(f.when(f.coalesce(goes_on, f.lit(False)), 0).otherwise(1)).over(space))
    run = Over.partitionBy("namespace", "run")
    sums = _fills(options.limits, {name: f.sum(name).over(run) for name in FILLS})
    needed = f.greatest(f.lit(1), f.ceil(f.greatest(f.lit(0.0), f.lit(0.0), *sums) / options.merge_below))
    members = f.count("*").over(run)
    last = f.col("low") == f.max("low").over(run)
    fewer = f.greatest(f.lit(0), members - needed)
    return rows.withColumn("merges", f.when(f.col("cold") & last, fewer).otherwise(0).cast("long"))


def _existing(tables: Tables, window: Window) -> DataFrame:
    """How many bundles the channel knows of in each namespace."""
    rows = last_known(tables("transition"), window).where("there")
    return rows.groupBy(namespace_of(f.col("bundle")).alias("namespace")).agg(f.count("*").alias("existing"))


ANALYSIS = Analysis(
    "bundle_count",
    "Right number of bundles",
    ("bundle_minute", "broker_minute", "bundle_total", "transition"),
    run,
    ("namespace",),
)
