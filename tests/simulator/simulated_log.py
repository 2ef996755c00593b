"""A simulated log: its server, the partitions in memory, readers, and the `Log` of one simulated process.

The server has exclusive writers with epochs, transactions, and random compaction. It never loses what it has taken,
through outages too. It behaves as a Kafka broker where readers can tell: a transaction's marker takes an offset that no
reader gets, an aborted transaction leaves a gap, a compacted topic loses superseded entries at any time, and a writer's
epoch is checked when its request *arrives*, however late.

The client has the delays and faults of its link. An append may be lost, torn (a prefix of it is taken), taken without
an acknowledgement, or taken twice. A transaction may be lost, taken without an acknowledgement, or arrive late, but is
never torn and never taken twice. `network.Faults` says how often.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from enum import StrEnum
from functools import partial
from random import Random
from typing import Protocol, TypeVar

import msgspec

from statechannel.errors import LogError, LogUnavailable, RecordTooLarge, TopicMismatch, Trimmed, WriterFenced
from statechannel.ports import LogEntry, Payload, TopicSpec
from tests.simulator.network import Link, Network, NoAnswer


class LogPartition:
    """Entries from `begin` on; the next one gets the offset `end` or a higher one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.begin = 0
        self.end = 0
        self._entries: list[LogEntry] = []

    def append(self, payload: Payload, now_ms: int) -> LogEntry:
        """Store one entry at the end."""
        entry = LogEntry(self.number, self.end, payload.key, payload.value, now_ms)
        self._entries.append(entry)
        self.end += 1
        return entry

    def skip(self, offsets: int) -> None:
        """Use up offsets without entries."""
        self.end += offsets

    def read(self, start: int, limit: int) -> Sequence[LogEntry]:
        """At most `limit` entries from an offset on, or from the next one that is still there."""
        first = self._index_of(start)
        return tuple(self._entries[first : first + limit])

    def first_since(self, at_ms: int) -> int:
        """The offset of the first entry that was stored at `at_ms` or later, else the end."""
        return next((entry.offset for entry in self._entries if entry.appended_ms >= at_ms), self.end)

    def trim(self, before: int) -> None:
        """Forget the entries below an offset, as far as there are any."""
        self.begin = max(self.begin, min(before, self.end))
        del self._entries[: self._index_of(self.begin)]

    def compact(self, active: int, tombstones_before_ms: int) -> None:
        """Drop what is superseded, and deletions from before that time; the `active` newest entries are left alone."""
        closed = self._entries[: max(0, len(self._entries) - active)]
        last = {entry.key: entry.offset for entry in closed}
        kept = [
            entry
            for entry in closed
            if entry.key is None
            or (
                last[entry.key] == entry.offset
                and (entry.value is not None or entry.appended_ms >= tombstones_before_ms)
            )
        ]
        self._entries[: len(closed)] = kept

    def _index_of(self, offset: int) -> int:
        if not self._entries:
            return 0
        first, last = self._entries[0].offset, self._entries[-1].offset
        if last - first + 1 == len(self._entries):  # no gaps, as in most logs
            return min(max(0, offset - first), len(self._entries))
        return bisect_left(self._entries, offset, key=lambda entry: entry.offset)


_INBOX_BATCHES = 16


class Tail:
    """One reader: one batch is under way at a time, so batches grow with load.

    The inbox is bounded, so a paused reader holds the server's position back.
    """

    def __init__(self, server: SimulatedLogServer, link: Link, topic: str, starts: Sequence[int]) -> None:
        self.topic = topic
        self.process = link.process
        self.closed = False
        self._server = server
        self._link = link
        self._next = list(starts)
        self._turn = 0
        self._sending = False
        self._inbox: deque[Sequence[LogEntry] | LogError] = deque()
        self._arrival: asyncio.Future[None] | None = None

    def send_next(self) -> None:
        """Send the next batch, from the partitions in turn, if there is one and room for it."""
        if self._link.closed:
            self.close()
        if self.closed or self._sending or len(self._inbox) >= _INBOX_BATCHES:
            return
        try:
            batch = self._next_batch()
        except LogError as unreadable:
            batch = unreadable
            self.close()
        if batch:
            self._sending = True
            self._link.push(lambda: self._arrived(batch))

    async def receive(self) -> Sequence[LogEntry]:
        while not self._inbox:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival  # no time-out: a tail waits for ever by contract
        batch = self._inbox.popleft()
        self.send_next()
        if isinstance(batch, LogError):
            raise batch
        return batch

    def close(self) -> None:
        self.closed = True
        self._server.detach(self)

    def _next_batch(self) -> Sequence[LogEntry]:
        partitions = self._server.partitions(self.topic)
        for _ in self._next:
            turn = self._turn = (self._turn + 1) % len(self._next)
            if self._next[turn] >= partitions[turn].end:
                continue
            if batch := self._server.read(self.topic, turn, self._next[turn]):
                self._next[turn] = batch[-1].offset + 1
                return batch
            # Skip a marker at the end: if only the marker is trimmed, the position must not be below the begin.
            self._next[turn] = partitions[turn].end
        return ()

    def _arrived(self, batch: Sequence[LogEntry] | LogError) -> None:
        self._sending = False
        self._inbox.append(batch)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
        self.send_next()


LOG_SERVER = "log"
DEFAULT_PARTITIONS = 4
MAX_BATCH = 1_000

COMPACTION_CHANCE = 0.05
MOST_ACTIVE_ENTRIES = 8
TOMBSTONES_KEPT_MS = 30_000
READ_SIZES = (2, 20, MAX_BATCH)


class Step(StrEnum):
    """Requests that belong to the work on snapshots."""

    BECOME_WRITER = "becoming the writer"
    COMMIT = "a commit"
    TRIM = "trimming"
    READ = "reading"


class _Topic(msgspec.Struct, eq=False):
    spec: TopicSpec
    partitions: list[LogPartition]


class SimulatedLogServer:
    """Topics in memory. `wall_ms` is the log's wall clock; an entry larger than `max_entry_bytes` is refused."""

    def __init__(
        self,
        random: Random,
        wall_ms: Callable[[], int],
        *,
        default_partitions: int = DEFAULT_PARTITIONS,
        max_entry_bytes: int = 1_000_000,
    ) -> None:
        self.max_entry_bytes = max_entry_bytes
        self.has_markers = True
        """Whether a commit uses up one more offset, so that `ends` points beyond what can be read."""
        self.compaction_chance = COMPACTION_CHANCE
        """Chance that a write to a compacted topic is followed by a compaction."""
        self.read_sizes: Sequence[int] = READ_SIZES
        """The most entries of one request of a `read`, drawn for each; other things happen between two requests."""
        self._random = random
        self._wall_ms = wall_ms
        self._default_partitions = default_partitions
        self._topics: dict[str, _Topic] = {}
        self._epochs: dict[str, int] = {}
        self._committed: dict[tuple[str, int], int] = {}
        self._tails: list[Tail] = []
        self.on_append: Callable[[str, LogEntry], None] | None = None
        """If set, called with each entry as the server takes it, before anybody can read it."""
        self.on_step: Callable[[Step, str], None] | None = None
        """If set, called with the step and the process's name when its request arrives, before it is carried out."""
        self.on_trim: Callable[[str, int, int], None] | None = None
        """If set, called with topic, partition and new begin just before the entries below are dropped."""

    def open_topic(self, spec: TopicSpec) -> int:
        topic = self._topics.get(spec.name)
        if topic is None:
            count = spec.partitions or self._default_partitions
            topic = self._topics[spec.name] = _Topic(spec, [LogPartition(number) for number in range(count)])
        if topic.spec.compacted != spec.compacted or spec.partitions not in (None, len(topic.partitions)):
            raise TopicMismatch(
                f"topic {spec.name} exists with {len(topic.partitions)} partitions, compacted={topic.spec.compacted}; "
                f"asked for {spec.partitions}, compacted={spec.compacted}. Use another name, or delete the topic"
            )
        return len(topic.partitions)

    def has_topic(self, topic: str) -> bool:
        return topic in self._topics

    def readers(self, topic: str) -> set[str]:
        """The processes that have a tail of a topic."""
        return {tail.process for tail in self._tails if tail.topic == topic}

    def reached(self, step: Step, process: str) -> None:
        """A request for such a step has arrived."""
        if self.on_step is not None:
            self.on_step(step, process)

    # --- writing

    def append(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        self._take(topic, partition, payloads)
        self._show(topic, partition)

    def append_torn(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        """Take a prefix, most often an empty one."""
        if taken := payloads[: self._random.randint(-len(payloads), len(payloads) - 1)]:
            self.append(topic, partition, taken)

    def new_writer(self, writer_id: str) -> int:
        """The epoch of the writer of this id from now on; all earlier ones are fenced."""
        epoch = self._epochs[writer_id] = self._epochs.get(writer_id, 0) + 1
        return epoch

    def commit(
        self, writer_id: str, epoch: int, number: int, topic: str, partition: int, payloads: Sequence[Payload]
    ) -> None:
        """Take all payloads as the `number`th transaction of this writer; a repeated one changes nothing."""
        self._check_writer(writer_id, epoch)
        if number <= self._committed.get((writer_id, epoch), 0) or not payloads:
            return
        self._committed[writer_id, epoch] = number
        self._take(topic, partition, payloads)
        self._partition(topic, partition).skip(int(self.has_markers))
        self._show(topic, partition)

    def commit_torn(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        """An aborted transaction: none of it is ever read, though some of it may have used up offsets."""
        self._partition(topic, partition).skip(self._random.randint(0, len(payloads) + 1) * self.has_markers)

    def trim(self, topic: str, partition: int, before: int) -> None:
        """Forget the entries below an offset."""
        stored = self._partition(topic, partition)
        if self._topics[topic].spec.compacted:
            raise LogError(f"topic {topic} is compacted and cannot be trimmed; delete keys instead")
        if self.on_trim is not None and before > stored.begin:
            self.on_trim(topic, partition, min(before, stored.end))
        stored.trim(before)

    def compact(self, topic: str, partition: int) -> None:
        """Drop superseded entries from a compacted topic, except among a random number of the newest ones."""
        active = self._random.randint(0, MOST_ACTIVE_ENTRIES)
        self._partition(topic, partition).compact(active, self._wall_ms() - TOMBSTONES_KEPT_MS)

    def _take(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        stored, now_ms = self._partition(topic, partition), self._wall_ms()
        for payload in payloads:
            entry = stored.append(payload, now_ms)
            if self.on_append is not None:
                self.on_append(topic, entry)

    def _show(self, topic: str, partition: int) -> None:
        for tail in tuple(self._tails):
            if tail.topic == topic:
                tail.send_next()
        if self._topics[topic].spec.compacted and self._random.random() < self.compaction_chance:
            self.compact(topic, partition)

    def _check_writer(self, writer_id: str, epoch: int) -> None:
        current = self._epochs[writer_id]
        if epoch < current:
            raise WriterFenced(f"epoch {epoch} of writer {writer_id} was followed by {current}; stop writing")

    # --- reading

    def ends(self, topic: str) -> tuple[int, ...]:
        return tuple(partition.end for partition in self._topic(topic).partitions)

    def begins(self, topic: str) -> tuple[int, ...]:
        return tuple(partition.begin for partition in self._topic(topic).partitions)

    def offset_at(self, topic: str, partition: int, at_ms: int) -> int:
        return self._partition(topic, partition).first_since(at_ms)

    def read(self, topic: str, partition: int, start: int, limit: int = MAX_BATCH) -> Sequence[LogEntry]:
        """At most `limit` entries from an offset on. Raises Trimmed if it lies below the begin."""
        stored = self._partition(topic, partition)
        if start < stored.begin:
            raise Trimmed(f"{topic}/{partition}: offset {start} was trimmed, the log begins at {stored.begin}; reload")
        return stored.read(start, limit)

    def read_part(self, topic: str, partition: int, start: int, end: int | None) -> tuple[Sequence[LogEntry], int, int]:
        """Some entries from `start` on but below `end` (None: the present end); the next start, and that end."""
        limit = self._random.choice(self.read_sizes)
        found = self.read(topic, partition, start, limit)
        end = self._partition(topic, partition).end if end is None else end
        reached = found[-1].offset + 1 if len(found) == limit else end
        return [entry for entry in found if entry.offset < end], min(reached, end), end

    def partitions(self, topic: str) -> Sequence[LogPartition]:
        """The stored partitions, for inspection."""
        return self._topic(topic).partitions

    def attach(self, tail: Tail) -> None:
        """Serve a reader from now on. Idempotent; does nothing for a closed reader."""
        self._topic(tail.topic)
        if tail not in self._tails and not tail.closed:
            self._tails.append(tail)
            tail.send_next()

    def detach(self, tail: Tail) -> None:
        if tail in self._tails:
            self._tails.remove(tail)

    def _topic(self, name: str) -> _Topic:
        if name not in self._topics:
            raise LogError(f"topic {name} does not exist; call open_topic first")
        return self._topics[name]

    def _partition(self, topic: str, partition: int) -> LogPartition:
        partitions = self._topic(topic).partitions
        if not 0 <= partition < len(partitions):
            raise LogError(f"topic {topic} has partitions 0 to {len(partitions) - 1}, not {partition}")
        return partitions[partition]


T = TypeVar("T")

_FLUSH_TIMEOUT_S = 1.0


class SimulatedLog:
    """A `Log` over a link. Calls time out after `request_timeout_s`, on the clock of the calling process."""

    def __init__(
        self, server: SimulatedLogServer, network: Network, process: str, *, request_timeout_s: float = 5.0
    ) -> None:
        self._server = server
        self.link = network.link(process, LOG_SERVER)
        self._timeout_s = request_timeout_s
        self._closed = False

    async def start(self, timeout_s: float) -> None:
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while (left_s := deadline_s - asyncio.get_running_loop().time()) > 0:
            with contextlib.suppress(LogUnavailable):  # a request may be lost; a client asks again
                return await self._ask(_nothing, min(self._timeout_s, left_s))
        raise LogUnavailable(f"{self.link.server} did not answer {self.link.process} within {timeout_s} s")

    async def open_topic(self, spec: TopicSpec) -> int:
        return await self._ask(lambda: self._server.open_topic(spec))

    async def has_topic(self, topic: str) -> bool:
        return await self._ask(lambda: self._server.has_topic(topic))

    async def append(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        payloads, server = tuple(payloads), self._server
        _check_sizes(payloads, server.max_entry_bytes)
        append = partial(server.append, topic, partition, payloads)
        await self._ask(append, torn=partial(server.append_torn, topic, partition, payloads), again=append)

    async def ends(self, topic: str) -> tuple[int, ...]:
        return await self._ask(lambda: self._server.ends(topic))

    async def begins(self, topic: str) -> tuple[int, ...]:
        return await self._ask(lambda: self._server.begins(topic))

    async def offset_at(self, topic: str, partition: int, at_ms: int) -> int:
        return await self._ask(lambda: self._server.offset_at(topic, partition, at_ms))

    async def trim(self, topic: str, partition: int, before: int) -> None:
        await self._ask(self._step(Step.TRIM, partial(self._server.trim, topic, partition, before)))

    async def read(self, topic: str, partition: int, start: int) -> AsyncGenerator[Sequence[LogEntry], None]:
        """Read in several requests: entries that are compacted or trimmed between two of them are not read."""
        at, end = start, None
        while end is None or at < end:
            read = partial(self._server.read_part, topic, partition, at, end)
            batch, at, end = await self._ask(self._step(Step.READ, read))
            if batch:
                yield batch

    async def tail(self, topic: str, starts: Sequence[int]) -> AsyncGenerator[Sequence[LogEntry], None]:
        tail = Tail(self._server, self.link, topic, starts)
        try:
            await self._attach(tail)
            while True:
                yield await tail.receive()
        finally:
            tail.close()

    async def exclusive(self, writer_id: str) -> SimulatedWriter:
        epoch = await self._ask(self._step(Step.BECOME_WRITER, partial(self._server.new_writer, writer_id)))
        return SimulatedWriter(self._server, self._ask, self._step, writer_id, epoch)

    def _step(self, step: Step, perform: Callable[[], T]) -> Callable[[], T]:
        """Wrap a request so that the server announces the step when it arrives."""
        server, process = self._server, self.link.process

        def announce_and_perform() -> T:
            server.reached(step, process)
            return perform()

        return announce_and_perform

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(NoAnswer):  # an answer means that all before it has arrived, as links keep order
            await self.link.call(_nothing, timeout_s=_FLUSH_TIMEOUT_S)
        self.link.close()

    async def _attach(self, tail: Tail) -> None:
        while True:
            try:
                return await self._ask(lambda: self._server.attach(tail))
            except LogUnavailable:
                if self._closed:
                    raise

    async def _ask(
        self,
        perform: Callable[[], T],
        timeout_s: float | None = None,
        *,
        torn: Callable[[], object] | None = None,
        again: Callable[[], object] | None = None,
    ) -> T:
        if self._closed:
            raise LogUnavailable("this log client was closed; make another one")
        try:
            return await self.link.call(perform, timeout_s=timeout_s or self._timeout_s, torn=torn, again=again)
        except NoAnswer as silence:
            raise LogUnavailable(f"{silence}; retry with back-off") from None


class _Ask(Protocol):
    async def __call__(
        self,
        perform: Callable[[], T],
        timeout_s: float | None = None,
        *,
        torn: Callable[[], object] | None = None,
        again: Callable[[], object] | None = None,
    ) -> T: ...


class _Step(Protocol):
    def __call__(self, step: Step, perform: Callable[[], T]) -> Callable[[], T]: ...


class SimulatedWriter:
    """An `ExclusiveWriter` of one epoch. After a commit with an unknown outcome it accepts no other."""

    def __init__(self, server: SimulatedLogServer, ask: _Ask, step: _Step, writer_id: str, epoch: int) -> None:
        self._server = server
        self._ask = ask
        self._step = step
        self._writer_id = writer_id
        self._epoch = epoch
        self._begun = 0
        self._in_doubt = False
        self._one_at_a_time = asyncio.Lock()

    async def commit(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        payloads, server = tuple(payloads), self._server
        _check_sizes(payloads, server.max_entry_bytes)
        async with self._one_at_a_time:
            if self._in_doubt:
                raise LogUnavailable(
                    "an earlier commit of this writer is in doubt, or it was closed; ask for a new one"
                )
            self._begun += 1
            commit = partial(server.commit, self._writer_id, self._epoch, self._begun, topic, partition, payloads)
            torn = partial(server.commit_torn, topic, partition, payloads)
            self._in_doubt = True  # also if this is cancelled
            with self._heard():
                await self._ask(self._step(Step.COMMIT, commit), torn=torn, again=commit)

    @contextlib.contextmanager
    def _heard(self) -> Generator[None]:
        """An answer of the server, even a refusal, leaves no doubt."""
        try:
            yield
        except WriterFenced:
            self._in_doubt = False
            raise
        self._in_doubt = False

    async def close(self) -> None:
        self._in_doubt = True


def _check_sizes(payloads: Sequence[Payload], most_bytes: int) -> None:
    for payload in payloads:
        size = len(payload.key or b"") + len(payload.value or b"")
        if size > most_bytes:
            raise RecordTooLarge(f"{size} bytes exceed the log's {most_bytes}; write smaller records")


def _nothing() -> None:
    """Only to hear an answer."""
