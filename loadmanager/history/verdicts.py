"""The verdict on each record of the channel: a replay of the log, per partition in offset order, as DataFrames.

    known(state, …) ─▶ where each partition's replay stands, and whether it waits before a record of a newer format
    seed(snapshots, …) ─▶ a state for partitions whose beginning was trimmed before the lake had it
    fold(raw, known, …) ─▶ verdicts, transitions, unreadable records, and the state after them

Verdicts are those of production: `ChannelCore.apply`, one record after the other (`PartitionFold`). A log partition is
sequential by nature: it comes to one task in offset order, and is streamed through Python. Partitions run in parallel.
A task keeps one partition's table and some thousand rows; never a whole batch. How records are cut into batches changes
no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.errors import Invalid
from loadmanager.history.schemas import CHANNEL, CHANNEL_STATE, QUARANTINE, TRANSITION
from loadmanager.history.tasks import ArrowBatch, Row, Rows, lists_of, spread, structs, unsearched
from statechannel.errors import BadSnapshot, CorruptRecord, NewerRecord
from statechannel.law import codec
from statechannel.law.bundle import Bundle
from statechannel.law.partition import PartitionState
from statechannel.law.record import Record
from statechannel.law.snapshot import Decoding, SnapshotInfo, SnapshotsReader, encode, opened, sealed
from statechannel.law.verdict import Change, Refusal, Transition
from statechannel.ports import LogEntry
from statechannel.runtime.core import ChannelCore

__all__ = ["SEEDED", "Folded", "Known", "Position", "fold", "known", "of_rows", "positions", "seed"]


class Folded(msgspec.Struct, frozen=True):
    """The results of a replay.

    Every table is made from `lists`: persist that before you use more than one, because the replay takes the time.
    """

    lists: DataFrame

    @property
    def channel(self) -> DataFrame:
        """Rows of `schemas.CHANNEL`: every readable record, with its verdict."""
        return self._of("channel")

    @property
    def transition(self) -> DataFrame:
        """Rows of `schemas.TRANSITION`."""
        return self._of("transition")

    @property
    def state(self) -> DataFrame:
        """Rows of `schemas.CHANNEL_STATE`, of partitions whose state changed."""
        return self._of("state")

    @property
    def unreadable(self) -> DataFrame:
        """Rows of `schemas.QUARANTINE`."""
        return self._of("unreadable")

    def _of(self, kind: str) -> DataFrame:
        return self.lists.where(f.col(kind).isNotNull()).select(f.inline(kind))


def fold(raw_channel: DataFrame, known: Known, partitions: int, batch: int) -> Folded:
    """Replay the records of a batch (rows of `schemas.RAW`, in any order) behind what was replayed before.

    `partitions` is how many the channel has. `known` are the states of earlier batches only, so that a batch that is
    run again gives the same rows. A partition that waits before a record of a newer format goes on when a release that
    reads it gets all records from `Position.next_offset` on; until then its records yield no rows. Raises Invalid.
    """
    if partitions < 1:
        raise Invalid(f"a channel has 1 partition or more, not {partitions}")
    task_limit = int(raw_channel.sparkSession.conf.get("spark.sql.shuffle.partitions") or partitions)
    records = raw_channel.select(
        "partition", "offset", "key", f.col("value").alias("data"), f.unix_micros("appended_at").alias("appended_us")
    )
    ordered = spread(records, f.col("partition"), min(partitions, task_limit))
    ordered = ordered.sortWithinPartitions("partition", "offset")
    task = partial(fold_task, partitions=partitions, batch=batch, known=known)
    return Folded(ordered.mapInArrow(task, LISTS))


Entry = tuple[int, int, bytes | None, bytes | None, int]
"""partition, offset, key, data, appended_us."""


def entries(batches: Iterable[ArrowBatch]) -> Iterator[Entry]:
    """The rows of Arrow batches as tuples, a batch at a time."""
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def fold_task(batches: Iterable[ArrowBatch], partitions: int, batch: int, known: Known) -> Iterator[ArrowBatch]:
    """Run as a task: batches of entries of whole partitions, ordered by partition and offset, into LISTS."""
    rows = Rows(KINDS)
    with unsearched():
        for partition, of_partition in groupby(entries(batches), key=itemgetter(0)):
            if partition >= partitions:
                raise Invalid(f"a record is of partition {partition}, but the channel is said to have {partitions}")
            folding = PartitionFold(partition, partitions, batch, rows)
            if partition in known.positions:
                folding.resume(known.positions[partition], known.chunks[partition])
            for _, offset, key, data, appended_us in of_partition:
                folding.take(offset, key, data, appended_us)
                if rows.full:
                    yield from rows.drain()
            folding.finish()
            yield from rows.drain()


_BEFORE_ALL = "the log was trimmed before this was kept, and no snapshot says what came before"
_BEFORE_STATE = "the log was trimmed before this was kept; what is known begins at offset {}"


class PartitionFold:
    """One partition in one batch: `resume`, then `take` each entry, then `finish`."""

    def __init__(self, partition: int, partitions: int, batch: int, rows: Rows) -> None:
        self.partition = partition
        self._batch = batch
        self._channel, self._transition = rows["channel"], rows["transition"]
        self._state, self._unreadable = rows["state"], rows["unreadable"]
        self._core = ChannelCore(partitions)
        self._begin = 0
        self._chunks: Sequence[bytes] = ()
        self._last: Origin | None = None
        self._held: int | None = None
        self._was_held: int | None = None
        self._seeded = False
        self._lost = False

    def resume(self, position: Position, chunks: Sequence[bytes]) -> None:
        """Go on from the state in these chunks; they are decoded when the first entry to be judged comes."""
        self._begin, self._chunks = position.next_offset, chunks
        self._seeded = position.batch == SEEDED
        self._held = self._was_held = position.held

    def take(self, offset: int, key: bytes | None, value: bytes | None, appended_us: int) -> None:
        """The next entry; offsets may come again, but not go back. Raises BadSnapshot, NewerRecord of the state."""
        if self._last is None:
            self._open(offset)
        elif offset <= self._last.offset:
            return
        elif offset > max(self._begin, self._last.offset + 1):
            self._lost = True
        self._last = origin = Origin(self.partition, offset, appended_us)
        if self._held is not None:
            return
        if self._lost or offset < self._begin:
            if self._lost or self._seeded:
                self._take_unjudged(origin, key, value)
            return
        self._judge(origin, key, value)

    def _open(self, first: int) -> None:
        """Decide by the first offset whether the state before it is known, and whether waiting records have come."""
        self._lost = first > self._begin
        if self._held is not None and self._held <= codec.NEWEST_VERSION and first <= self._begin:
            self._held = None
        if self._held is None and self._chunks and not self._lost:
            self._core.table.restore(unpacked(self.partition, self._chunks))
            self._chunks = ()

    def _judge(self, origin: Origin, key: bytes | None, value: bytes | None) -> None:
        try:
            applied = self._core.apply(LogEntry(origin.partition, origin.offset, key, value, 0))
        except NewerRecord as error:
            self._hold(origin, key, value, str(error))
            return
        record, verdict = applied.record, applied.verdict
        if record is None or verdict is None or value is None:
            self._unreadable.append(unreadable_row(CHANNEL_TOPIC, origin, key, value, "corrupt", applied.corrupt))
            return
        self._channel.append(channel_row(origin, record, version_of(value), verdict))
        if isinstance(verdict, Change) and verdict.transitions:
            self._transition.extend(transition_rows(origin, verdict))

    def _hold(self, origin: Origin, key: bytes | None, value: bytes | None, why: str) -> None:
        self._unreadable.append(unreadable_row(CHANNEL_TOPIC, origin, key, value, "newer", why))
        self._held = version_of(value or b"")

    def _take_unjudged(self, origin: Origin, key: bytes | None, value: bytes | None) -> None:
        why = _BEFORE_ALL if self._lost else _BEFORE_STATE.format(self._begin)
        try:
            record = codec.decode(value)
        except (CorruptRecord, NewerRecord) as error:
            kind = "newer" if isinstance(error, NewerRecord) else "corrupt"
            self._unreadable.append(unreadable_row(CHANNEL_TOPIC, origin, key, value, kind, str(error)))
        else:
            self._channel.append(channel_row(origin, record, version_of(value or b""), why))

    def finish(self) -> None:
        """Write the state, if it changed."""
        advanced = self._core.table.next_offset(self.partition) > self._begin
        if self._last is not None and (advanced or self._held != self._was_held):
            cut, at_ms = self._core.table.cut(self.partition), self._last.appended_us // 1_000
            self._state.extend(packed(cut, self._batch, at_ms, self._held))


def version_of(value: bytes) -> int:
    """The format in the frame of an intact record."""
    return int(value[2:4], 16)


KINDS = {"channel": CHANNEL, "transition": TRANSITION, "state": CHANNEL_STATE, "unreadable": QUARANTINE}
LISTS = lists_of(KINDS)
"""What a fold yields."""

ACCEPTED, REFUSED, UNKNOWN = "accepted", "refused", "unknown"

_US_A_DAY = 86_400_000_000
_LAST_MS = 253_402_300_799_999
"""The end of the year 9999: Spark has no later time."""

_REFUSED_SHOWN = 10


class Origin(NamedTuple):
    """A record's position, and when the log took it."""

    partition: int
    offset: int
    appended_us: int


def written_us(record: Record, origin: Origin) -> int:
    """When the record was written by its author's clock, or by the log's where the author's time is impossible."""
    return record.at_ms * 1_000 if 0 < record.at_ms <= _LAST_MS else origin.appended_us


@lru_cache(maxsize=65_536)
def named(bundle: Bundle) -> str:
    """A bundle's name."""
    return str(bundle)


def channel_row(origin: Origin, record: Record, version: int, verdict: Change | Refusal | str) -> Row:
    """A record with its verdict; a text as verdict says why it is unknown."""
    at_us, to = written_us(record, origin), record.to
    subjects = record.subjects
    return (
        *origin,
        at_us,
        record.id,
        record.action,
        record.actor.name,
        record.actor.incarnation,
        record.role,
        record.epoch,
        [named(subject.bundle) for subject in subjects],
        [subject.seen for subject in subjects],
        to.name if to is not None else None,
        to.incarnation if to is not None else None,
        record.namespace or (subjects[0].bundle.namespace if subjects else None),
        record.cause,
        record.reason,
        version,
        *_verdict(verdict),
        at_us // _US_A_DAY,
    )


def _verdict(verdict: Change | Refusal | str) -> tuple[str, str | None, str | None]:
    if isinstance(verdict, str):
        return UNKNOWN, None, verdict
    if isinstance(verdict, Refusal):
        return REFUSED, verdict.reason, verdict.detail
    return ACCEPTED, None, _partly(verdict.refused) if verdict.refused else None


def _partly(refused: Sequence[Refusal]) -> str:
    shown = "; ".join(f"not {each.bundle}: {each.reason}" for each in refused[:_REFUSED_SHOWN])
    return f"{shown}; and {len(refused) - _REFUSED_SHOWN} more" if len(refused) > _REFUSED_SHOWN else shown


def transition_rows(origin: Origin, change: Change) -> Iterator[Row]:
    """One row for each bundle that an accepted record changed."""
    at_us = written_us(change.record, origin)
    for ordinal, transition in enumerate(change.transitions):
        yield _transition_row(origin, ordinal, at_us, change.record, transition)


def _transition_row(origin: Origin, ordinal: int, at_us: int, record: Record, transition: Transition) -> Row:
    before, after = transition.before, transition.after
    left = before.holder if before is not None else None
    holder, target = (after.holder, after.target) if after is not None else (None, None)
    bundle = transition.bundle
    return (
        *origin,
        ordinal,
        at_us,
        record.id,
        record.action,
        named(bundle),
        bundle.namespace,
        before.state if before is not None else None,
        after.state if after is not None else None,
        left.name if left is not None else None,
        left.incarnation if left is not None else None,
        holder.name if holder is not None else None,
        holder.incarnation if holder is not None else None,
        target.name if target is not None else None,
        target.incarnation if target is not None else None,
        before.revision if before is not None else None,
        after.token if after is not None else None,
        record.actor.name,
        record.role,
        record.cause,
        at_us // _US_A_DAY,
    )


def unreadable_row(topic: str, origin: Origin, key: bytes | None, value: bytes | None, kind: str, reason: str) -> Row:
    """A record that could not be read."""
    day = origin.appended_us // _US_A_DAY
    return (topic, origin.partition, origin.offset, key, value, origin.appended_us, kind, reason, day)


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


class Kept(msgspec.Struct, frozen=True):
    """A snapshot that the index lists: intact, or what is wrong with it."""

    info: SnapshotInfo
    chunks: list[bytes]
    problem: str = ""


def seed(raw_snapshots: DataFrame, first: Mapping[int, int], known: Mapping[int, Position]) -> DataFrame:
    """Rows of `schemas.CHANNEL_STATE` for partitions whose replay lacks what came before the first record.

    `raw_snapshots` are rows of `schemas.RAW`, all that the snapshots topic holds; `first` is the lowest offset of each
    partition, `known` is `positions` of the existing states. Add the rows to these states before you replay. A
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
            for row in rows(partition, SEEDED, oldest.info, oldest.chunks):
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
