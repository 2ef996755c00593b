"""Spark's schemas of the tables, by name. `columns.py` lists and explains the columns."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from loadmanager.history import columns
from loadmanager.history.columns import Columns

_TYPES: Mapping[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "timestamp": TimestampType(),
    "date": DateType(),
    "binary": BinaryType(),
    "boolean": BooleanType(),
    "array<string>": ArrayType(StringType()),
    "array<bigint>": ArrayType(LongType()),
    "map<string,double>": MapType(StringType(), DoubleType()),
}
"""Spark has a parser for these, which needs a running JVM."""


def _schema(table: Columns) -> StructType:
    return StructType([StructField(name, _TYPES[kind]) for name, kind in table.items()])


TABLES: dict[str, StructType] = {name: _schema(table) for name, table in columns.TABLES.items()}
"""By name. Tables that are cut by day have a column `day`; bronze is cut by topic too."""

RAW = _schema(columns.RAW)
BRONZE = TABLES["bronze"]
QUARANTINE = TABLES["quarantine"]
BROKER_LOAD = TABLES["broker_load"]
BUNDLE_LOAD = TABLES["bundle_load"]
BUNDLE_TOTAL = TABLES["bundle_total"]
CHANNEL = TABLES["channel"]
TRANSITION = TABLES["transition"]
DECISION = TABLES["decision"]
MOVE = TABLES["move"]
AUDIT = TABLES["audit"]
GROUP_LAG = TABLES["group_lag"]
CHANNEL_STATE = TABLES["channel_state"]
PROGRESS = TABLES["progress"]
BROKER_MINUTE = TABLES["broker_minute"]
BUNDLE_MINUTE = TABLES["bundle_minute"]
