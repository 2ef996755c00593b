"""Replays a batch's records of the channel from bronze's files, and writes the rows' files, in Spark's tasks.

The tasks read the files that the batch has just written, and not the topic, which may hold less by now. Each task has
whole partitions; it sorts a partition's records of the batch in memory. What is known of the partitions comes from the
driver, and what is known behind the batch goes back to it.
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
from pyspark.sql import SparkSession

from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.errors import Invalid
from loadmanager.history.files import File, Files, extent
from loadmanager.history.folding import Known, of_rows
from loadmanager.history.folding.job import fold_task
from loadmanager.history.folding.rows import KINDS
from loadmanager.history.ingest.writing import TOLD, TOLD_ARROW, by_table

_TABLES = {"state": "channel_state", "unreadable": "quarantine"}
"""Of the kinds of a fold those that are named otherwise than their table."""

_ENTRIES_AT_ONCE = 8_192
_State = tuple[int, int, int, int, int, bytes, int | None]
"""A row of CHANNEL_STATE."""


class Told(msgspec.Struct):
    """What a task has done."""

    files: list[File]
    states: list[_State]


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
    rows = spark.range(0, tasks, 1, tasks).mapInArrow(task, TOLD).collect()
    told = [msgspec.msgpack.decode(row["told"], type=Told) for row in rows]
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
    told = msgspec.msgpack.encode(Told(files.close(), states))
    yield pa.RecordBatch.from_arrays([pa.array([told])], schema=TOLD_ARROW)


def _entries(partition: int, paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """A partition's records in these files, in order, as `fold_task` takes them."""
    names = ["partition", "offset", "key", "value", "appended_at"]
    found = [pq.ParquetFile(path).read(names) for path in paths]
    rows = pa.concat_tables([rows.filter(pc.equal(rows["partition"], partition)) for rows in found]).sort_by("offset")
    rows = rows.set_column(4, "appended_us", rows["appended_at"].cast(pa.int64()))
    yield from rows.to_batches(_ENTRIES_AT_ONCE)
