"""Initial states from the channel's own snapshots topic, where the log was trimmed before the lake had it.

The seed of a partition is the oldest intact snapshot that leaves no hole before the first record there is, so that most
records get a verdict. Records before the snapshot are `unknown`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from operator import itemgetter

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.history.folding import states
from loadmanager.history.folding.lists import ArrowBatch, structs
from loadmanager.history.folding.spreading import spread
from loadmanager.history.schemas import CHANNEL_STATE
from statechannel.errors import BadSnapshot
from statechannel.law.snapshot import SnapshotInfo, SnapshotsReader
from statechannel.ports import LogEntry


class Kept(msgspec.Struct, frozen=True):
    """A snapshot that the index lists: intact, or what is wrong with it."""

    info: SnapshotInfo
    chunks: list[bytes]
    problem: str = ""


def seed(raw_snapshots: DataFrame, first: Mapping[int, int], known: Mapping[int, states.Position]) -> DataFrame:
    """Rows of `schemas.CHANNEL_STATE` for partitions whose replay lacks what came before the first record.

    `raw_snapshots` are rows of `schemas.RAW`, all that the snapshots topic holds; `first` is the lowest offset of each
    partition, `known` is `folding.positions` of the existing states. Add the rows to these states before you replay. A
    partition that needs a seed and has no usable snapshot gets none: its records stay `unknown`.
    """
    needed = {
        partition: offset
        for partition, offset in first.items()
        if offset > (known[partition].next_offset if partition in known else 0)
    }
    entries = raw_snapshots.where(f.col("partition").isin(sorted(needed))).select("partition", "offset", "key", "value")
    ordered = spread(entries, f.col("partition"), max(1, len(needed))).sortWithinPartitions("partition", "offset")
    return ordered.mapInArrow(partial(seed_task, needed=needed), CHANNEL_STATE)


def seed_task(batches: Iterable[ArrowBatch], needed: Mapping[int, int]) -> Iterator[ArrowBatch]:
    """Run as a task: batches of (partition, offset, key, value) of whole partitions in order, into CHANNEL_STATE."""
    for partition, kept in read(batches):
        usable = (each for each in kept if each.info.next_offset >= needed[partition] and not each.problem)
        oldest = next(usable, None)
        if oldest is not None:
            for row in states.rows(partition, states.SEEDED, oldest.info, oldest.chunks):
                yield pa.RecordBatch.from_struct_array(structs(CHANNEL_STATE, [row]))


def read(batches: Iterable[ArrowBatch]) -> Iterator[tuple[int, list[Kept]]]:
    """The snapshots of each partition, oldest first, from Arrow batches of (partition, offset, key, value) in order."""
    rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
    for partition, of_partition in groupby(rows, key=itemgetter(0)):
        reader = SnapshotsReader(partition)
        for _, offset, key, value in of_partition:
            reader.take(LogEntry(partition, offset, key, value, 0))
        infos = reader.index.snapshots if reader.index is not None else ()
        yield partition, [_kept(reader, info) for info in infos]


def _kept(reader: SnapshotsReader, info: SnapshotInfo) -> Kept:
    try:
        for _ in reader.checking(info.snapshot_id):
            pass
        return Kept(info, reader.chunks(info.snapshot_id))
    except BadSnapshot as error:
        return Kept(info, [], str(error))
