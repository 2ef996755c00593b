"""Writes one partition's snapshots and trims its log, as the exclusive writer of the partition's snapshots.

A deposed owner does no harm, even if it wakes late (docs/decisions/0009-snapshots-and-trimming.md). Only transactions
of the exclusive writer change the list of snapshots, and each keeps the snapshot that covers most. We read the list
after fencing all earlier writers. The log is trimmed only to the oldest snapshot of a committed list, and that oldest
one only moves forward.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import msgspec

from loadmanager.channel.owner.election import lease_of
from loadmanager.channel.owner.reading_back import compare
from loadmanager.channel.owner.retention import Plan, Progress, ScheduleSettings, due, plan
from statechannel.errors import BadSnapshot, InvariantError, LogUnavailable
from statechannel.law.partition import PartitionState
from statechannel.law.snapshot import CHUNK_BUNDLES, Index, SnapshotInfo, SnapshotsReader, closing, encode
from statechannel.law.table import OwnershipTable
from statechannel.ports import ExclusiveWriter, Log, Payload
from statechannel.runtime.tasks import Turnstile

T = TypeVar("T")

_log = logging.getLogger(__name__)


class KeeperSettings(msgspec.Struct, frozen=True):
    """`timeout_s` bounds each commit, each reading of the topic, and any other answer of the log."""

    schedule: ScheduleSettings
    retention_s: float
    timeout_s: float


class KeeperDependencies(msgspec.Struct, frozen=True):
    """The dependencies of all keepers of a broker.

    `log_bytes` gives the bytes of a partition's log from an offset on, as far as this broker has read them. `wanted`
    gives the offsets of a partition from which readers still want to read; `name` gives a new snapshot id.
    """

    log: Log
    topic: str
    snapshots_topic: str
    table: OwnershipTable
    log_bytes: Callable[[int, int], int]
    wanted: Callable[[int], Sequence[int]]
    name: Callable[[], str]
    clock_s: Callable[[], float]
    wall_ms: Callable[[], int]
    now_ms: Callable[[], int | None]
    """The agreed time, which decides the age of snapshots. None if it is not known: then nothing is trimmed."""
    note: Callable[[str], None]
    steps: Turnstile = msgspec.field(default_factory=lambda: Turnstile(1))
    """Every step that takes milliseconds passes here: one in each turn of the process's loop."""
    chunk_bundles: int = CHUNK_BUNDLES
    """The number of bundles in one chunk of a snapshot."""


class Counts(msgspec.Struct):
    """What a broker's keepers have done since this incarnation began."""

    written: int = 0
    trimmed: int = 0
    failed: int = 0
    seconds: float = 0.0
    """The time to write the last snapshot and read it back."""
    longest_step_s: float = 0.0
    """The longest step of snapshot work on the loop."""


class Keeper:
    """Keeps one partition. Call `open()`, then `attend()` again and again; after an exception begin with `open()`."""

    def __init__(self, partition: int, deps: KeeperDependencies, settings: KeeperSettings, counts: Counts) -> None:
        self.partition = partition
        self.good: tuple[SnapshotInfo, ...] = ()
        """The listed snapshots that are complete and intact, the one that covers most last."""
        self.begin = 0
        """The log's first offset."""
        self._deps = deps
        self._settings = settings
        self._counts = counts
        self._writer: ExclusiveWriter | None = None
        self._index: Index | None = None
        self._decoded: set[str] = set()
        """The snapshots that we have read back and decoded: the log is trimmed only to these."""
        self._newest_since_s = deps.clock_s()

    @property
    def is_open(self) -> bool:
        """Whether we are the exclusive writer, as far as we know."""
        return self._writer is not None

    async def open(self) -> None:
        """Fence the previous writer, then read the topic. Raises LogUnavailable, BadSnapshot, NewerRecord."""
        deps = self._deps
        await self.close()
        self._writer = await self._answer(deps.log.exclusive(lease_of(self.partition)))
        reader = await self._read_topic(0)
        if reader.index is not None and reader.index.cluster_identity != deps.table.cluster_identity:
            raise BadSnapshot(
                f"the snapshots of partition {self.partition} are of {reader.index.cluster_identity}, the log is of "
                f"{deps.table.cluster_identity}: they are left alone; move topic {deps.snapshots_topic} out of the way"
            )
        self.begin = (await self._answer(deps.log.begins(deps.topic)))[self.partition]
        self._index, self.good = reader.index, ()
        for info in self.listed:
            if await self._is_whole(reader, info):
                self.good += (info,)

    async def close(self) -> None:
        """Stop writing. Idempotent."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await self._answer(writer.close())

    @property
    def listed(self) -> tuple[SnapshotInfo, ...]:
        """The snapshots that the topic lists, good or not."""
        return self._index.snapshots if self._index is not None else ()

    async def attend(self) -> str | None:
        """Do what is due now; returns why a snapshot was written, None if none was.

        Raises WriterFenced, LogUnavailable, RecordTooLarge, BadSnapshot.
        """
        why = due(self._progress(self._plan()), self._settings.schedule)
        if why is not None:
            await self._replace(await self._sure_plan())
        await self._trim()
        return why

    def _plan(self) -> Plan[SnapshotInfo]:
        deps = self._deps
        return plan(self.good, deps.now_ms() or 0, self._settings.retention_s, deps.wanted(self.partition))

    async def _sure_plan(self) -> Plan[SnapshotInfo]:
        """A plan whose base decodes, if the base is not the oldest snapshot listed."""
        while True:
            planned = self._plan()
            base = planned.base
            if base is None or base == self.listed[0] or base.snapshot_id in self._decoded:
                return planned
            await self._make_sure_of(base)

    def _progress(self, planned: Plan[SnapshotInfo]) -> Progress:
        newest, base = self.good[-1] if self.good else None, planned.base
        since_s = self._deps.clock_s() - self._newest_since_s
        if newest is not None:  # its writer's clock may have been ahead of ours
            since_s = max(since_s, (self._deps.wall_ms() - newest.at_ms) / 1000)
        if newest != (self.listed[-1] if self.listed else None) or (newest is None and self.begin > 0):
            since_s = float("inf")  # due at once: a starting broker lacks the newest snapshot
        covered = newest.next_offset if newest is not None else None
        return Progress(
            next_offset=self._deps.table.next_offset(self.partition),
            covered=covered,
            since_s=since_s,
            base_may_move=base is not None and base.next_offset > self.begin and base != self.listed[0],
            log_bytes=self._deps.log_bytes(self.partition, covered or 0),
            bundles=newest.bundles if newest is not None else 0,
        )

    # --- writing

    async def _replace(self, planned: Plan[SnapshotInfo]) -> None:
        """Write a snapshot, drop those that the plan does not keep, and read it back."""
        deps, cluster_identity = self._deps, self._deps.table.cluster_identity
        if self._writer is None or cluster_identity is None:
            raise InvariantError("open() comes first, and the log belongs to a cluster by then")
        began_s, state = deps.clock_s(), deps.table.cut(self.partition)
        payloads, info = await self._encode(state)
        payloads += closing(
            self._index, cluster_identity, self.partition, info, {kept.snapshot_id for kept in planned.keep}
        )
        end = (await self._answer(deps.log.ends(deps.snapshots_topic)))[self.partition]
        await self._answer(self._writer.commit(deps.snapshots_topic, self.partition, payloads))
        self._newest_since_s = deps.clock_s()
        await self._read_back(state, info, end)
        self.good = (*planned.keep, info)
        self._counts.written += 1
        self._counts.seconds = deps.clock_s() - began_s

    async def _encode(self, state: PartitionState) -> tuple[list[Payload], SnapshotInfo]:
        payloads: list[Payload] = []
        deps = self._deps
        pieces = encode(state, deps.name(), deps.wall_ms(), deps.chunk_bundles)
        while True:
            step_s = deps.clock_s()
            piece = next(pieces)
            self._took(step_s)
            if isinstance(piece, SnapshotInfo):
                return payloads, piece
            payloads.append(piece)
            await deps.steps.passed()

    async def _read_back(self, state: PartitionState, info: SnapshotInfo, start: int) -> None:
        """Raises BadSnapshot unless the topic returns the state that was written."""
        reader = await self._read_topic(start)
        if reader.index is None or reader.index.newest != info:
            raise BadSnapshot(f"snapshot {info.snapshot_id} was committed, but cannot be read back")
        self._index = reader.index
        await self._in_steps(reader.checking(info.snapshot_id))
        await self._in_steps(compare(reader.chunks(info.snapshot_id), state))
        self._decoded.add(info.snapshot_id)

    async def _in_steps(self, work: Iterable[None]) -> None:
        """Do the work step by step, so that the loop can renew proofs in between."""
        step_s = self._deps.clock_s()
        for _ in work:
            self._took(step_s)
            await self._deps.steps.passed()
            step_s = self._deps.clock_s()

    # --- reading and trimming

    async def _make_sure_of(self, info: SnapshotInfo) -> None:
        """Decode a snapshot that we have not decoded yet; if it is bad, drop it from `good`."""
        if info.snapshot_id in self._decoded:
            return
        reader = await self._read_topic(0)
        try:
            decoding = reader.decoding(info.snapshot_id)
            await self._in_steps(decoding)
            decoding.state()
            self._decoded.add(info.snapshot_id)
        except BadSnapshot as error:
            self._deps.note(f"snapshot not used: {error}")
            self.good = tuple(each for each in self.good if each != info)

    async def _trim(self) -> None:
        """Trim to the oldest snapshot that the topic lists, unless it is beyond the base."""
        base = self._plan().base
        oldest = self.listed[0] if self.listed else None
        if base is None or oldest is None or not self.begin < oldest.next_offset <= base.next_offset:
            return
        await self._make_sure_of(oldest)
        if oldest not in self.good:
            return
        deps = self._deps
        await self._answer(deps.log.trim(deps.topic, self.partition, oldest.next_offset))
        self.begin = oldest.next_offset
        self._counts.trimmed += 1
        _log.info("partition %d of %s begins at %d from now on", self.partition, deps.topic, self.begin)

    async def _read_topic(self, start: int) -> SnapshotsReader:
        deps, reader = self._deps, SnapshotsReader(self.partition)
        async with self._deadline():
            batches = deps.log.read(deps.snapshots_topic, self.partition, start)
            async with aclosing(batches):
                async for batch in batches:
                    for entry in batch:
                        reader.take(entry)
                    await asyncio.sleep(0)
        return reader

    async def _is_whole(self, reader: SnapshotsReader, info: SnapshotInfo) -> bool:
        try:
            await self._in_steps(reader.checking(info.snapshot_id))
        except BadSnapshot as error:
            self._deps.note(f"snapshot not used: {error}")
            return False
        return True

    def _took(self, since_s: float) -> None:
        self._counts.longest_step_s = max(self._counts.longest_step_s, self._deps.clock_s() - since_s)

    @asynccontextmanager
    async def _deadline(self) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                yield
        except TimeoutError:
            raise LogUnavailable(f"no answer from the log within {self._settings.timeout_s:g} s") from None

    async def _answer(self, question: Awaitable[T]) -> T:
        async with self._deadline():
            return await question
