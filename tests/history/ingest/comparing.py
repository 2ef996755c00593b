"""What two lakes have that the other has not, table by table: for tests that say `the same tables`."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DoubleType, MapType

from loadmanager.history import verdicts
from loadmanager.history.ingest.positions import SILVER, reached
from loadmanager.history.lake import Lake
from loadmanager.history.schemas import RAW, TABLES

OWN = ("progress", "channel_state")
DIGITS = 6
"""Sums of floating-point numbers differ in their last bits with the order in which Spark adds them."""


def differences(lake: Lake, other: Lake) -> dict[str, str]:
    """Per table in which they differ, how; nothing if they are the same, whatever batches they came in."""
    names = [name for name in TABLES if name not in OWN]
    both = [{name: _plain(each.table(name)) for name in names} for each in (lake, other)]
    digests = [_digests(tables) for tables in both]
    found = {
        name: _difference(*(tables[name] for tables in both))
        for name in names
        if digests[0].get(name) != digests[1].get(name)
    }
    if reached(lake, SILVER).next_offsets != reached(other, SILVER).next_offsets:
        found["progress"] = "they are not equally far"
    if _folded(lake) != _folded(other):
        found["channel_state"] = f"{_folded(lake)} and {_folded(other)}"
    return found


def missed(lake: Lake, log: DataFrame) -> str:
    """How bronze differs from what the log holds (RAW); empty if each record is there once, as it is."""
    tables = {"bronze": lake.table("bronze").select(*RAW.names), "log": log}
    digests = _digests({name: _plain(rows) for name, rows in tables.items()})
    return "" if digests.get("bronze") == digests.get("log") else _difference(*tables.values())


def _digests(tables: dict[str, DataFrame]) -> dict[str, tuple[int, int]]:
    """Of each table that has rows, all in one job: the same for the same rows in any order, hardly ever for others."""
    hashed = [rows.select(f.lit(name).alias("name"), f.xxhash64(*rows.columns)) for name, rows in tables.items()]
    each = reduce(DataFrame.union, hashed).toDF("name", "hash").groupBy("name")
    found = each.agg(f.count("hash"), f.sum(f.col("hash").cast("decimal(38,0)"))).collect()
    return {name: (count, int(total)) for name, count, total in found}


def _difference(one: DataFrame, two: DataFrame) -> str:
    only = [rows.limit(2).collect() for rows in (one.exceptAll(two), two.exceptAll(one))]
    return f"only in the first: {only[0]}; only in the second: {only[1]}"


def _plain(rows: DataFrame) -> DataFrame:
    """The rows without the number of their batch, and in a form that can be compared."""
    columns = []
    for field in rows.schema.fields:
        column = f.col(field.name)
        if isinstance(field.dataType, DoubleType):
            column = f.round(column, DIGITS)
        elif isinstance(field.dataType, MapType):
            column = f.to_json(column)
        if field.name != "batch":
            columns.append(column.alias(field.name))
    return rows.select(*columns)


def _folded(lake: Lake) -> dict[int, int]:
    return {partition: at.next_offset for partition, at in verdicts.positions(lake.table("channel_state")).items()}
