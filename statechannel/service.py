"""The channel's shell: appends what is published, reads everything back, hands out verdicts and changes in order.

One instance per process. All publishes of one loop iteration and partition travel in one append. There is no other way
to write to the channel, and nothing here decides anything: see `channel.py` and `transitions.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from statechannel import codec
from statechannel.bundle import Bundle
from statechannel.channel import Applied, ChannelCore
from statechannel.errors import (
    ForeignCluster,
    InvariantError,
    LogError,
    LogUnavailable,
    NewerRecord,
    RecordTooLarge,
    StateChannelError,
)
from statechannel.ports import Log, LogEntry, Payload, TopicSpec
from statechannel.record import Action, Broker, Record
from statechannel.table import Genesis, OwnershipTable
from statechannel.verdict import Change, Refusal, Unknown, Verdict

_log = logging.getLogger(__name__)

APPEND_CHUNK = 1_000
SKIPPED_KEPT = 100


class Skipped(msgspec.Struct, frozen=True):
    """An entry that was no record of ours."""

    partition: int
    offset: int
    detail: str


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
        self._newest_version = newest_version
        self._core: ChannelCore | None = None
        self.write_version = codec.OLDEST_VERSION
        """The format in which we write: the highest that all live brokers read. The node keeps it up to date."""
        self._published = 0
        self._outbox: dict[int, list[tuple[str, Payload]]] = {}
        self._verdicts: dict[str, asyncio.Future[Verdict]] = {}
        self._deadlines: deque[tuple[float, str]] = deque()
        self._room = asyncio.Semaphore(settings.publish_limit)
        self._listeners: list[Callable[[Change], None]] = []
        self._watchers: dict[Bundle, dict[asyncio.Future[None], None]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._progress = asyncio.Event()
        self.skipped: deque[Skipped] = deque(maxlen=SKIPPED_KEPT)
        self.counts: Counter[str] = Counter()
        self.stopped_by: StateChannelError | None = None
        """Why this replica reads no further: a newer record, an unreadable log, a listener that failed. Else None."""
        self.stopped = asyncio.Event()
        self.last_error = ""

    # --- life

    async def open(self) -> None:
        """Create or check the channel's topic. Raises LogUnavailable, TopicMismatch."""
        partitions = await self._log.open_topic(TopicSpec(self._settings.topic, self._settings.partitions))
        self._core = ChannelCore(partitions, self._newest_version)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Channel]:
        """Read and publish while the context is open."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            duties = [tasks.create_task(self._read()), tasks.create_task(self._expire())]
            try:
                yield self
            finally:
                self._tasks = None
                for duty in duties:
                    duty.cancel()
                self._abort_waiting("the channel is closed")

    async def catch_up(self, timeout_s: float) -> None:
        """Return when everything that was in the log at the call has been applied.

        Raises LogUnavailable, or what stopped the replica (`stopped_by`).
        """
        try:
            async with asyncio.timeout(timeout_s):
                ends = await self._log.ends(self._settings.topic)
                while any(self.table.next_offset(p) < end for p, end in enumerate(ends)):
                    if self.stopped_by is not None:
                        raise self.stopped_by
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            raise LogUnavailable(f"the channel could not be read to its end within {timeout_s:g} s") from None

    async def claim_cluster(self, cluster: str, actor: Broker) -> Genesis:
        """Tie the log to this cluster, or check that it is: the first genesis record wins. Raises ForeignCluster."""
        if self.table.genesis is None:
            verdict = await self.publish(Record("", Action.GENESIS, actor, cluster=cluster), partition=0)
            if isinstance(verdict, Unknown):
                raise LogUnavailable(f"the channel took no record: {verdict.detail}")
        genesis = self.table.genesis
        assert genesis is not None
        if genesis.cluster != cluster:
            raise ForeignCluster(
                f"this log belongs to cluster {genesis.cluster!r}, the settings say {cluster!r}: "
                "correct --cluster, or use another log or topic prefix"
            )
        return genesis

    @property
    def table(self) -> OwnershipTable:
        """The replica. Changes only between two awaits of the reader."""
        assert self._core is not None, "open() comes first"
        return self._core.table

    @property
    def in_flight(self) -> int:
        """How many publishes wait for their verdict."""
        return len(self._verdicts)

    # --- publishing

    async def publish(self, record: Record, partition: int | None = None) -> Verdict:
        """Append a record and return what became of it, read back from the log.

        `id` and `at_ms` are filled in here. Unknown after `publish_timeout_s`: it may still be accepted later
        (`settled`). Waits when `publish_limit` publishes are in flight. Raises RecordTooLarge: nothing was written.
        """
        assert self._core is not None
        if partition is None:
            name = record.namespace or record.subjects[0].bundle.namespace
            partition = self.table.partition_of(name)
        async with self._room:
            return await self._publish(record, partition)

    async def read_back(self, partition: int, actor: Broker) -> bool:
        """Append a no-op and read it back: whether everything before it in the partition has been applied.

        Does not wait for room among the publishes in flight, for a proof must not queue behind them; whoever asks
        bounds how many of these there are.
        """
        return isinstance(await self._publish(Record("", Action.NOOP, actor), partition), Change)

    async def _publish(self, record: Record, partition: int) -> Verdict:
        assert self._core is not None
        self._published += 1
        record_id = f"{self._nonce}-{self._published}"
        record = msgspec.structs.replace(record, id=record_id, at_ms=self._wall_ms())
        payload = Payload(None, codec.encode(record, self.write_version))
        loop = asyncio.get_running_loop()
        verdict: asyncio.Future[Verdict] = loop.create_future()
        self._core.expect(record_id)
        self._verdicts[record_id] = verdict
        self._deadlines.append((loop.time() + self._settings.publish_timeout_s, record_id))
        self._post(partition, record_id, payload)
        try:
            return await verdict
        finally:
            self._verdicts.pop(record_id, None)
            self._core.give_up(record_id)

    def settled(self, record_id: str) -> Change | Refusal | None:
        """What became of a record whose verdict was Unknown, None as long as it has not been read."""
        assert self._core is not None
        return self._core.settled(record_id)

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
        except LogUnavailable as error:
            self.last_error = str(error)
            self.counts["append_failed"] += 1
        except RecordTooLarge as error:
            if len(posted) > 1:  # nothing was written; only the one that is too large shall fail
                for one in posted:
                    await self._append(partition, (one,))
                return
            verdict = self._verdicts.get(posted[0][0])
            if verdict is not None and not verdict.done():
                verdict.set_exception(error)

    async def _expire(self) -> None:
        """Publishes that waited too long become Unknown."""
        loop = asyncio.get_running_loop()
        while True:
            wait_s = self._deadlines[0][0] - loop.time() if self._deadlines else self._settings.publish_timeout_s / 4
            await asyncio.sleep(max(wait_s, 0.01))
            while self._deadlines and self._deadlines[0][0] <= loop.time():
                record_id = self._deadlines.popleft()[1]
                self._resolve(record_id, Unknown(record_id, self.last_error or "not read back in time"))

    def _resolve(self, record_id: str, verdict: Verdict) -> None:
        waiting = self._verdicts.get(record_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(verdict)

    def _abort_waiting(self, detail: str) -> None:
        for record_id in list(self._verdicts):
            self._resolve(record_id, Unknown(record_id, detail))

    # --- reading

    def listen(self, listener: Callable[[Change], None]) -> None:
        """Call `listener` with every accepted change from now on, in order, right after the table took it."""
        self._listeners.append(listener)

    def unlisten(self, listener: Callable[[Change], None]) -> None:
        """Stop calling `listener`. Idempotent."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def next_change(self, bundle: Bundle) -> asyncio.Future[None]:
        """A future that is done when the bundle changes next, or vanishes."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.setdefault(bundle, {})[future] = None
        future.add_done_callback(lambda done: self._forget(bundle, done))
        return future

    def _forget(self, bundle: Bundle, future: asyncio.Future[None]) -> None:
        waiting = self._watchers.get(bundle)
        if waiting is not None:
            waiting.pop(future, None)
            if not waiting:
                del self._watchers[bundle]

    async def _read(self) -> None:
        table = self.table
        starts = [table.next_offset(p) for p in range(table.partitions)]
        batches = self._log.tail(self._settings.topic, starts)
        try:
            async for batch in batches:
                self._apply_batch(batch)
                if self.stopped_by is not None:
                    return
                await asyncio.sleep(0)
        except LogError as error:
            self._stop(error)
        finally:
            await batches.aclose()  # type: ignore[attr-defined]

    def _stop(self, why: StateChannelError) -> None:
        """Read no further. Whoever runs this channel has to end: its table grows old."""
        self.stopped_by = why
        self.stopped.set()
        self._progress.set()

    def _apply_batch(self, batch: Sequence[LogEntry]) -> None:
        assert self._core is not None
        for entry in batch:
            try:
                self._announce(self._core.apply(entry))
            except NewerRecord as error:
                return self._stop(NewerRecord(f"partition {entry.partition}, offset {entry.offset}: {error}"))
            except Exception as error:  # noqa: BLE001 - who did not hear of a change may serve what is not his: stop
                _log.exception("the replica stops at partition %d, offset %d", entry.partition, entry.offset)
                return self._stop(InvariantError(f"partition {entry.partition}, offset {entry.offset}: {error!r}"))
        return self._progress.set()

    def _announce(self, applied: Applied) -> None:
        verdict = applied.verdict
        if isinstance(verdict, Change):
            self.counts["accepted"] += 1
            for transition in verdict.transitions:
                for future in self._watchers.pop(transition.bundle, ()):
                    if not future.done():
                        future.set_result(None)
            for listener in tuple(self._listeners):
                listener(verdict)
            for refusal in verdict.refused:
                self.counts[f"refused {refusal.reason}"] += 1
        elif isinstance(verdict, Refusal):
            self.counts[f"refused {verdict.reason}"] += 1
        else:
            self.counts["skipped"] += 1
            self.skipped.append(Skipped(applied.partition, applied.offset, applied.corrupt))
        if applied.settles is not None and verdict is not None:
            self._resolve(applied.settles, verdict)
