"""Records of the topics as rows of the tables: vectorised, with the decoders that brokers use.

`decode(raw)` reads each record once; `broker_load`, `bundle_load`, … make a table's rows from its result, or from raw
records; `unreadable` has the records that no decoder could read. To get several tables from the same records, decode
first and keep the result. Records of the channel are read in `folding/`.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from loadmanager.history import utc
from loadmanager.history.decoding.records import CORRUPT, DECODED, NEWER, decoded
from loadmanager.history.schemas import QUARANTINE, TABLES
from loadmanager.model.load import BROKERS_TOPIC

__all__ = [
    "CORRUPT",
    "DECODED",
    "NEWER",
    "audit",
    "broker_load",
    "bundle_load",
    "bundle_total",
    "decision",
    "decode",
    "group_lag",
    "move",
    "sizes",
    "unreadable",
]


_ORIGIN = ("partition", "offset", "appended_at")


def decode(raw: DataFrame) -> DataFrame:
    """The records of `raw` (RAW) that have a decoder, as DECODED."""
    return raw.mapInArrow(decoded, DECODED)


def broker_load(rows: DataFrame) -> DataFrame:
    """Load reports of brokers. A deletion is a row with `broker` alone; its `day` is of `appended_at`."""
    records = _decoded(rows).where((f.col("topic") == BROKERS_TOPIC) & f.col("kind").isNull())
    values = records.select(*_ORIGIN, "broker_load.*", f.col("key").cast("string"))
    return _table("broker_load", values.withColumn("broker", f.coalesce("broker", "key")))


def bundle_load(rows: DataFrame) -> DataFrame:
    """The bundles of load reports, in each report's order."""
    whose = [f.col(f"top_bundles.{name}") for name in ("broker", "incarnation", "at")]
    each = _decoded(rows).select(*_ORIGIN, *whose, f.explode("top_bundles.bundles").alias("one"))
    return _table("bundle_load", each.select("*", "one.*", "one.load.*"))


def bundle_total(rows: DataFrame) -> DataFrame:
    """The sums of load reports."""
    return _table("bundle_total", _of(rows, "top_bundles").select("*", "total.*"))


def decision(rows: DataFrame) -> DataFrame:
    """The leader's rounds."""
    return _table("decision", _of(rows, "decision"))


def move(rows: DataFrame) -> DataFrame:
    """The moves of the leader's rounds."""
    whose = [f.col("decision.id").alias("decision"), f.col("decision.at").alias("at")]
    each = _decoded(rows).select(*_ORIGIN, *whose, f.explode("decision.made").alias("one"))
    return _table("move", each.select("*", "one.*"))


def audit(rows: DataFrame) -> DataFrame:
    """Who asked for which change, and what became of it."""
    return _table("audit", _of(rows, "audit"))


def group_lag(rows: DataFrame) -> DataFrame:
    """How far consumer groups are behind."""
    return _table("group_lag", _of(rows, "group_lag"))


def unreadable(rows: DataFrame) -> DataFrame:
    """The records that no decoder could read, unchanged, with kind and reason, for the quarantine."""
    bad = _decoded(rows).where(f.col("kind").isNotNull())
    return bad.withColumn("day", utc.day_of(f.col("appended_at"))).select(*QUARANTINE.names)


def sizes() -> dict[str, Column]:
    """By table, how many rows a decoded record becomes."""
    readable = f.col("kind").isNull()
    each = {
        "bundle_load": f.size("top_bundles.bundles"),
        "move": f.size("decision.made"),
    }
    one = {
        "broker_load": (f.col("topic") == BROKERS_TOPIC) & readable,
        "bundle_total": f.col("top_bundles").isNotNull(),
        **{table: f.col(table).isNotNull() for table in ("decision", "audit", "group_lag")},
    }
    return {table: f.when(size > 0, size).otherwise(0) for table, size in each.items()} | {
        table: there.cast("int") for table, there in one.items()
    }


def _decoded(rows: DataFrame) -> DataFrame:
    return rows if "kind" in rows.columns else decode(rows)


def _of(rows: DataFrame, column: str) -> DataFrame:
    """The records with a value in one column of DECODED: their position, and the column's fields."""
    return _decoded(rows).where(f.col(column).isNotNull()).select(*_ORIGIN, f"{column}.*")


def _table(name: str, values: DataFrame) -> DataFrame:
    return values.withColumn("day", utc.day_of(f.coalesce("at", "appended_at"))).select(*TABLES[name].names)
