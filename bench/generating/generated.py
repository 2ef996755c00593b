"""Tables of a generated history: as DataFrames, made on the executors, one day per task; or a lake, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from bench.generating.arrow import Batch, schema_of
from bench.generating.moving import channel, decisions, promised, transitions
from bench.generating.reports import broker_loads, broker_minutes, bundle_loads, bundle_minutes, bundle_totals
from bench.generating.world import World
from loadmanager.history.columns import FORMAT_PROPERTY
from loadmanager.history.layout import cut_by, properties
from loadmanager.history.schemas import TABLES

MAKERS: Mapping[str, Callable[[World, int], Iterator[Batch]]] = {
    "broker_load": broker_loads,
    "bundle_load": bundle_loads,
    "bundle_total": bundle_totals,
    "channel": channel,
    "transition": transitions,
    "decision": decisions,
    "move": promised,
    "broker_minute": broker_minutes,
    "bundle_minute": bundle_minutes,
}
"""How each table's rows of one day are made."""


def generated(spark: SparkSession, world: World) -> Callable[[str], DataFrame]:
    """The tables by name, as `Lake.table` gives them; those that are not generated are empty."""

    def table(name: str) -> DataFrame:
        if name not in MAKERS:
            return spark.createDataFrame([], TABLES[name])
        return spark.range(0, world.days, 1, world.days).mapInArrow(_days(world, name), TABLES[name])

    return table


def write(root: Path, world: World, tables: Iterable[str] = MAKERS) -> Iterator[tuple[str, int]]:
    """Make a lake of the world below `root`, table by table, and say how many rows each has got.

    Each table is made as the ingest makes it, with the same properties; its former content is replaced.
    """
    for name in tables:
        given = properties(name, TABLES[name])
        place, counted = str(root / "tables" / name), _Counted(world, name)
        write_deltalake(
            place,
            pa.RecordBatchReader.from_batches(schema_of(name), counted.batches()),
            partition_by=list(cut_by(name, TABLES[name])),
            configuration={key: value for key, value in given.items() if key != FORMAT_PROPERTY},
            mode="overwrite",
        )
        ours = {FORMAT_PROPERTY: given[FORMAT_PROPERTY]}
        DeltaTable(place).alter.set_table_properties(ours, raise_if_not_exists=False)
        yield name, counted.rows


class _Counted:
    """The rows of a table, day after day, and how many there were."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name
        self.rows = 0

    def batches(self) -> Iterator[Batch]:
        for day in range(self._world.days):
            for each in MAKERS[self._name](self._world, day):
                self.rows += each.num_rows
                yield each


def _days(world: World, name: str) -> Callable[[Iterable[Any]], Iterator[Batch]]:
    def made(batches: Iterable[Any]) -> Iterator[Batch]:
        for each in batches:
            for day in each.column(0).to_pylist():
                yield from MAKERS[name](world, day)

    return made
