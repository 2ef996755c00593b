"""Load and capacity of the whole cluster as one row, and the load of bundles by the hour.

Analyses of bundles are built on these two, so several of them can share one read of the minutes.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from loadmanager.history.analyses.analysis import Options, Tables
from loadmanager.history.analyses.figures import (
    BYTES_IN,
    BYTES_OUT,
    CPU,
    HOUR_S,
    MESSAGES,
    counted,
    declared,
    number_of,
    over,
    sound,
    used,
)
from loadmanager.history.analyses.sharing import shareable
from loadmanager.history.lake import Window
from loadmanager.model.load import RESOURCES

OF_BUNDLES = (CPU, BYTES_IN, BYTES_OUT, MESSAGES)
"""The resources that are measured per bundle; memory is not, because it does not fall when a bundle goes."""
TITLES = {number: RESOURCES[number] for number in OF_BUNDLES}
SUMS = ("covered_s", *(f"load_{number}" for number in OF_BUNDLES), "keys", "sessions")
"""The sums in `bundle_hours`; add them up for longer times."""


def bundle_load(number: int) -> Column:
    """What a row's bundle uses of a resource, in natural units."""
    if number == CPU:
        return sound("cpu_percent") / 100
    if number == MESSAGES:
        return sound("in_rate_msg_s") + sound("out_rate_msg_s")
    return sound("in_rate_bytes_s" if number == BYTES_IN else "out_rate_bytes_s")


@shareable
def bundle_hours(tables: Tables, window: Window) -> DataFrame:
    """Bundle minutes summed up by `bundle` and `hour` (since 1970, UTC).

    `covered_s`, `load_N` in unit · seconds, and `keys` and `sessions` times seconds. Minutes that cover no time are
    left out.
    """
    covered = f.col("covered_s")
    rows = window.cut(tables("bundle_minute"), "minute").where(covered > 0)
    sums = [f.sum(covered * bundle_load(number)).alias(f"load_{number}") for number in OF_BUNDLES]
    counts = [f.sum(covered * sound(name)).alias(name) for name in ("keys", "sessions")]
    hours = rows.groupBy("bundle", number_of(f.col("minute"), HOUR_S).alias("hour"))
    return hours.agg(f.sum(covered).alias("covered_s"), *sums, *counts)


def summed(hours: DataFrame, *by: Column | str) -> DataFrame:
    """The sums of `bundle_hours` over longer times."""
    return hours.groupBy(*by).agg(*(f.sum(name).alias(name) for name in SUMS))


@shareable
def cluster(tables: Tables, window: Window, options: Options) -> DataFrame:
    """One row about the whole cluster.

    `cluster_N`: all brokers' load in unit · seconds; `unit_N`: one natural unit as a part of the mean broker, null
    where not every broker declares a capacity, as in `Ruler.per_resource`; `even`: the usage if all load were spread
    evenly; `measured`: whether the service measures CPU by bundle.
    """
    rows = window.cut(tables("broker_minute"), "minute").where(f.col("covered_s") > 0)
    covered = f.col("covered_s")
    sums = [f.sum(covered).alias("time")]
    for number in OF_BUNDLES:
        room = declared(number)
        sums += [
            f.sum(covered * used(number)).alias(f"cluster_{number}"),
            f.sum(covered * room).alias(f"room_{number}"),
            f.bool_and(room.isNotNull()).alias(f"known_{number}"),
        ]
    whole = rows.agg(*sums).crossJoin(_measured(tables, window))
    counts = [number for number in counted(options.weights) if number in OF_BUNDLES]
    units = {n: _unit(n, options.weights.row[n]) for n in counts}
    evens = [
        f.when(f.col(f"known_{n}"), f.lit(options.weights.row[n]) * over(f.col(f"cluster_{n}"), f.col(f"room_{n}")))
        for n in counts
    ]
    return whole.select(
        "measured",
        *(f"cluster_{number}" for number in OF_BUNDLES),
        *((units[n] if n in units else f.lit(None).cast("double")).alias(f"unit_{n}") for n in OF_BUNDLES),
        f.greatest(f.lit(0.0), f.lit(0.0), *evens).alias("even"),
    )


def _measured(tables: Tables, window: Window) -> DataFrame:
    """Whether the service measures CPU by bundle; true where no total is known."""
    some = f.bool_or(sound("cpu_percent") > 0)
    return window.cut(tables("bundle_total")).agg(f.coalesce(some, f.lit(True)).alias("measured"))


def _unit(number: int, weight: float) -> Column:
    return f.when(f.col(f"known_{number}"), f.lit(weight) * over(f.col("time"), f.col(f"room_{number}")))


def with_cpu(loads: DataFrame, whole: DataFrame) -> DataFrame:
    """Adds the columns of `whole`, the row of `cluster`, and fills in `load_0` where CPU is not measured by bundle.

    A bundle then gets the cluster's CPU by its part of the messages, else of the bytes (as `part_of`).
    """
    by_messages = over(f.col(f"load_{MESSAGES}"), f.col(f"cluster_{MESSAGES}"))
    bytes_of = f.col(f"load_{BYTES_IN}") + f.col(f"load_{BYTES_OUT}")
    by_bytes = over(bytes_of, f.col(f"cluster_{BYTES_IN}") + f.col(f"cluster_{BYTES_OUT}"))
    shared = f.coalesce(f.col(f"cluster_{CPU}") * f.coalesce(by_messages, by_bytes), f.lit(0.0))
    cpu = f.when(f.col("measured"), f.col(f"load_{CPU}")).otherwise(shared)
    return loads.crossJoin(f.broadcast(whole)).withColumn(f"load_{CPU}", cpu)


def size() -> Column:
    """A bundle's mean load as a part of the mean broker, in the resource that it uses most (`Ruler.shares`)."""
    parts = [f.col(f"load_{n}") / f.col("covered_s") * f.col(f"unit_{n}") for n in OF_BUNDLES]
    return f.coalesce(f.greatest(*parts), f.lit(0.0))
