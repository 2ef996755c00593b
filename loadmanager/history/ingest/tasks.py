"""What runs in Spark's tasks for a batch: files of bronze and silver, and the replay of the channel's records.

`write_files`: a task reads each record once, and tells the driver which files it has written, how far partitions are,
and which reports it has seen. `fold_files` replays the channel's records from the files that the batch has just
written, and not from the topic, which may hold less by now: each task has whole partitions, and sorts a partition's
records of the batch in memory. What is known of the partitions comes from the driver, and what is known behind the
batch goes back to it.

Nothing counts before the driver commits the files. A task that Spark runs twice leaves files that no commit names, and
is told of once.
"""

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false
# (pyarrow ships no types)
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType

from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.errors import Invalid
from loadmanager.history.files import File, Files, extent
from loadmanager.history.ingest.positions import Mark, Partition
from loadmanager.history.ingest.records import decoded, tables
from loadmanager.history.ingest.repeats import REPORTS, Reports, reports_in
from loadmanager.history.schemas import RAW
from loadmanager.history.verdicts import KINDS, Known, fold_task, of_rows

TOLD = StructType([StructField("told", BinaryType())])
"""What a task has to tell, as bytes that Spark need not understand."""
TOLD_ARROW = to_arrow_schema(TOLD)


_State = tuple[int, int, int, int, int, bytes, int | None]
"""A row of CHANNEL_STATE."""


class Told(msgspec.Struct):
    """What a task has done. `reports` is a table of REPORTS in Arrow's format for streams."""

    files: list[File]
    marks: list[Mark] = []
    reports: bytes = b""
    states: list[_State] = []


def _telling(told: Told) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([msgspec.msgpack.encode(told)])], schema=TOLD_ARROW)


def _told(rows: DataFrame) -> list[Told]:
    return [msgspec.msgpack.decode(row["told"], type=Told) for row in rows.collect()]


class Written(msgspec.Struct, frozen=True):
    """What all tasks of a batch have done. The files of bronze are committed first, and the others may be left."""

    files: Mapping[str, list[File]]
    marks: tuple[Mark, ...]
    reports: Reports


def write_files(rows: DataFrame, folder: str, number: int) -> Written:
    """Write the files of a batch (RAW) below a lake's folder; `number` is the batch's."""
    tasks = _told(rows.select(*RAW.names).mapInArrow(partial(write_task, folder=folder, number=number), TOLD))
    reports = [pa.ipc.open_stream(task.reports).read_all() for task in tasks]
    return Written(
        by_table(file for task in tasks for file in task.files),
        tuple(joined(mark for task in tasks for mark in task.marks)),
        pa.concat_tables([REPORTS.empty_table(), *reports]),
    )


def by_table(files: Iterable[File]) -> dict[str, list[File]]:
    """The files of each table."""
    found: dict[str, list[File]] = {}
    for file in files:
        found.setdefault(file.table, []).append(file)
    return found


def write_task(batches: Iterable[pa.RecordBatch], folder: str, number: int) -> Iterator[pa.RecordBatch]:
    """Run as a task: batches of RAW into files, and one row of TOLD."""
    files, marks, reports = Files(folder), list[Mark](), list[Reports]()
    for batch in batches:
        for topic in batch["topic"].unique():
            rows = batch.filter(pc.equal(batch["topic"], topic))
            columns: dict[str, Any] = dict(zip(rows.schema.names, rows.columns, strict=True))
            files.add("bronze", columns | {"batch": pa.repeat(pa.scalar(number, pa.int64()), rows.num_rows)})
            marks = joined([*marks, *_marks(rows)])
        for part in decoded([batch]):
            for table, columns in tables(part):
                files.add(table, columns)
                if (found := reports_in(table, columns)) is not None:
                    reports.append(found)
    if marks:
        yield _telling(Told(files.close(), marks, _packed(pa.concat_tables([REPORTS.empty_table(), *reports]))))


def _marks(rows: pa.RecordBatch) -> Iterator[Mark]:
    """Of rows of one topic, a mark for each partition."""
    table = pa.table({name: rows[name] for name in ("topic", "partition", "offset")})
    table = table.append_column("us", rows["appended_at"].cast(pa.int64()))
    found = table.group_by(["topic", "partition"]).aggregate(
        [("offset", "min"), ("offset", "max"), ("offset", "count"), ("us", "max")]
    )
    for each in found.to_pylist():
        yield Mark(
            each["topic"], each["partition"], each["offset_max"] + 1, each["offset_count"], each["us_max"],
            each["offset_min"],
        )  # fmt: skip


def joined(marks: Iterable[Mark]) -> list[Mark]:
    """One mark for each partition, in order."""
    found: dict[Partition, Mark] = {}
    for mark in marks:
        key = (mark.topic, mark.partition)
        found[key] = mark.joined(found[key]) if key in found else mark
    return [found[key] for key in sorted(found)]


def _packed(table: Reports) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue().to_pybytes()


_TABLES = {"state": "channel_state", "unreadable": "quarantine"}
"""Of the kinds of a fold those that are named otherwise than their table."""

_ENTRIES_AT_ONCE = 8_192


class Replayed(msgspec.Struct, frozen=True):
    """What all tasks have done; `known` are the partitions that moved on."""

    files: Mapping[str, list[File]]
    known: Known


def fold_files(
    spark: SparkSession, folder: str, bronze: Iterable[File], known: Known, partitions: int, batch: int
) -> Replayed:
    """Replay the channel's records in these files of a lake behind what is known. Raises Invalid."""
    places = {
        f"{folder}/tables/bronze/{file.path}": extent(file, "partition")
        for file in bronze
        if file.folders["topic"] == CHANNEL_TOPIC
    }
    most = max(last for _, last in places.values())
    if most >= partitions:
        raise Invalid(f"a record is of partition {most}, but the channel is said to have {partitions}")
    begin = min(first for first, _ in places.values())
    work = {
        number: found
        for number in range(begin, most + 1)
        if (found := [place for place, (first, last) in places.items() if first <= number <= last])
    }
    tasks = min(len(work), int(spark.conf.get("spark.sql.shuffle.partitions") or partitions))
    task = partial(
        fold_files_task, folder=folder, work=work, tasks=tasks, partitions=partitions, batch=batch, known=known
    )
    told = _told(spark.range(0, tasks, 1, tasks).mapInArrow(task, TOLD))
    states = [state for each in told for state in each.states]
    return Replayed(by_table(file for each in told for file in each.files), of_rows(states))


def fold_files_task(
    batches: Iterable[pa.RecordBatch],
    folder: str,
    work: Mapping[int, Sequence[str]],
    tasks: int,
    partitions: int,
    batch: int,
    known: Known,
) -> Iterator[pa.RecordBatch]:
    """Run as a task: of numbers of tasks, their partitions' files into files, and one row of TOLD."""
    files, states = Files(folder), list[_State]()
    mine = [n for numbers in batches for task in numbers["id"].to_pylist() for n in work if n % tasks == task]
    entries = (rows for number in mine for rows in _entries(number, work[number]))
    for lists in fold_task(entries, partitions, batch, known):
        for kind in KINDS:
            rows = lists[kind].flatten()
            if len(rows) == 0:
                continue
            columns: dict[str, Any] = dict(zip(rows.type.names, rows.flatten(), strict=True))
            files.add(_TABLES.get(kind, kind), columns)
            if kind == "state":
                states += zip(*(column.to_pylist() for column in columns.values()), strict=True)
    yield _telling(Told(files.close(), states=states))


def _entries(partition: int, paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """A partition's records in these files, in order, as `fold_task` takes them."""
    names = ["partition", "offset", "key", "value", "appended_at"]
    found = [pq.ParquetFile(path).read(names) for path in paths]
    rows = pa.concat_tables([rows.filter(pc.equal(rows["partition"], partition)) for rows in found]).sort_by("offset")
    rows = rows.set_column(4, "appended_us", rows["appended_at"].cast(pa.int64()))
    yield from rows.to_batches(_ENTRIES_AT_ONCE)
