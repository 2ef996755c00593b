"""Replays a partition of the channel, independently of every replica, from a snapshot or the log's beginning.

Replay gives each record the same verdict as before. So the channel history learns the fate of each record that the
log still has, and an auditor can check replicas and snapshots. Replay works in steps of a few milliseconds, for a loop
that has other work.

`Loading` puts a partition's newest usable snapshot into a live table. It refuses a snapshot that is foreign or reaches
beyond the log. If the newest is damaged, an older one and the log after it give the same state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import cast

import msgspec

from statechannel.errors import BadSnapshot, CorruptRecord, NewerRecord, Trimmed
from statechannel.law import codec
from statechannel.law.partition import ClusterIdentity, PartitionState
from statechannel.law.record import Action
from statechannel.law.snapshot import SNAPSHOTS, Decoding, Index, SnapshotInfo, SnapshotsReader
from statechannel.law.table import OwnershipTable
from statechannel.ports import Log, LogEntry
from statechannel.runtime.core import Applied, ChannelCore
from statechannel.runtime.tasks import Blocking, all_or_first_failure

_log = logging.getLogger(__name__)

STEP_S = 0.004
LOOK_EVERY = 16
"""Entries between two looks at the clock."""

HEAVY_BYTES = 16 * 1024
HEAVY_BUNDLES = 2_000
"""A larger record, or one that reshapes a larger table, takes longer than a step may."""

HEAVY_SNAPSHOT_BYTES = 2 << 20
"""A larger snapshot takes longer than a step may, since its checksum is one step."""

_OF_ALL = (b'"lead"', b'"genesis"', b'"retire"', b'"amend"', b'"agree"', b"\\")
"""Marks of records that concern every namespace; and the backslash, for a name may be escaped (not by our encoder)."""

_RESHAPING = (b'"create"', b'"merge"', b'"create-namespace"', b'"delete-namespace"')


class Folded(msgspec.Struct, frozen=True, gc=False):
    """An entry of the log and its outcome."""

    entry: LogEntry
    applied: Applied


class Replay:
    """Replays one partition. With `namespace` only its records: quicker, but the table's digest means nothing.

    `elsewhere` runs the few long steps; without it they run on the loop. `rest_s` is the pause after each step: without
    a pause the scheduler of a busy machine throttles us and stalls the loop.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        partition: int,
        partitions: int,
        namespace: str | None = None,
        elsewhere: Blocking | None = None,
        rest_s: float = 0.0,
    ) -> None:
        self._log = log
        self._topic = topic
        self._partition = partition
        self._namespace = namespace
        self._elsewhere = elsewhere
        self._rest_s = rest_s
        self._core = ChannelCore(partitions, codec.NEWEST_VERSION)
        self.begin = 0
        """The first offset that is replayed."""
        self.log_begin = 0
        """The log's first offset at `open`."""
        self.snapshot: SnapshotInfo | None = None
        """The snapshot to begin with; None at the log's very beginning."""

    @property
    def table(self) -> OwnershipTable:
        """The table as of the last entry replayed; its other partitions are empty."""
        return self._core.table

    async def open(self, before: int | None = None) -> None:
        """Begin with the oldest usable state; with `before`, with the newest that covers no more than that, if any.

        Raises LogUnavailable, NewerRecord, or BadSnapshot if there is no usable state.
        """
        problems, looked_at = list[str](), -1
        for _ in range(ATTEMPTS):  # the log may be trimmed behind a newer snapshot while we read the older ones
            snapshots = await read_snapshots(self._log, self._topic + SNAPSHOTS, self._partition)
            self.log_begin = (await self._log.begins(self._topic))[self._partition]
            problems = []
            for info in self._candidates(snapshots, before):
                if info is None or await self._restored(snapshots, info, problems):
                    self.snapshot, self.begin = info, 0 if info is None else info.next_offset
                    return
            if self.log_begin == looked_at:
                break
            looked_at = self.log_begin
        raise BadSnapshot(
            f"partition {self._partition} of {self._topic} begins at offset {self.log_begin}, and no snapshot says "
            f"what came before: {'; '.join(problems) or 'there is none'}"
        )

    def _candidates(self, snapshots: SnapshotsReader, before: int | None) -> Iterable[SnapshotInfo | None]:
        """The states to begin with, best first; None is the empty table at offset 0."""
        listed = snapshots.index.snapshots if snapshots.index is not None else ()
        usable = [info for info in listed if info.next_offset >= self.log_begin]
        oldest_first: list[SnapshotInfo | None] = [*([None] if self.log_begin == 0 else []), *usable]
        late_enough = [c for c in oldest_first if before is not None and (c is None or c.next_offset <= before)]
        return [*reversed(late_enough), *(c for c in oldest_first if c not in late_enough)]

    async def _restored(self, snapshots: SnapshotsReader, info: SnapshotInfo, problems: list[str]) -> bool:
        try:
            checked = partial(snapshots.decoding, info.snapshot_id)
            decoding = cast("Decoding", await self._call(checked, info.size_bytes > HEAVY_SNAPSHOT_BYTES))
            for _ in decoding:
                await asyncio.sleep(self._rest_s)
            state = self._concerning(decoding.state())
        except BadSnapshot as error:
            problems.append(str(error))
            return False
        await self._call(partial(self.table.restore, state), state.bundles > HEAVY_BUNDLES)
        return True

    def _concerning(self, state: PartitionState) -> PartitionState:
        if self._namespace is None:
            return state
        return msgspec.structs.replace(
            state, namespaces=tuple(n for n in state.namespaces if n.name == self._namespace), leaving=(), arrived=()
        )

    async def run(self, until: int | None = None) -> AsyncIterator[Folded]:
        """Replay up to the log's present end, or below `until` if given. May be called again, to go on.

        With a namespace, skips entries that cannot concern it. Raises what `Log.read` raises, and NewerRecord.
        """
        start = self.table.next_offset(self._partition)
        if until is not None and start >= until:
            return
        wanted = None if self._namespace is None else f'"{self._namespace}"'.encode()
        batches = self._log.read(self._topic, self._partition, start)
        pace = Pace()
        async with aclosing(batches):
            async for batch in batches:
                for entry in batch:
                    if until is not None and entry.offset >= until:
                        return
                    if wanted is None or _concerns(entry.value, wanted):
                        yield Folded(entry, await self._apply(entry))
                    if pace.is_over():
                        await asyncio.sleep(self._rest_s)
                        pace.begin()

    async def _apply(self, entry: LogEntry) -> Applied:
        return cast("Applied", await self._call(partial(self._core.apply, entry), self._is_heavy(entry.value)))

    def _is_heavy(self, value: bytes | None) -> bool:
        if value is None:
            return False
        if len(value) > HEAVY_BYTES:
            return True
        return len(self.table) > HEAVY_BUNDLES and any(mark in value for mark in _RESHAPING)

    async def _call(self, work: Callable[[], object], heavy: bool) -> object:
        return await self._elsewhere(work) if heavy and self._elsewhere is not None else work()


class Pace:
    """Tells when a step has lasted long enough; looks at the clock only every LOOK_EVERY calls."""

    def __init__(self, step_s: float = STEP_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._step_s = step_s
        self._looked = 0
        self._until_s = self._loop.time() + step_s

    def begin(self) -> None:
        """Begin a new step."""
        self._until_s = self._loop.time() + self._step_s

    def is_over(self) -> bool:
        """Whether the step is over; ask after each piece of work."""
        self._looked += 1
        return self._looked % LOOK_EVERY == 0 and self._loop.time() >= self._until_s


def _concerns(value: bytes | None, wanted: bytes) -> bool:
    return value is not None and (wanted in value or any(mark in value for mark in _OF_ALL))


RESTORED_AT_ONCE = 2
"""Namespaces, or holders, restored in one turn of the loop."""

ATTEMPTS = 5
"""More than one, because the log may be trimmed behind a newer snapshot while we read the older ones."""

Restored = tuple[SnapshotInfo | None, list[str]]


class Found(msgspec.Struct, frozen=True):
    """The snapshots of a partition, and where its log began and ended after they were read."""

    snapshots: SnapshotsReader
    begin: int
    end: int


class Loading:
    """Loads snapshots for one replica; all its partitions must come from one log."""

    def __init__(self, log: Log, topic: str, snapshots_topic: str, table: OwnershipTable) -> None:
        self._log = log
        self._topic = topic
        self._snapshots_topic = snapshots_topic
        self._table = table
        self._snapshots_of: ClusterIdentity | None = None

    def check_identity(self, cluster_identity: ClusterIdentity) -> None:
        """Raises BadSnapshot if a snapshot that was loaded belongs to another log than this genesis record."""
        if self._snapshots_of is not None and self._snapshots_of != cluster_identity:
            raise BadSnapshot(
                f"the snapshots belong to {self._snapshots_of}, the log to {cluster_identity}: one of the two topics "
                "was replaced; restore both from one backup"
            )

    async def find(self, partitions: Sequence[int]) -> dict[int, Found]:
        """What the log has of these partitions, read side by side. Raises LogUnavailable, NewerRecord."""
        read = dict[int, SnapshotsReader]()

        async def read_one(partition: int) -> None:
            read[partition] = await read_snapshots(self._log, self._snapshots_topic, partition)

        await all_or_first_failure(read_one(partition) for partition in partitions)
        begins, ends = await self._log.begins(self._topic), await self._log.ends(self._topic)
        return {partition: Found(read[partition], begins[partition], ends[partition]) for partition in partitions}

    async def load(self, partition: int, found: Found | None = None) -> SnapshotInfo | None:
        """Restore the newest usable snapshot that covers more than the table; None if the log alone suffices.

        `found` is what `find` has found just now. Raises LogUnavailable, NewerRecord, or BadSnapshot: neither a
        snapshot nor the log has what the table lacks, or the snapshots are of another log.
        """
        begin, problems = 0, list[str]()
        for _ in range(ATTEMPTS):
            present, found = found or (await self.find((partition,)))[partition], None
            reader, begin = present.snapshots, present.begin
            if reader.index is not None:
                self._check_index(partition, reader.index, present.end)
                if partition == 0 and begin == 0 and self._table.next_offset(0) == 0:
                    await self._check_beginning(reader.index.cluster_identity)
            info, problems = await self._restore_newest(partition, reader, begin)
            if info is not None:
                return info
            if begin <= self._table.next_offset(partition):
                for problem in problems:  # nothing was lost: the log has it all
                    _log.warning("%s", problem)
                return None
        raise BadSnapshot(
            f"partition {partition} of {self._topic} begins at offset {begin}, and no snapshot says what came before: "
            f"{'; '.join(problems) or 'there is none'}. Restore the topic {self._snapshots_topic} from a backup"
        )

    def _check_index(self, partition: int, index: Index, end: int) -> None:
        known = self._table.cluster_identity or self._snapshots_of
        if known is not None and known != index.cluster_identity:
            raise BadSnapshot(
                f"the snapshots of partition {partition} belong to {index.cluster_identity}, the channel to {known}: "
                "one of the two topics was replaced; restore both from one backup"
            )
        self._snapshots_of = index.cluster_identity
        if index.newest.next_offset > end:
            raise BadSnapshot(
                f"a snapshot covers partition {partition} of {self._topic} up to {index.newest.next_offset}, but the "
                f"log ends at {end}: it is another log or lost its end; restore it before anything writes to it"
            )

    async def _check_beginning(self, cluster_identity: ClusterIdentity) -> None:
        """A log that still begins with its genesis record must begin with that of the snapshots.

        Nothing else would detect a foreign snapshot: the replica reads the log only behind it.
        """
        batches = self._log.read(self._topic, 0, 0)
        try:
            async with aclosing(batches):
                first = await anext(batches, None)
            record = codec.decode(first[0].value) if first else None
        except (Trimmed, CorruptRecord, NewerRecord):
            return
        if record is not None and record.action is Action.GENESIS and record.id != cluster_identity.identity:
            raise BadSnapshot(
                f"the snapshots of {self._topic} belong to {cluster_identity}, the log begins as {record.id!r} of "
                f"cluster {record.cluster!r}: one of the two topics was replaced; restore both from one backup"
            )

    async def _restore_newest(self, partition: int, reader: SnapshotsReader, begin: int) -> Restored:
        """The snapshot that was restored, and why newer ones were not."""
        problems: list[str] = []
        for info in reversed(reader.index.snapshots if reader.index else ()):
            if info.next_offset < begin or info.next_offset <= self._table.next_offset(partition):
                break
            try:
                decoding = reader.decoding(info.snapshot_id)
                for _ in decoding:
                    await asyncio.sleep(0)
                state = decoding.state()
            except BadSnapshot as error:
                problems.append(str(error))
                continue
            for at, _ in enumerate(self._table.restoring(state), 1):
                if at % RESTORED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            return info, problems
        return None, problems


async def read_snapshots(log: Log, topic: str, partition: int) -> SnapshotsReader:
    """Read all of one partition of a snapshots topic. Raises LogUnavailable, NewerRecord."""
    reader = SnapshotsReader(partition)
    async for batch in log.read(topic, partition, 0):
        for entry in batch:
            reader.take(entry)
    return reader
