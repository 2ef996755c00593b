"""A simulated log server, and the client that is a `Log` for one process, with the delays and faults of its link.

What the server has taken it keeps, through outages too. Offsets are dense. An append may be lost, torn (a prefix of
it is taken), acknowledged to nobody, or taken twice, as far as `network.Faults` says.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from random import Random
from typing import TypeVar

import msgspec

from loadmanager.sim.network import Link, Network, NoAnswer
from statechannel.errors import LogError, LogUnavailable, RecordTooLarge, TopicMismatch
from statechannel.ports import LogEntry, Payload, TopicSpec

T = TypeVar("T")

LOG_SERVER = "log"
DEFAULT_PARTITIONS = 4
MAX_BATCH = 1_000
_INBOX_BATCHES = 16
_FLUSH_TIMEOUT_S = 1.0


class _Topic(msgspec.Struct, eq=False):
    spec: TopicSpec
    partitions: list[list[LogEntry]]
    firsts: list[int]


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
        self._random = random
        self._wall_ms = wall_ms
        self._default_partitions = default_partitions
        self._topics: dict[str, _Topic] = {}
        self._tails: list[Tail] = []
        self.on_append: Callable[[str, LogEntry], None] | None = None
        """If set, called with each entry at the instant at which the server took it, before anybody can read it."""

    def open_topic(self, spec: TopicSpec) -> int:
        topic = self._topics.get(spec.name)
        if topic is None:
            count = spec.partitions or self._default_partitions
            topic = self._topics[spec.name] = _Topic(spec, [[] for _ in range(count)], [0] * count)
        if topic.spec.compacted != spec.compacted or spec.partitions not in (None, len(topic.partitions)):
            raise TopicMismatch(
                f"topic {spec.name} exists with {len(topic.partitions)} partitions, compacted={topic.spec.compacted}; "
                f"asked for {spec.partitions}, compacted={spec.compacted}. Use another name, or delete the topic"
            )
        return len(topic.partitions)

    def append(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        entries = self._partition(topic, partition)
        now_ms, first = self._wall_ms(), self._topics[topic].firsts[partition]
        for payload in payloads:
            offset = first + len(entries)
            entries.append(LogEntry(partition, offset, payload.key, payload.value, now_ms))
            if self.on_append is not None:
                self.on_append(topic, entries[-1])
        for tail in tuple(self._tails):
            if tail.topic == topic:
                tail.send_next()

    def append_torn(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        """Take a prefix, most often an empty one."""
        if taken := payloads[: self._random.randint(-len(payloads), len(payloads) - 1)]:
            self.append(topic, partition, taken)

    def ends(self, topic: str) -> tuple[int, ...]:
        found = self._topic(topic)
        return tuple(first + len(part) for first, part in zip(found.firsts, found.partitions, strict=True))

    def trim(self, topic: str, partition: int, before: int) -> None:
        """Forget the entries below an offset."""
        entries, firsts = self._partition(topic, partition), self._topics[topic].firsts
        drop = max(0, min(before - firsts[partition], len(entries)))
        del entries[:drop]
        firsts[partition] += drop

    def read(self, topic: str, partition: int, start: int) -> Sequence[LogEntry]:
        """At most MAX_BATCH entries from an offset on. Raises LogError if the offset was trimmed."""
        entries, first = self._partition(topic, partition), self._topics[topic].firsts[partition]
        if start < first:
            raise LogError(f"{topic}/{partition}: offset {start} was trimmed, the log begins at {first}; reload")
        return tuple(entries[start - first : start - first + MAX_BATCH])

    def attach(self, tail: Tail) -> None:
        """Serve a reader from now on. Idempotent; a reader that was closed meanwhile is left alone."""
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

    def _partition(self, topic: str, partition: int) -> list[LogEntry]:
        partitions = self._topic(topic).partitions
        if not 0 <= partition < len(partitions):
            raise LogError(f"topic {topic} has partitions 0 to {len(partitions) - 1}, not {partition}")
        return partitions[partition]


class Tail:
    """One reader of one topic: the server's position in it, and the client's inbox.

    One batch is under way at a time, so batches grow with load; the inbox is bounded, so a paused reader holds the
    server's position back.
    """

    def __init__(self, server: SimulatedLogServer, link: Link, topic: str, starts: Sequence[int]) -> None:
        self.topic = topic
        self.closed = False
        self._server = server
        self._link = link
        self._next = list(starts)
        self._turn = 0
        self._sending = False
        self._inbox: deque[Sequence[LogEntry] | LogError] = deque()
        self._arrival: asyncio.Future[None] | None = None

    def send_next(self) -> None:
        """Send the next batch, of the partitions in turn, if there is one and room for it."""
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
        for _ in self._next:
            self._turn = (self._turn + 1) % len(self._next)
            if batch := self._server.read(self.topic, self._turn, self._next[self._turn]):
                self._next[self._turn] = batch[-1].offset + 1
                return batch
        return ()

    def _arrived(self, batch: Sequence[LogEntry] | LogError) -> None:
        self._sending = False
        self._inbox.append(batch)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
        self.send_next()


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
        return await self._ask(lambda: self._server.open_topic(spec), self._timeout_s)

    async def append(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        payloads, server = tuple(payloads), self._server
        for payload in payloads:
            size = len(payload.key or b"") + len(payload.value or b"")
            if size > server.max_entry_bytes:
                raise RecordTooLarge(f"{size} bytes exceed the log's {server.max_entry_bytes}; write smaller records")
        await self._ask(
            lambda: server.append(topic, partition, payloads),
            self._timeout_s,
            torn=lambda: server.append_torn(topic, partition, payloads),
            again=lambda: server.append(topic, partition, payloads),
        )

    async def ends(self, topic: str) -> tuple[int, ...]:
        return await self._ask(lambda: self._server.ends(topic), self._timeout_s)

    async def tail(self, topic: str, starts: Sequence[int]) -> AsyncGenerator[Sequence[LogEntry], None]:
        tail = Tail(self._server, self.link, topic, starts)
        try:
            await self._attach(tail)
            while True:
                yield await tail.receive()
        finally:
            tail.close()

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
                return await self._ask(lambda: self._server.attach(tail), self._timeout_s)
            except LogUnavailable:
                if self._closed:
                    raise

    async def _ask(
        self,
        perform: Callable[[], T],
        timeout_s: float,
        torn: Callable[[], object] | None = None,
        again: Callable[[], object] | None = None,
    ) -> T:
        if self._closed:
            raise LogUnavailable("this log client was closed; make another one")
        try:
            return await self.link.call(perform, timeout_s=timeout_s, torn=torn, again=again)
        except NoAnswer as silence:
            raise LogUnavailable(f"{silence}; retry with back-off") from None


def _nothing() -> None:
    """Only to hear an answer."""
