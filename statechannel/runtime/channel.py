"""One process's end of the channel: follows the log, publishes records, and returns the verdict of each.

`Channel` is the only way to write to the channel: one instance per process. A record's verdict comes once the replica
has read the record back. All publishes of one loop iteration and partition share one append. The shell decides nothing:
see `core.py` and `transitions.py`.

`Replica` keeps an ownership table, and announces changes. It loads the newest usable snapshot of each partition,
applies the records after it, and loads again if it falls behind a trimmed log. It never goes back and skips nothing: if
neither a snapshot nor the log has the next record, it stops and says so. Then its process must end, since the table
goes stale.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from statechannel.errors import (
    ForeignCluster,
    InvariantError,
    LogError,
    LogRetired,
    LogUnavailable,
    NewerRecord,
    RecordTooLarge,
    StateChannelError,
    Trimmed,
)
from statechannel.law import codec
from statechannel.law.agreement import NEVER_AGREED, Agreement
from statechannel.law.bundle import Bundle
from statechannel.law.partition import ClusterIdentity
from statechannel.law.record import Action, BrokerId, Record
from statechannel.law.snapshot import SNAPSHOTS, SnapshotInfo
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Change, Refusal, Unknown, Verdict
from statechannel.ports import Log, LogEntry, Payload, TopicSpec
from statechannel.runtime.core import Applied, ChannelCore
from statechannel.runtime.durations import Durations
from statechannel.runtime.replay import Found, Loading
from statechannel.runtime.tasks import Turnstile

_log = logging.getLogger(__name__)

APPEND_CHUNK = 1_000
EXPIRED_AT_ONCE = 1_000
"""Expired publishes looked at in one turn of the loop; most have their verdict by then."""
EXPIRY_PAUSE_S = 0.01
PUBLISHED = ("accepted", "refused", "unknown")
"""The possible outcomes of a record that was published."""


class ChannelSettings(msgspec.Struct, frozen=True):
    """See `loadmanager.settings` for what these mean."""

    topic: str = "bundle-state"
    partitions: int | None = None
    publish_timeout_s: float = 5.0
    publish_limit: int = 20_000


class Channel:
    """A replica of the ownership table that can also publish. Use: `open()`, keep `run()` running, `catch_up()`."""

    def __init__(
        self,
        log: Log,
        settings: ChannelSettings,
        *,
        nonce: str,
        wall_ms: Callable[[], int],
        newest_version: int = codec.NEWEST_VERSION,
    ) -> None:
        self._log = log
        self._settings = settings
        self._nonce = nonce
        self._wall_ms = wall_ms
        self.replica = Replica(log, settings.topic, newest_version)
        self.replica.on_verdict(self._resolve)
        self.replica.on_reload(self._abort_of)
        self.write_version = codec.OLDEST_VERSION
        """The format in which we write: the highest that all live brokers read. The node keeps it up to date."""
        self._published = 0
        self._outbox: dict[int, list[tuple[str, Payload]]] = {}
        self._verdicts: dict[str, tuple[int, asyncio.Future[Verdict]]] = {}
        self._deadlines: deque[tuple[float, str]] = deque()
        self._room = asyncio.Semaphore(settings.publish_limit)
        self._tasks: asyncio.TaskGroup | None = None
        self.last_error = ""
        self.published: Counter[tuple[Action, str]] = Counter()
        """Records that this instance published, by action and one of PUBLISHED."""
        self.publish_durations = Durations()
        """From a publish to its verdict, on the clock of the loop."""
        self.ends: Sequence[int] = ()
        """Where each partition ended when `catch_up` last asked the log."""

    # --- life

    async def open(self) -> None:
        """Create or check the channel's topics and load the newest snapshots; raises what `Replica.open` raises."""
        await self.replica.open(self._settings.partitions)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Channel]:
        """Read and publish while the context is open."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            duties = [tasks.create_task(self.replica.follow()), tasks.create_task(self._expire())]
            try:
                yield self
            finally:
                self._tasks = None
                for duty in duties:
                    duty.cancel()
                self._abort_waiting("the channel is closed")

    async def catch_up(self, timeout_s: float) -> None:
        """Return when everything that was in the log at the call has been applied.

        Raises LogUnavailable, or the error that stopped the replica (`stopped_by`).
        """
        ends: Sequence[int] = ()
        try:
            async with asyncio.timeout(timeout_s):
                ends = self.ends = await self._log.ends(self._settings.topic)
                while any(self.table.next_offset(p) < end for p, end in enumerate(ends)):
                    if self.stopped_by is not None:
                        raise self.stopped_by
                    self.replica.progress.clear()
                    await self.replica.progress.wait()
        except TimeoutError:
            raise LogUnavailable(f"the channel could not be read to its end: {self._what_is_left(ends)}") from None

    def _what_is_left(self, ends: Sequence[int]) -> str:
        read = [(end - self.table.next_offset(p), p, end) for p, end in enumerate(ends)]
        if not read:
            return "the log did not tell where it ends"
        left, partition, end = max(read)
        return f"partition {partition} ends at offset {end}, and is read up to {end - left}"

    async def claim_cluster(self, cluster: str, actor: BrokerId) -> ClusterIdentity:
        """Tie the log to this cluster, or check that it already is; the first genesis record wins.

        Raises ForeignCluster, LogUnavailable (also while an import fills the log), or BadSnapshot if the snapshots
        belong to another log.
        """
        if self.table.cluster_identity is None:
            verdict = await self.publish(Record("", Action.GENESIS, actor, cluster=cluster), partition=0)
            if isinstance(verdict, Unknown):
                raise LogUnavailable(f"the channel took no record: {verdict.detail}")
        cluster_identity = self.table.cluster_identity
        assert cluster_identity is not None
        self.replica.check_identity(cluster_identity)
        if cluster_identity.cluster != cluster:
            raise ForeignCluster(
                f"this log belongs to cluster {cluster_identity.cluster!r}, the settings say {cluster!r}: "
                "correct --cluster, or use another log or topic prefix"
            )
        if self.table.import_is_unfinished:
            raise LogUnavailable(
                "this log is being filled by an import that has not finished: wait for it, or run it again"
            )
        return cluster_identity

    @property
    def can_agree(self) -> bool:
        """Whether every live broker can read agreements."""
        return self.write_version >= codec.AGREEING_VERSION

    async def agree(self, partition: int, ours: Agreement, actor: BrokerId) -> None:
        """Put an agreement in force in a partition that has none; the first record wins. Raises LogUnavailable."""
        if self.table.agreed(partition).revision == NEVER_AGREED:
            verdict = await self.publish(Record("", Action.AGREE, actor, agreement=ours), partition)
            if isinstance(verdict, Unknown):
                raise LogUnavailable(f"the channel took no record: {verdict.detail}")

    @property
    def table(self) -> OwnershipTable:
        """The replica's table. Changes only between two awaits of its reader."""
        return self.replica.table

    @property
    def counts(self) -> Counter[str]:
        """How many entries were accepted, refused and skipped, and how many appends failed."""
        return self.replica.counts

    @property
    def skipped(self) -> deque[Skipped]:
        """The last entries that were not records of ours."""
        return self.replica.skipped

    @property
    def stopped_by(self) -> StateChannelError | None:
        """Why this replica stopped: a newer record, an unreadable log, a listener that failed. None while it reads."""
        return self.replica.stopped_by

    @property
    def stopped(self) -> asyncio.Event:
        """Set once the replica has stopped."""
        return self.replica.stopped

    @property
    def topic(self) -> str:
        return self.replica.topic

    @property
    def snapshots_topic(self) -> str:
        return self.replica.snapshots_topic

    @property
    def loaded(self) -> list[SnapshotInfo | None]:
        """Per partition the snapshot that this replica was last loaded from."""
        return self.replica.loaded

    @property
    def in_flight(self) -> int:
        """How many publishes wait for their verdict."""
        return len(self._verdicts)

    # --- publishing

    async def publish(self, record: Record, partition: int | None = None) -> Verdict:
        """Append a record and return its verdict, read back from the log.

        `id` and `at_ms` are filled in here. Unknown after `publish_timeout_s`: it may still be accepted later
        (`settled`). Waits when `publish_limit` publishes are in flight. Raises RecordTooLarge or NeedsNewerFormat:
        nothing was written.
        """
        if partition is None:
            name = record.namespace or record.subjects[0].bundle.namespace
            partition = self.table.partition_of(name)
        async with self._room:
            return await self._publish(record, partition)

    async def read_back(self, partition: int, actor: BrokerId) -> bool:
        """Append a no-op and read it back; True if everything before it in the partition has been applied.

        Ignores `publish_limit`, since a proof must not queue behind publishes. The caller bounds how many run at once.
        """
        return isinstance(await self._publish(Record("", Action.NOOP, actor), partition), Change)

    async def _publish(self, record: Record, partition: int) -> Verdict:
        self._published += 1
        record_id = f"{self._nonce}-{self._published}"
        record = msgspec.structs.replace(record, id=record_id, at_ms=self._wall_ms())
        payload = Payload(None, codec.encode(record, self.write_version))
        loop = asyncio.get_running_loop()
        verdict: asyncio.Future[Verdict] = loop.create_future()
        self.replica.core.expect(record_id, partition)
        self._verdicts[record_id] = (partition, verdict)
        self._deadlines.append((loop.time() + self._settings.publish_timeout_s, record_id))
        self._post(partition, record_id, payload)
        began_s = loop.time()
        try:
            found = await verdict
            self._count(record.action, found, loop.time() - began_s)
            return found
        finally:
            self._verdicts.pop(record_id, None)
            self.replica.core.give_up(record_id)

    def _count(self, action: Action, verdict: Verdict, took_s: float) -> None:
        kind = "accepted" if isinstance(verdict, Change) else "refused" if isinstance(verdict, Refusal) else "unknown"
        self.published[action, kind] += 1
        self.publish_durations.add(took_s)

    def settled(self, record_id: str) -> Change | Refusal | None:
        """The verdict of a record that was Unknown, None as long as it has not been read."""
        return self.replica.core.settled(record_id)

    def _post(self, partition: int, record_id: str, payload: Payload) -> None:
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.setdefault(partition, []).append((record_id, payload))

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, {}
        if self._tasks is None:
            self._abort_waiting("the channel is closed")
            return
        for partition, posted in outbox.items():
            for begin in range(0, len(posted), APPEND_CHUNK):
                self._tasks.create_task(self._append(partition, posted[begin : begin + APPEND_CHUNK]))

    async def _append(self, partition: int, posted: Sequence[tuple[str, Payload]]) -> None:
        try:
            await self._log.append(self._settings.topic, partition, [payload for _, payload in posted])
        except RecordTooLarge as error:
            if len(posted) > 1:  # nothing was written; only the record that is too large must fail
                for one in posted:
                    await self._append(partition, (one,))
                return
            waiting = self._verdicts.get(posted[0][0])
            if waiting is not None and not waiting[1].done():
                waiting[1].set_exception(error)
        except LogError as error:  # also a lasting one: the publisher gets Unknown, with this text
            self.last_error = str(error)
            self.replica.counts["append_failed"] += 1

    async def _expire(self) -> None:
        """Publishes that waited too long become Unknown."""
        loop = asyncio.get_running_loop()
        while True:
            wait_s = self._deadlines[0][0] - loop.time() if self._deadlines else self._settings.publish_timeout_s / 4
            await asyncio.sleep(max(wait_s, EXPIRY_PAUSE_S))
            now_s = loop.time()
            for _ in range(min(len(self._deadlines), EXPIRED_AT_ONCE)):
                if self._deadlines[0][0] > now_s:
                    break
                record_id = self._deadlines.popleft()[1]
                self._resolve(record_id, Unknown(record_id, self.last_error or "not read back in time"))

    def _resolve(self, record_id: str, verdict: Verdict) -> None:
        waiting = self._verdicts.get(record_id)
        if waiting is not None and not waiting[1].done():
            waiting[1].set_result(verdict)

    def _abort_waiting(self, detail: str) -> None:
        for record_id in list(self._verdicts):
            self._resolve(record_id, Unknown(record_id, detail))

    def _abort_of(self, partition: int) -> None:
        """Give up the publishes of a partition: their verdicts may lie in the part that the replica did not read."""
        self.replica.core.forget(partition)
        for record_id, (where, _) in list(self._verdicts.items()):
            if where == partition:
                self._resolve(record_id, Unknown(record_id, "this replica fell behind the trimmed log: look again"))

    # --- reading

    def listen(self, listener: Callable[[Change], None]) -> None:
        """Call `listener` with every accepted change from now on, in order, right after the table took it."""
        self.replica.listen(listener)

    def unlisten(self, listener: Callable[[Change], None]) -> None:
        """Stop calling `listener`. Idempotent."""
        self.replica.unlisten(listener)

    def next_change(self, bundle: Bundle) -> asyncio.Future[None]:
        """A future that is done when the bundle changes next, or vanishes."""
        return self.replica.next_change(bundle)


SKIPPED_KEPT = 100
TURN_BYTES = 8 * 1024
"""About how much of the log is applied in one turn of the loop: some 250 bundles, or fifty records of one bundle."""

RELOAD_PAUSE_S = 0.5
READ_AT_ONCE = 0.25
"""The part of the partitions whose snapshots are in memory at once when a replica starts."""


class Skipped(msgspec.Struct, frozen=True):
    """An entry that was not a record of ours."""

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
        """Every step that takes milliseconds passes here, also those of `follow`: one in each turn of the loop."""
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
        """Read until the replica has stopped."""
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
