"""Tables of a generated history: as DataFrames, made on the executors, one day per task; or a lake, without Spark.

Silver is generated, and gold is made of it as the ingest makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from bench.generating.arrow import Batch, schema_of
from bench.generating.moving import channel, decisions, promised, transitions
from bench.generating.reports import broker_loads, bundle_loads, bundle_totals, second_ms
from bench.generating.world import MINUTE_MS, World
from loadmanager.history import minutes
from loadmanager.history.columns import FORMAT_PROPERTY
from loadmanager.history.duck import connected
from loadmanager.history.layout import cut_by, properties
from loadmanager.history.schemas import TABLES
from loadmanager.history.texts import on_spark
from loadmanager.settings import Settings

MAKERS: Mapping[str, Callable[[World, int], Iterator[Batch]]] = {
    "broker_load": broker_loads,
    "bundle_load": bundle_loads,
    "bundle_total": bundle_totals,
    "channel": channel,
    "transition": transitions,
    "decision": decisions,
    "move": promised,
}
"""How each silver table's rows of one day are made."""
GOLD = {
    "broker_minute": ("broker_load", minutes.broker_minutes(), ("broker_load",)),
    "bundle_minute": ("bundle_total", minutes.bundle_minutes(), ("bundle_load", "transition")),
}
"""Of each gold table the reports, the text, and what else that reads."""
TTL_US = round(Settings.model_construct().load_ttl_s * 1e6)


def in_force(world: World) -> str:
    """Up to the last report of all: nothing is known after it."""
    last_ms = world.end_ms - MINUTE_MS + int(second_ms(world).max())
    return minutes.in_force(minutes.Reach(TTL_US, last_ms * 1000))


def generated(spark: SparkSession, world: World) -> Callable[[str], DataFrame]:
    """The tables by name, as `Lake.table` gives them; those that are not generated are empty."""

    def table(name: str) -> DataFrame:
        if name in GOLD:
            reports, text, others = GOLD[name]
            steps = on_spark(in_force(world), {"report": table(reports), "transition": table("transition")})
            return on_spark(text, {"in_force": steps, **{each: table(each) for each in others}}).select(
                *TABLES[name].names
            )
        if name not in MAKERS:
            return spark.createDataFrame([], TABLES[name])
        return spark.range(0, world.days, 1, world.days).mapInArrow(_days(world, name), TABLES[name])

    return table


def write(root: Path, world: World) -> Iterator[tuple[str, int]]:
    """Make a lake of the world below `root`, table by table, and say how many rows each has got.

    Each table is made as the ingest makes it, with the same properties; its former content is replaced.
    """
    for name in MAKERS:
        counted = _Counted(world, name)
        _save(root, name, pa.RecordBatchReader.from_batches(schema_of(name), counted.batches()))
        yield name, counted.rows
    for name in GOLD:
        rows = _gold(root, name, in_force(world))
        _save(root, name, rows)
        yield name, rows.num_rows


def _save(root: Path, name: str, rows: Any) -> None:
    given, place = properties(name, TABLES[name]), str(root / "tables" / name)
    write_deltalake(
        place,
        rows,
        partition_by=list(cut_by(name, TABLES[name])),
        configuration={key: value for key, value in given.items() if key != FORMAT_PROPERTY},
        mode="overwrite",
    )
    ours = {FORMAT_PROPERTY: given[FORMAT_PROPERTY]}
    DeltaTable(place).alter.set_table_properties(ours, raise_if_not_exists=False)


def _gold(root: Path, name: str, steps: str) -> Any:
    """The rows of a gold table, by DuckDB."""
    reports, text, _ = GOLD[name]
    with TemporaryDirectory() as scratch, connected(root, Path(scratch), f"{steps} {text} {reports}") as db:
        db.execute(f"CREATE TEMP VIEW report AS SELECT * FROM {reports}")
        db.execute(f"CREATE TEMP VIEW in_force AS {steps}")
        columns = ", ".join(f'"{column}"' for column in TABLES[name].names)
        return db.sql(f"SELECT {columns} FROM ({text})").to_arrow_table().cast(schema_of(name))


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
