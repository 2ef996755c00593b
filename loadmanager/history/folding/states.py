"""The state of a partition's replay as rows of `schemas.CHANNEL_STATE`, and back.

Chunk 0 describes the others (`snapshot.SnapshotInfo`, with their checksum); the other chunks are those of a snapshot of
the channel. The state in force is the one with the highest offset; of equals, that of the later batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.history.folding.lists import Row
from loadmanager.history.schemas import CHANNEL_STATE
from statechannel.errors import BadSnapshot
from statechannel.law.partition import PartitionState
from statechannel.law.snapshot import Decoding, SnapshotInfo, encode, opened, sealed

SEEDED = -1
"""The `batch` of a state that came from the channel's own snapshots."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(SnapshotInfo).decode


class Position(msgspec.Struct, frozen=True):
    """Where a partition's replay stands: everything below `next_offset` is in it.

    `held` is the format of the next record if it was too new for every release so far; the replay goes on with a
    release that reads it.
    """

    batch: int
    next_offset: int
    held: int | None = None


class Known(msgspec.Struct, frozen=True):
    """Where partitions stand, and the chunks of exactly these states, in order."""

    positions: Mapping[int, Position] = {}
    chunks: Mapping[int, Sequence[bytes]] = {}

    def behind(self, moved: Known) -> Known:
        """Where partitions stand after a batch that moved these."""
        return Known({**self.positions, **moved.positions}, {**self.chunks, **moved.chunks})


def packed(state: PartitionState, batch: int, at_ms: int, held: int | None = None) -> Iterator[Row]:
    """A state in rows; `at_ms` is when its last record was taken by the log."""
    *chunks, info = encode(state, f"batch-{batch}", at_ms)
    assert isinstance(info, SnapshotInfo)
    return rows(state.partition, batch, info, [chunk.value for chunk in chunks if chunk.value is not None], held)  # type: ignore[union-attr]


def rows(
    partition: int, batch: int, info: SnapshotInfo, chunks: Sequence[bytes], held: int | None = None
) -> Iterator[Row]:
    """The rows of a snapshot's chunks."""
    total = 1 + len(chunks)
    for number, data in enumerate((sealed(_pack(info)), *chunks)):
        yield (partition, batch, info.next_offset, number, total, data, held)


def unpacked(partition: int, chunks: Iterable[bytes]) -> PartitionState:
    """The state in the chunks of one position, in order. Raises BadSnapshot, NewerRecord."""
    first, *others = chunks
    try:
        info = _unpack(opened(first))
    except msgspec.MsgspecError as error:
        raise BadSnapshot(f"the state of partition {partition} cannot be read: {error}") from None
    if info.chunks != len(others):
        raise BadSnapshot(f"the state of partition {partition} has {len(others)} of {info.chunks} chunks")
    decoding = Decoding(partition, info, others)
    for _ in decoding:
        pass
    return decoding.state()


def positions(state: DataFrame, before: int | None = None) -> dict[int, Position]:
    """Where each partition's fold stands; with `before`, as of the batches before that one. One row a partition."""
    heads = state.where(f.col("chunk") == 0)
    if before is not None:
        heads = heads.where(f.col("batch") < before)
    best = f.max_by(f.struct("batch", "next_offset", "held"), f.struct("next_offset", "batch")).alias("best")
    found = heads.groupBy("partition").agg(best).select("partition", "best.*").collect()
    return {row["partition"]: Position(row["batch"], row["next_offset"], row["held"]) for row in found}


def known(state: DataFrame, before: int) -> Known:
    """Where partitions stand as of the batches before that one, and the chunks of it."""
    there = positions(state, before)
    return of_rows(chosen(state, there).collect()) if there else Known()


def of_rows(rows: Iterable[Sequence[Any]]) -> Known:
    """The states in rows of CHANNEL_STATE, with one state for each partition."""
    there: dict[int, Position] = {}
    chunks: dict[int, list[bytes]] = {}
    for partition, batch, next_offset, _, _, data, held in sorted(rows, key=lambda row: (row[0], row[3])):
        there[partition] = Position(batch, next_offset, held)
        chunks.setdefault(partition, []).append(bytes(data))
    return Known(there, chunks)


def chosen(state: DataFrame, wanted: Mapping[int, Position]) -> DataFrame:
    """The rows of these positions."""
    batches = sorted({position.batch for position in wanted.values()})
    keys = state.sparkSession.createDataFrame(
        [(partition, position.batch, position.next_offset) for partition, position in wanted.items()],
        "partition int, batch long, next_offset long",
    )
    near = state.where(f.col("batch").isin(batches))
    return near.join(f.broadcast(keys), ["partition", "batch", "next_offset"], "left_semi").select(*CHANNEL_STATE.names)
