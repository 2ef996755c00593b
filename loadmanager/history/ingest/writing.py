"""Writes a batch's files in Spark's tasks: bronze, the silver tables of decoded records, and their quarantine.

A task reads each record once, and tells the driver which files it has written, how far partitions are, and which
reports it has seen. Nothing counts before the driver commits the files. A task that Spark runs twice leaves files that
no commit names, and is told of once.
"""

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false
# (pyarrow ships no types)
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType

from loadmanager.history.decoding.records import decoded
from loadmanager.history.decoding.tables import tables
from loadmanager.history.files import File, Files
from loadmanager.history.ingest.progress import Mark, Partition
from loadmanager.history.ingest.repeats import REPORTS, Reports, reports_in
from loadmanager.history.schemas import RAW

TOLD = StructType([StructField("told", BinaryType())])
"""What a task has to tell, as bytes that Spark need not understand."""
TOLD_ARROW = to_arrow_schema(TOLD)


class Told(msgspec.Struct):
    """What a task has done. `reports` is a table of REPORTS in Arrow's format for streams."""

    files: list[File]
    marks: list[Mark]
    reports: bytes


class Written(msgspec.Struct, frozen=True):
    """What all tasks of a batch have done. The files of bronze are committed first, and the others may be left."""

    files: Mapping[str, list[File]]
    marks: tuple[Mark, ...]
    reports: Reports


def write_files(rows: DataFrame, folder: str, number: int) -> Written:
    """Write the files of a batch (RAW) below a lake's folder; `number` is the batch's."""
    told = rows.select(*RAW.names).mapInArrow(partial(write_task, folder=folder, number=number), TOLD).collect()
    tasks = [msgspec.msgpack.decode(row["told"], type=Told) for row in told]
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
        told = Told(files.close(), marks, _packed(pa.concat_tables([REPORTS.empty_table(), *reports])))
        yield pa.RecordBatch.from_arrays([pa.array([msgspec.msgpack.encode(told)])], schema=TOLD_ARROW)


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
