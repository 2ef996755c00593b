"""How far each stage of the ingest is. The table `progress` is the truth; Spark's checkpoint is only a hint.

A row says that a stage has everything of a partition below `next_offset`. It is appended after everything that it
speaks of is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StructType

from loadmanager.history.lake import Lake, Once
from loadmanager.history.schemas import PROGRESS

SILVER = "silver"
WRITER = "ingest"
Partition = tuple[str, int]
"""Topic and partition."""


class Mark(msgspec.Struct, frozen=True):
    """One row: what a batch brought of a partition. `until_us`: `schemas.PROGRESS`, in microseconds since 1970.

    `first` is the lowest offset of the batch, and is not stored.
    """

    topic: str
    partition: int
    next_offset: int
    rows: int
    until_us: int
    first: int = 0


class Reached(msgspec.Struct, frozen=True):
    """Where a stage is. `batch` is the last that is complete, -1 before the first."""

    batch: int = -1
    next_offsets: Mapping[Partition, int] = {}
    until_us: int | None = None

    def after(self, batch: int, marks: Iterable[Mark]) -> Reached:
        """The position after this batch."""
        moved = list(marks)
        offsets = {(mark.topic, mark.partition): mark.next_offset for mark in moved}
        times = [mark.until_us for mark in moved] + ([] if self.until_us is None else [self.until_us])
        return Reached(batch, {**self.next_offsets, **offsets}, max(times, default=None))

    def followed_by(self, marks: Iterable[Mark]) -> bool:
        """Whether the marks continue this position without a gap, before the batch or within it."""
        return all(
            mark.first == self.next_offsets.get((mark.topic, mark.partition), 0)
            and mark.rows == mark.next_offset - mark.first
            for mark in marks
        )

    def is_below(self) -> Column:
        """Whether this stage has rows with this topic, partition and offset."""
        below = f.lit(False)
        for (topic, partition), offset in self.next_offsets.items():
            here = (f.col("topic") == topic) & (f.col("partition") == partition)
            below = below | (here & (f.col("offset") < offset))
        return below


def reached(lake: Lake, stage: str) -> Reached:
    """Where a stage is, by the table. Collects one row per partition."""
    latest = lake.table("progress").where(f.col("stage") == stage).groupBy("topic", "partition")
    values = latest.agg(
        f.max("batch").alias("batch"),
        f.max_by("next_offset", "batch").alias("next_offset"),
        f.unix_micros(f.max_by("until", "batch")).alias("until_us"),
    ).collect()
    if not values:
        return Reached()
    offsets = {(row["topic"], row["partition"]): row["next_offset"] for row in values}
    return Reached(max(row["batch"] for row in values), offsets, max(row["until_us"] for row in values))


def arrived(rows: DataFrame) -> list[Mark]:
    """What a batch's rows (RAW) bring, one mark per partition."""
    found = rows.groupBy("topic", "partition").agg(
        f.min("offset").alias("first"),
        (f.max("offset") + 1).alias("next_offset"),
        f.count(f.lit(1)).alias("rows"),
        f.unix_micros(f.max("appended_at")).alias("until_us"),
    )
    return sorted((Mark(**row.asDict()) for row in found.collect()), key=lambda mark: (mark.topic, mark.partition))


def positions(lake: Lake, reached: Reached) -> DataFrame:
    """As rows (topic, partition, next_offset)."""
    rows = [(topic, partition, offset) for (topic, partition), offset in reached.next_offsets.items()]
    return lake.spark.createDataFrame(rows, _of_progress("topic", "partition", "next_offset"))


def advance(lake: Lake, stage: str, batch: int, marks: Iterable[Mark]) -> None:
    """A stage is complete up to these marks."""
    values = [(stage, batch, m.topic, m.partition, m.next_offset, m.rows, m.until_us) for m in marks]
    schema = _of_progress("stage", "batch", "topic", "partition", "next_offset", "rows").add("until_us", LongType())
    rows = lake.spark.createDataFrame(values, schema).withColumn("until", f.timestamp_micros("until_us"))
    lake.append("progress", rows, Once(f"{WRITER}/{stage}", batch))


def _of_progress(*names: str) -> StructType:
    return StructType([PROGRESS[name] for name in names])
