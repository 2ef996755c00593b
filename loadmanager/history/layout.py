"""How the tables of the lakehouse are made, and brought up to this release. `columns.py` says what is in them.

A table is partitioned by `day`, bronze by topic too. Statistics are kept only for columns that are searched, because
they cost as much as writing. A release adds columns at the end: an older lake gets them when a newer release first
writes, and an older release ignores columns that it does not know. A change that an older release could not safely
ignore raises `FORMAT`, which is in each table's properties: the older release then refuses the lake instead of
misreading it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from loadmanager.errors import Invalid
from loadmanager.history.columns import FORMAT, FORMAT_PROPERTY, Columns
from loadmanager.history.schemas import TABLES

_SEARCHED = ("batch", "stage", "topic", "partition", "offset", "appended_at", "at", "minute")
_BRIEF_HISTORY = {
    "delta.logRetentionDuration": "interval 2 days",
    "delta.deletedFileRetentionDuration": "interval 1 day",
}
"""For the ingest's own tables, whose past is not queried. Their rows are replaced often, and each checkpoint of a
table's log lists the files that were replaced within the second duration."""
_OWN = ("channel_state", "progress")
_CHECKPOINTS = {table: 10 + place for place, table in enumerate(TABLES)}
"""After how many commits Delta writes a checkpoint of a table's log. Tables get their commits together; different
intervals avoid that all checkpoint in one batch, which then took half as long again."""


def cut_by(table: str, schema: StructType) -> tuple[str, ...]:
    """The columns by which a table is partitioned."""
    if "day" not in schema.names:
        return ()
    return ("topic", "day") if table == "bronze" else ("day",)


def properties(table: str, schema: StructType) -> dict[str, str]:
    """The table's properties."""
    folders = cut_by(table, schema)
    searched = [name for name in _SEARCHED if name in schema.names and name not in folders]
    return {
        FORMAT_PROPERTY: str(FORMAT),
        "delta.enableChangeDataFeed": "false",
        "delta.enableDeletionVectors": "false",
        "delta.dataSkippingStatsColumns": ",".join(searched),
        "delta.checkpointInterval": str(_CHECKPOINTS[table]),
        **(_BRIEF_HISTORY if table in _OWN else {}),
    }


def make(spark: SparkSession, path: str, table: str, schema: StructType) -> None:
    """Make a missing table; one that another job makes at this moment is left as it is."""
    given = ", ".join(f"'{key}' = '{value}'" for key, value in properties(table, schema).items())
    folders = ", ".join(cut_by(table, schema))
    cut = f"PARTITIONED BY ({folders})" if folders else ""
    columns = _listed(columns_of(schema))
    spark.sql(f"CREATE TABLE IF NOT EXISTS {delta(path)} ({columns}) USING delta {cut} TBLPROPERTIES ({given})")


def widen(spark: SparkSession, path: str, there: Columns, table: str, schema: StructType) -> None:
    """Add the columns that an older release did not know. Raises Invalid where a column is of another type."""
    wanted = columns_of(schema)
    for name, kind in wanted.items():
        if (stored := there.get(name, kind)) != kind:
            raise Invalid(
                f"column {name} of table {table} is {stored} in the lake and {kind} in this release: "
                "use the release that wrote it, or another lake"
            )
    if missing := {name: kind for name, kind in wanted.items() if name not in there}:
        spark.sql(f"ALTER TABLE {delta(path)} ADD COLUMNS ({_listed(missing)})")


def stored_properties(spark: SparkSession, path: str) -> Mapping[str, str]:
    """The properties of a table, by Spark."""
    found = spark.sql(f"DESCRIBE DETAIL {delta(path)}").select("properties").first()
    return found["properties"] if found else {}


def delta(path: str) -> str:
    """A table by its path, as SQL names it."""
    return f"delta.`{path.replace('`', '``')}`"


def columns_of(schema: StructType) -> Columns:
    """A schema as `columns.py` writes it."""
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def _listed(columns: Columns) -> str:
    """The columns as SQL. `StructType.toDDL` needs a session of this thread: with Spark Connect one thread has it."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
