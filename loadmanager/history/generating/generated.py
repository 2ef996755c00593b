"""Tables of a generated history as DataFrames, made on the executors, one day per task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from loadmanager.history.generating.arrow import Batch
from loadmanager.history.generating.loads import stage
from loadmanager.history.generating.minutes import broker_minutes, bundle_minutes
from loadmanager.history.generating.moving import SHIFTS, decisions, promised, transitions
from loadmanager.history.generating.reports import broker_loads, bundle_loads, bundle_totals
from loadmanager.history.generating.world import DAY_MS, HOUR_MS, MOST_BUNDLES, World
from loadmanager.history.schemas import TABLES

MAKERS: Mapping[str, Callable[[World, int], Iterator[Batch]]] = {
    "broker_load": broker_loads,
    "bundle_load": bundle_loads,
    "bundle_total": bundle_totals,
    "transition": transitions,
    "decision": decisions,
    "move": promised,
    "broker_minute": broker_minutes,
    "bundle_minute": bundle_minutes,
}
"""How each table's rows of one day are made."""


def generated(spark: SparkSession, world: World) -> Callable[[str], DataFrame]:
    """The tables by name, as `Lake.table` gives them; those that are not generated are empty.

    `channel` has the records of `transition` and the leaders'. A lake is filled with, say,
    `tables("bundle_minute").write.format("delta").partitionBy("day").save(lake.path("bundle_minute"))`.
    """

    def table(name: str) -> DataFrame:
        schema = TABLES[name]
        if name == "channel":
            return _channel(spark, world, table("transition")).select(*schema.names)
        if name not in MAKERS:
            return spark.createDataFrame([], schema)
        return spark.range(0, world.days, 1, world.days).mapInArrow(_days(world, name), schema)

    return table


def _days(world: World, name: str) -> Callable[[Iterable[Any]], Iterator[Batch]]:
    def made(batches: Iterable[Any]) -> Iterator[Batch]:
        for each in batches:
            for day in each.column(0).to_pylist():
                yield from MAKERS[name](world, day)

    return made


def _channel(spark: SparkSession, world: World, transitions: DataFrame) -> DataFrame:
    nothing = {name: f.lit(None).cast(TABLES["channel"][name].dataType) for name in TABLES["channel"].names}
    known = (
        *("partition", "offset", "appended_at", "at", "id", "action", "actor", "role", "namespace", "cause"),
        "day",
    )
    accepted = {"verdict": f.lit("accepted"), "format": f.lit(1)}
    records = transitions.withColumns(
        {name: value for name, value in nothing.items() if name not in known}
        | accepted
        | {"bundles": f.array("bundle"), "to": f.col("target"), "epoch": f.lit(0).cast("long")}
    )
    brokers = f.array(*(f.lit(name) for name in stage(world).brokers))
    day, count = f.col("id") % world.days, f.lit(world.brokers)
    leads = spark.range(world.days * world.partitions).select(
        day.alias("number"), f.floor(f.col("id") / world.days).cast("int").alias("partition")
    )
    number = f.col("number")
    since = f.timestamp_seconds(f.lit(world.begin_ms // 1000) + number * 86_400)
    leader = brokers[((number * 7 + world.seed) % count + 1) % count]
    leads = leads.select(
        "partition",
        since.alias("at"),
        since.alias("appended_at"),
        ((number * DAY_MS + HOUR_MS) * (MOST_BUNDLES * SHIFTS) - 1).alias("offset"),
        (number + 1).alias("epoch"),
        leader.alias("actor"),
    )
    rest = {name: value for name, value in nothing.items() if name not in leads.columns}
    leads = leads.withColumns(
        rest
        | accepted
        | {"action": f.lit("lead"), "role": f.lit("leader"), "day": f.to_date("at"), "id": f.hex("offset")}
        | {"actor_incarnation": f.lit(1).cast("long")}
    )
    return records.select(*TABLES["channel"].names).unionByName(leads.select(*TABLES["channel"].names))
