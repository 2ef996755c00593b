"""How far each stage of the ingest is. The table `progress` is the truth; Spark's checkpoint is only a hint.

A row says that a stage has everything of a partition below `next_offset`. It is appended after everything that it
speaks of is committed. Every `JOINED_EVERY` batches a stage's rows become one for each partition and day, so that a
read costs the same however many batches there were.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StructType

from loadmanager.errors import Conflict
from loadmanager.history import utc
from loadmanager.history.lake import Lake, Once
from loadmanager.history.schemas import PROGRESS

SILVER = "silver"
LOG = "log"
"""The stage whose rows say which log a topic's records are of (`logs.py`)."""

WRITER = "ingest"
JOINED_EVERY = 25
"""After so many batches of a stage its rows are joined: until then each batch has a file of its own."""

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

    def joined(self, other: Mark) -> Mark:
        """One mark for other rows of the same partition too."""
        return Mark(
            self.topic, self.partition, max(self.next_offset, other.next_offset), self.rows + other.rows,
            max(self.until_us, other.until_us), min(self.first, other.first),
        )  # fmt: skip


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
    """Where a stage is, by the table."""
    return stages(lake).get(stage, Reached())


def stages(lake: Lake) -> dict[str, Reached]:
    """Where each stage is that has begun, in one read of the table."""
    batches: dict[str, int] = {}
    latest: dict[str, dict[Partition, Mark]] = {}
    for stage, batch, mark in _marks(lake):
        batches[stage] = batch
        latest.setdefault(stage, {})[mark.topic, mark.partition] = mark
    return {stage: Reached().after(batches[stage], marks.values()) for stage, marks in latest.items()}


def totals(lake: Lake) -> dict[str, tuple[int, int]]:
    """Of each topic how many records silver has, and the latest `appended_at` among them, in microseconds."""
    found: dict[str, tuple[int, int]] = {}
    for stage, _, mark in _marks(lake):
        if stage == SILVER:
            rows, until_us = found.get(mark.topic, (0, mark.until_us))
            found[mark.topic] = rows + mark.rows, max(until_us, mark.until_us)
    return found


def _marks(lake: Lake) -> list[tuple[str, int, Mark]]:
    """Stage, batch and mark of each row of the table, but those of LOG, by batch."""
    rows = lake.arrow("progress")
    names = ("stage", "batch", "topic", "partition", "next_offset", "rows")
    columns = [rows[name].to_pylist() for name in names] + [rows["until"].cast(pa.int64()).to_pylist()]
    marks = [(stage, batch, Mark(*mark)) for stage, batch, *mark in zip(*columns, strict=True) if stage != LOG]
    return sorted(marks, key=lambda row: row[1])


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
    once = Once(f"{WRITER}/{stage}", batch)
    if lake.folder:
        lake.put("progress", dict(zip(_ROW, map(pa.array, zip(*values, strict=True)), strict=True)), once)
    else:
        lake.append("progress", _rows(lake, values), once)
    if batch % JOINED_EVERY == JOINED_EVERY - 1:
        with suppress(Conflict):  # its files are being joined: there is a next time
            _join(lake, stage, batch)


def _join(lake: Lake, stage: str, batch: int) -> None:
    """Replace the stage's rows up to this batch by the last one of each partition and day, with the sum of `rows`.

    Rows that another stage appends meanwhile don't match the condition, and stay.
    """
    days: dict[tuple[str, int, int], tuple[int, Mark]] = {}
    for each, number, mark in _marks(lake):
        if each == stage and number <= batch:
            key = mark.topic, mark.partition, mark.until_us // utc.DAY_US
            rows = mark.rows + (days[key][1].rows if key in days else 0)
            days[key] = number, msgspec.structs.replace(mark, rows=rows)
    values = [(stage, number, m.topic, m.partition, m.next_offset, m.rows, m.until_us) for number, m in days.values()]
    lake.replace("progress", _rows(lake, values), f"stage = '{stage}' AND batch <= {batch}")


_ROW: tuple[str, ...] = ("stage", "batch", "topic", "partition", "next_offset", "rows", "until")


def _rows(lake: Lake, values: Iterable[tuple[object, ...]]) -> DataFrame:
    schema = _of_progress("stage", "batch", "topic", "partition", "next_offset", "rows").add("until_us", LongType())
    rows = lake.spark.createDataFrame(list(values), schema).coalesce(1)  # each part would be a file
    return rows.withColumn("until", f.timestamp_micros("until_us"))


def _of_progress(*names: str) -> StructType:
    return StructType([PROGRESS[name] for name in names])
