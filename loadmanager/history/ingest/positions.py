"""How far each stage of the ingest is, and of which log: what says whether a run may go on from here.

The table `progress` is the truth; Spark's checkpoint is only a hint. A row says that a stage has everything of a
partition below `next_offset`. It is appended after everything that it speaks of is committed. Every `JOINED_EVERY`
batches a stage's rows become one for each partition and day, so that a read costs the same however many batches there
were.

`Logs` checks that the source still has the log that the lake's records are of, not another one under the same names.
Offsets of a recreated topic begin at 0. Its records would be taken for those that the lake has, and later ones would be
appended to the old ones. Two things tell the logs apart:

* Kafka gives each topic an id. The first one that is seen of a topic is kept with the lake, before its first record:
in `progress`, as a row of the stage `LOG`. So a run that is killed after its first record leaves no record of an
unknown topic, and releases that do not know the stage leave the rows alone.
* The embedded log's file has no ids. There the last record that is left below the lake's position must have the time
that bronze has of it, if bronze still has that record. During a run the path must lead to the same file.

`resume` reads what Spark's checkpoint of the query says: how far Spark has given each partition. It may be lost at any
time. A power failure can leave any of its files empty, cut or missing, and Spark would then fail at each start. Such a
checkpoint is dropped: Spark gives all records again, and those that the lake has are skipped by their offsets.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StructType

from loadmanager.errors import Conflict, Invalid
from loadmanager.history import utc
from loadmanager.history.files import local_root
from loadmanager.history.lake import Lake, Once
from loadmanager.history.schemas import PROGRESS
from loadmanager.history.sources import TOPICS, Source

SILVER = "silver"
LOG = "log"
"""The stage whose rows say which log a topic's records are of (`Logs`)."""

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


INSTEAD = "Offsets of another log start over, and cannot follow these: ingest it into a lake of its own (--lake)"


class Logs:
    """What a run compares its source with. Ids that are new are kept in the lake, also in one of an older release."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._file = source.file_id()
        self._ids: dict[str, str] | None = None

    def check(self, lake: Lake, at: Reached, read: Collection[str] = ()) -> None:
        """Raises Invalid where the source has another log than the lake, which is at `at`; Unavailable.

        `read` are topics of which records were read since the last check, and are not in the lake yet. A topic that
        does not exist now has no records that could be mistaken.
        """
        if self._file != self._source.file_id():
            raise Invalid("the log's file was replaced by another one while it was read: give it back, and start again")
        now = self._source.topic_ids(TOPICS)
        if self._ids is None:
            self._ids = _ids(lake)
            _check_left(lake, self._source, at)
        if new := {topic: each for topic, each in now.items() if self._ids.get(topic) != each}:
            for topic in new.keys() & self._ids.keys():
                if topic in read or _has_records(lake, at, topic):
                    raise Invalid(
                        f"topic {topic} was deleted and created again: its id is {new[topic]}, and this lake has "
                        f"records of {self._ids[topic]}. {INSTEAD}"
                    )
            _keep(lake, new)
            self._ids |= new


def _ids(lake: Lake) -> dict[str, str]:
    rows = lake.arrow("progress")
    names = ("stage", "batch", "topic", "log_id")
    kept = sorted(zip(*(rows[name].to_pylist() for name in names), strict=True), key=lambda row: row[1])
    return {topic: log_id for stage, _, topic, log_id in kept if stage == LOG}


def _keep(lake: Lake, ids: Mapping[str, str]) -> None:
    number = max(lake.arrow("progress")["batch"].to_pylist(), default=-1) + 1  # of any stage: they all grow
    values = [(LOG, number, topic, -1, 0, 0, None, log_id) for topic, log_id in ids.items()]
    lake.append("progress", lake.spark.createDataFrame(values, PROGRESS), Once(f"{WRITER}/{LOG}", number))


def _has_records(lake: Lake, at: Reached, topic: str) -> bool:
    """Nothing is wrong with a topic whose former one gave the lake no record."""
    there = lake.table("bronze").where(f.col("topic") == topic)
    return any(name == topic for name, _ in at.next_offsets) or not there.isEmpty()


def _check_left(lake: Lake, source: Source, at: Reached) -> None:
    left = source.left({key: offset - 1 for key, offset in at.next_offsets.items() if offset > 0})
    if left:
        rows = [(*key, *place) for key, place in left.items()]
        places = lake.spark.createDataFrame(rows, "topic string, partition int, offset long, us long")
        refuse_other_records(lake, places.withColumn("appended_at", f.timestamp_micros("us")))


def refuse_other_records(lake: Lake, known: DataFrame) -> None:
    """Raises Invalid where bronze has other records than `known` (topic, partition, offset, `appended_at`)."""
    there = lake.table("bronze").select("topic", "partition", "offset", "appended_at")
    sought = known.select("topic", "partition", "offset", f.col("appended_at").alias("now"))
    other = there.join(f.broadcast(sought), ["topic", "partition", "offset"])
    found = other.where(f.col("appended_at") != f.col("now")).first()
    if found is not None:
        raise Invalid(
            f"{found['topic']}/{found['partition']} has another record at offset {found['offset']} than this lake: the "
            f"topic was created again. {INSTEAD}"
        )


_log = logging.getLogger(__name__)

_LINES = {"metadata": 1, "offsets": 3, "commits": 2, "sources": 2}
"""The lines of a file: JSON, behind a version if there are several. `offsets` ends with the offsets of the source."""
CHECKSUM = ".crc"
"""Hadoop's ending for the checksum of a file on a disk, which is hidden beside it."""
_VERSION = re.compile(r"\0?v\d+")

Files = Mapping[str, str | None]
"""Texts by path below the checkpoint; None for a file that cannot be read."""


def resume(spark: SparkSession, checkpoint: str, at: Reached) -> frozenset[Partition]:
    """The partitions that Spark has given up to the lake's position, `at`, or further; none without a checkpoint.

    Of a batch that was begun and not finished the end counts: the next run begins with it. A checkpoint that Spark
    could not go on from is dropped.
    """
    files = _files(spark, checkpoint)
    if damaged := _damaged(files):
        _log.warning(
            "%s/%s is damaged or missing: the checkpoint is dropped, and the log is read again from its beginning; "
            "records that the lake has are skipped",
            checkpoint,
            damaged,
        )
        spark.range(0).select(f.lit("").alias("value")).write.mode("overwrite").text(checkpoint)
        files = {}
    given = _offsets(files)
    return frozenset(key for key, offset in at.next_offsets.items() if given.get(key, -1) >= offset)


def _files(spark: SparkSession, checkpoint: str) -> Files:
    """All files, as Spark reads them: by their checksums too. One whose checksum alone is left is in Spark's way."""
    reader = spark.read.options(__globPaths__="false", ignoreCorruptFiles="true")  # a name is not a pattern
    try:
        files = reader.text(checkpoint, wholetext=True, recursiveFileLookup=True)
        texts = {
            row["name"]: row["value"] for row in files.select(f.input_file_name().alias("name"), "value").collect()
        }
    except AnalysisException:
        return {}
    _, query, version = checkpoint.rsplit("/", 2)
    found = {name.rpartition(f"/{query}/{version}/")[2]: texts.get(name) for name in files.inputFiles()}
    if folder := local_root(spark, checkpoint):
        lost = (each.with_name(each.name[1 : -len(CHECKSUM)]) for each in Path(folder).rglob(f".*{CHECKSUM}"))
        found = {str(each.relative_to(folder)): None for each in lost if not each.name.startswith(".")} | found
    return {name: text for name, text in found.items() if name.partition("/")[0] in _LINES}


def _damaged(files: Files) -> str:
    """The name of a file without which Spark cannot go on; empty if there is none."""
    if not files:
        return ""
    for name in sorted({"metadata", *files}):
        if not _is_whole(files.get(name), _LINES[name.partition("/")[0]]):
            return name
    offsets, commits = _numbers(files, "offsets"), _numbers(files, "commits")
    last, done = max(offsets, default=-1), max(commits, default=-1)
    if done > last:
        return f"offsets/{done}"
    if last > 0 and last - 1 not in offsets:
        return f"offsets/{last - 1}"
    return f"commits/{last - 1}" if done < last - 1 else ""


def _is_whole(text: str | None, count: int) -> bool:
    lines = (text or "").splitlines()
    if len(lines) != count or (count > 1 and not _VERSION.fullmatch(lines[0])):
        return False
    try:
        for line in lines[count > 1 :]:
            msgspec.json.decode(line)
    except msgspec.DecodeError:
        return False
    return True


def _numbers(files: Files, folder: str) -> set[int]:
    return {
        int(number) for name in files for of, _, number in [name.partition("/")] if of == folder and number.isdecimal()
    }


def _offsets(files: Files) -> dict[Partition, int]:
    """Those of the newest batch."""
    numbers = _numbers(files, "offsets")
    if not numbers:
        return {}
    *_, last = (files[f"offsets/{max(numbers)}"] or "").splitlines()
    offsets = msgspec.json.decode(last, type=dict[str, dict[int, int]])
    names = {full: next((name for name in TOPICS if full.endswith(name)), full) for full in offsets}
    return {(names[full], number): offset for full, each in offsets.items() for number, offset in each.items()}
