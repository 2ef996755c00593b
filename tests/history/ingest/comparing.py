"""What two lakes have that the other has not, table by table: for tests that say `the same tables`."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DoubleType, MapType

from loadmanager.history import folding
from loadmanager.history.ingest.progress import SILVER, reached
from loadmanager.history.lake import Lake
from loadmanager.history.schemas import TABLES

OWN = ("progress", "channel_state")
DIGITS = 6
"""Sums of floating-point numbers differ in their last bits with the order in which Spark adds them."""


def differences(lake: Lake, other: Lake) -> dict[str, str]:
    """Per table in which they differ, how; nothing if they are the same, whatever batches they came in."""
    found: dict[str, str] = {}
    for name in TABLES:
        if name not in OWN and (said := _difference(_plain(lake, name), _plain(other, name))):
            found[name] = said
    if reached(lake, SILVER).next_offsets != reached(other, SILVER).next_offsets:
        found["progress"] = "they are not equally far"
    if _folded(lake) != _folded(other):
        found["channel_state"] = f"{_folded(lake)} and {_folded(other)}"
    return found


def _difference(one: DataFrame, two: DataFrame) -> str:
    if _digest(one) == _digest(two):
        return ""
    only = [rows.limit(2).collect() for rows in (one.exceptAll(two), two.exceptAll(one))]
    return f"only in the first: {only[0]}; only in the second: {only[1]}"


def _digest(rows: DataFrame) -> tuple[object, ...]:
    """The same for the same rows in any order, and hardly ever for others."""
    hashes = f.xxhash64(*rows.columns)
    found = rows.select(hashes.alias("hash")).agg(f.count("hash"), f.sum(f.col("hash").cast("decimal(38,0)"))).first()
    return tuple(found or ())


def _plain(lake: Lake, name: str) -> DataFrame:
    """The rows without the number of their batch, and in a form that can be compared."""
    columns = []
    for field in TABLES[name].fields:
        column = f.col(field.name)
        if isinstance(field.dataType, DoubleType):
            column = f.round(column, DIGITS)
        elif isinstance(field.dataType, MapType):
            column = f.to_json(column)
        if field.name != "batch":
            columns.append(column.alias(field.name))
    return lake.table(name).select(*columns)


def _folded(lake: Lake) -> dict[int, int]:
    return {partition: at.next_offset for partition, at in folding.positions(lake.table("channel_state")).items()}
