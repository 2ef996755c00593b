"""A replica follows the channel, keeps an ownership table, and announces changes. Publishing is in `service.py`.

It loads the newest usable snapshot of each partition, applies the records after it, and loads again if it falls behind
a trimmed log. It never goes back and skips nothing: if neither a snapshot nor the log has the next record, it stops and
says so. Its process must end then, since the table goes stale.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from statechannel.errors import (
    InvariantError,
    LogError,
    LogRetired,
    LogUnavailable,
    NewerRecord,
    StateChannelError,
    Trimmed,
)
from statechannel.law import codec
from statechannel.law.bundle import Bundle
from statechannel.law.partition import ClusterIdentity
from statechannel.law.snapshot import SNAPSHOTS, SnapshotInfo
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Change, Refusal
from statechannel.ports import Log, LogEntry, TopicSpec
from statechannel.runtime.channel import Applied, ChannelCore
from statechannel.runtime.loading import Found, Loading
from statechannel.runtime.turnstile import Turnstile

_log = logging.getLogger(__name__)

SKIPPED_KEPT = 100
TURN_BYTES = 8 * 1024
"""About how much of the log is applied in one turn of the loop: some 250 bundles, or fifty records of one bundle."""

RELOAD_PAUSE_S = 0.5
READ_AT_ONCE = 0.25
"""The part of the partitions whose snapshots are in memory at once when a replica starts."""


class Skipped(msgspec.Struct, frozen=True):
    """An entry that was no record of ours."""

    partition: int
    offset: int
    detail: str


def in_turns(batch: Sequence[LogEntry]) -> Iterator[Sequence[LogEntry]]:
    """The batch in parts of TURN_BYTES, or of one larger entry, so that the loop can do other work in between."""
    begin, size_bytes = 0, 0
    for index, entry in enumerate(batch):
        entry_bytes = len(entry.value or b"")
        if index > begin and size_bytes + entry_bytes > TURN_BYTES:
            yield batch[begin:index]
            begin, size_bytes = index, 0
        size_bytes += entry_bytes
    yield batch[begin:]


class Replica:
    """Open it, then keep `follow()` running."""

    def __init__(self, log: Log, topic: str, newest_version: int = codec.NEWEST_VERSION) -> None:
        self.log = log
        self.topic = topic
        self.snapshots_topic = topic + SNAPSHOTS
        self.progress = asyncio.Event()
        self.skipped: deque[Skipped] = deque(maxlen=SKIPPED_KEPT)
        self.counts: Counter[str] = Counter()
        self.loaded: list[SnapshotInfo | None] = []
        """Per partition the snapshot that this replica was last loaded from."""
        self.stopped_by: StateChannelError | None = None
        self.stopped = asyncio.Event()
        self.steps = Turnstile(1)
        """Every step of milliseconds passes here, also those of `follow`: one in each turn of the loop."""
        self._newest_version = newest_version
        self._core: ChannelCore | None = None
        self._loading: Loading | None = None
        self._on_change: list[Callable[[Change], None]] = []
        self._on_reload: list[Callable[[int], None]] = []
        self._on_verdict: list[Callable[[str, Change | Refusal], None]] = []
        self._watchers: dict[Bundle, dict[asyncio.Future[None], None]] = {}

    @property
    def core(self) -> ChannelCore:
        assert self._core is not None, "open() comes first"
        return self._core

    @property
    def table(self) -> OwnershipTable:
        """Changes only between two awaits of `follow`."""
        return self.core.table

    @property
    def cluster_identity(self) -> ClusterIdentity | None:
        """Whose log it is; None before that was read. Any thread may ask, also before `open`."""
        return None if self._core is None else self._core.table.cluster_identity

    # --- starting

    async def open(self, partitions: int | None) -> None:
        """Create or check the topics, and load the newest snapshots.

        Raises LogUnavailable, TopicMismatch, BadSnapshot, NewerRecord, or LogRetired where the log was moved.
        """
        count = await self.log.open_topic(TopicSpec(self.topic, partitions))
        await self.log.open_topic(TopicSpec(self.snapshots_topic, count, compacted=True))
        self._core = ChannelCore(count, self._newest_version)
        self._loading = Loading(self.log, self.topic, self.snapshots_topic, self.table)
        self.loaded = [None] * count
        at_once = max(1, round(count * READ_AT_ONCE))
        for first in range(0, count, at_once):
            await self._load_some(range(first, min(first + at_once, count)))

    def check_identity(self, cluster_identity: ClusterIdentity) -> None:
        """Raises BadSnapshot if a snapshot that was loaded belongs to another log than this genesis record."""
        assert self._loading is not None, "open() comes first"
        self._loading.check_identity(cluster_identity)

    async def _load_some(self, partitions: Sequence[int]) -> None:
        """Read the snapshots of some partitions side by side, since each waits for the log, then load them."""
        assert self._loading is not None, "open() comes first"
        found = await self._loading.find(partitions)
        for partition in partitions:
            await self._load(partition, found.pop(partition))
            self._check_retired(partition)

    async def _load(self, partition: int, found: Found | None = None) -> bool:
        assert self._loading is not None, "open() comes first"
        info = await self._loading.load(partition, found)
        self.loaded[partition] = info or self.loaded[partition]
        return info is not None

    def _check_retired(self, partition: int) -> None:
        moved_to = self.table.retired(partition)
        if moved_to is not None:
            raise LogRetired(f"this channel was moved to {moved_to}: start with --log {moved_to}")

    # --- following

    async def follow(self) -> None:
        """Read for ever; returns once the replica has stopped."""
        while self.stopped_by is None:
            table = self.table
            batches = self.log.tail(self.topic, [table.next_offset(p) for p in range(table.partitions)])
            try:
                async for batch in batches:
                    for some in in_turns(batch):
                        await self.steps.passed()
                        self._apply_batch(some)
                        if self.stopped_by is not None:
                            return
            except Trimmed as error:
                await self._reload(error)
            except LogError as error:
                self.stop(error)
            finally:
                await batches.aclose()

    async def _reload(self, trimmed: Trimmed) -> None:
        """The next record was trimmed: load snapshots of the partitions where we are behind."""
        _log.warning("this replica fell behind the trimmed log and loads a snapshot: %s", trimmed)
        try:
            begins, before = await self.log.begins(self.topic), self.counts["reloads"]
            for partition, begin in enumerate(begins):
                if begin > self.table.next_offset(partition) and await self._load(partition):
                    self.announce_reload(partition)
                    self._check_retired(partition)
            if self.counts["reloads"] == before:  # `begins` does not show the trimming yet
                await asyncio.sleep(RELOAD_PAUSE_S)
        except LogUnavailable:
            await asyncio.sleep(RELOAD_PAUSE_S)
        except StateChannelError as error:
            self.stop(error)

    def announce_reload(self, partition: int) -> None:
        """Tell all listeners that a later state replaced this partition's table."""
        self.counts["reloads"] += 1
        for bundle in [b for b in self._watchers if self.table.partition_of(b.namespace) == partition]:
            self._wake(bundle)
        for listener in tuple(self._on_reload):
            listener(partition)
        self.progress.set()

    def stop(self, why: StateChannelError) -> None:
        """Stop reading."""
        self.stopped_by = why
        self.stopped.set()
        self.progress.set()

    def _apply_batch(self, batch: Sequence[LogEntry]) -> None:
        for entry in batch:
            try:
                self._announce(self.core.apply(entry))
                self._check_retired(entry.partition)
            except LogRetired as error:
                return self.stop(error)
            except NewerRecord as error:
                return self.stop(NewerRecord(f"partition {entry.partition}, offset {entry.offset}: {error}"))
            except Exception as error:  # noqa: BLE001 - who did not hear of a change may serve what is not his: stop
                _log.exception("the replica stops at partition %d, offset %d", entry.partition, entry.offset)
                return self.stop(InvariantError(f"partition {entry.partition}, offset {entry.offset}: {error!r}"))
        return self.progress.set()

    def _announce(self, applied: Applied) -> None:
        verdict = applied.verdict
        if isinstance(verdict, Change):
            self.counts["accepted"] += 1
            for bundle in verdict.bundles(self._watchers):
                self._wake(bundle)
            for listener in tuple(self._on_change):
                listener(verdict)
            for refusal in verdict.refused:
                self.counts[f"refused {refusal.reason}"] += 1
        elif isinstance(verdict, Refusal):
            self.counts[f"refused {verdict.reason}"] += 1
        else:
            self.counts["skipped"] += 1
            self.skipped.append(Skipped(applied.partition, applied.offset, applied.corrupt))
        if applied.settles is not None and verdict is not None:
            for settled in self._on_verdict:
                settled(applied.settles, verdict)

    # --- listeners

    def listen(self, listener: Callable[[Change], None]) -> None:
        """Call `listener` with every accepted change from now on, in order, right after the table took it."""
        self._on_change.append(listener)

    def unlisten(self, listener: Callable[[Change], None]) -> None:
        """Stop calling `listener`. Idempotent."""
        if listener in self._on_change:
            self._on_change.remove(listener)

    def on_reload(self, listener: Callable[[int], None]) -> None:
        """Call `listener` with each partition that a later state replaced; its changes are not announced singly."""
        self._on_reload.append(listener)

    def off_reload(self, listener: Callable[[int], None]) -> None:
        """Stop calling `listener`. Idempotent."""
        if listener in self._on_reload:
            self._on_reload.remove(listener)

    def on_verdict(self, settled: Callable[[str, Change | Refusal], None]) -> None:
        """Call `settled` with the id and verdict of each expected record, after its change was announced."""
        self._on_verdict.append(settled)

    def next_change(self, bundle: Bundle) -> asyncio.Future[None]:
        """A future that is done when the bundle changes next, or vanishes."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.setdefault(bundle, {})[future] = None
        future.add_done_callback(lambda done: self._forget(bundle, done))
        return future

    def _wake(self, bundle: Bundle) -> None:
        for future in self._watchers.pop(bundle, ()):
            if not future.done():
                future.set_result(None)

    def _forget(self, bundle: Bundle, future: asyncio.Future[None]) -> None:
        waiting = self._watchers.get(bundle)
        if waiting is not None:
            waiting.pop(future, None)
            if not waiting:
                del self._watchers[bundle]
