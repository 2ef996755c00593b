"""`ports.Log` on one SQLite file that several processes of one machine share.

Decides how much may be under way (a bound on the bytes that wait to be written) and who waits for what; writing is in
`sqlite_log_writer.py`, reading in `sqlite_log_reader.py`. Not for network file systems: SQLite's write-ahead log needs
memory that all its processes share.

A loop that is never idle should run with `sys.setswitchinterval(0.0005)` or so: with CPython's default of 5 ms the two
threads behind this were seen to wait for the interpreter lock for seconds, while the loop worked in steps of 2 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path
from typing import TypeVar

from statechannel.adapters.sqlite_log_reader import Ends, LogReader, Tail
from statechannel.adapters.sqlite_log_writer import Append, LogWriter, OpenTopic, payload_bytes
from statechannel.adapters.sqlite_topics import StoredTopic, check_topic
from statechannel.errors import LogError, LogUnavailable, RecordTooLarge, TopicMismatch
from statechannel.ports import LogEntry, Payload, TopicSpec

MAX_PAYLOAD_BYTES = 1 << 20
_CLOSE_S = 1.0
_READ_AHEAD_LOW = 8

T = TypeVar("T")


class Intake:
    """A bound on the bytes under way; who finds it full waits, first come, first served."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._under_way_bytes = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    async def enter(self, size_bytes: int, timeout_s: float) -> None:
        """Raises TimeoutError; then nothing was entered."""
        if not self._waiting and self._fits(size_bytes):
            self._under_way_bytes += size_bytes
            return
        place = (asyncio.get_running_loop().create_future(), size_bytes)
        self._waiting.append(place)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(place[0])
        except BaseException:
            if place[0].done():
                self._under_way_bytes -= size_bytes
            else:
                self._waiting.remove(place)
            self._admit()
            raise

    def leave(self, size_bytes: int) -> None:
        self._under_way_bytes -= size_bytes
        self._admit()

    def _fits(self, size_bytes: int) -> bool:
        return self._under_way_bytes == 0 or self._under_way_bytes + size_bytes <= self._limit_bytes

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1]):
            admitted, size_bytes = self._waiting.popleft()
            self._under_way_bytes += size_bytes
            admitted.set_result(None)


class SqliteLog:
    """A log client; any number of them, in any processes of this machine, share the file at `path`.

    `append_timeout_s` bounds each wait: for room in the queue, for the file's lock, for the disk. A tombstone of a
    compacted topic stays readable for `tombstone_s`. The directory of `path` must exist and be on a local disk.
    """

    def __init__(
        self,
        path: Path,
        *,
        default_partitions: int = 4,
        append_timeout_s: float = 5.0,
        tombstone_s: float = 60.0,
        queue_bytes: int = 64 << 20,
    ) -> None:
        self._path = path
        self._default_partitions = default_partitions
        self._append_timeout_s = append_timeout_s
        self._tombstone_s = tombstone_s
        self._intake = Intake(queue_bytes)
        self._topics: dict[str, StoredTopic] = {}
        self._tails: set[Tail] = set()
        self._writer: LogWriter | None = None
        self._reader: LogReader | None = None

    async def start(self, timeout_s: float) -> None:
        """Open or create the file. Raises LogUnavailable, or TopicMismatch if the file is not a log of ours."""
        loop = asyncio.get_running_loop()
        self._writer = LogWriter(
            self._path,
            loop=loop,
            settle=self._settle,
            default_partitions=self._default_partitions,
            timeout_s=self._append_timeout_s,
            tombstone_s=self._tombstone_s,
        )
        self._writer.start(timeout_s)
        await self._within(timeout_s + 1, self._writer.started, "start")
        self._reader = LogReader(self._path, loop=loop)
        self._reader.start(timeout_s)
        await self._within(timeout_s + 1, self._reader.started, "start")

    async def open_topic(self, spec: TopicSpec) -> int:
        writer = self._open_writer()
        known = self._topics.get(spec.name)
        if known is not None:
            check_topic(known, spec)
            return known.partitions
        done: asyncio.Future[StoredTopic] = asyncio.get_running_loop().create_future()
        writer.put(OpenTopic(spec, done))
        topic = await self._within(2 * self._append_timeout_s, done, "open a topic")
        self._topics[spec.name] = topic
        return topic.partitions

    async def append(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        stored = self._topic(topic)
        if not 0 <= partition < stored.partitions:
            raise TopicMismatch(f"topic {topic!r} has partitions 0 to {stored.partitions - 1}, not {partition}")
        if not payloads:
            return
        size_bytes = sum(map(payload_bytes, payloads))
        if size_bytes > MAX_PAYLOAD_BYTES:  # only then can one of them be
            _check_sizes(payloads)
        try:
            await self._intake.enter(size_bytes, self._append_timeout_s)
        except TimeoutError:
            text = f"{self._path}: the queue of appends stayed full for {self._append_timeout_s:g} s; try again later"
            raise LogUnavailable(text) from None
        try:
            writer = self._open_writer()
        except LogUnavailable:
            self._intake.leave(size_bytes)
            raise
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        partition_id = stored.first_id + partition
        writer.put(Append(partition_id, stored.compacted, payloads, size_bytes, done))
        await self._within(2 * self._append_timeout_s, done, "append")

    def _settle(self, appends: Sequence[Append], failure: LogError | None) -> None:
        for append in appends:
            self._intake.leave(append.size_bytes)
            if append.done.done():
                continue
            if failure is None:
                append.done.set_result(None)
            else:
                append.done.set_exception(type(failure)(*failure.args))  # one each: they collect tracebacks

    async def ends(self, topic: str) -> tuple[int, ...]:
        stored = self._topic(topic)
        done: asyncio.Future[tuple[int, ...]] = asyncio.get_running_loop().create_future()
        self._open_reader().ask(Ends(stored, done))
        return await self._within(self._append_timeout_s, done, "read the ends")

    async def tail(self, topic: str, starts: Sequence[int]) -> AsyncIterator[Sequence[LogEntry]]:
        stored, reader = self._topic(topic), self._open_reader()
        if len(starts) != stored.partitions or min(starts) < 0:
            raise TopicMismatch(
                f"{topic!r} needs a start offset, 0 or more, for each of {stored.partitions} partitions"
            )
        tail = Tail(stored, starts)
        self._tails.add(tail)
        reader.add(tail)
        try:
            while True:
                while tail.batches:
                    tail.taken += 1
                    if tail.delivered - tail.taken == _READ_AHEAD_LOW:
                        reader.nudge()
                    yield tail.batches.popleft()
                if tail.failure is not None:
                    raise tail.failure
                tail.arrived.clear()
                await tail.arrived.wait()
        finally:
            self._tails.discard(tail)
            reader.remove(tail)

    async def close(self) -> None:
        writer, reader = self._writer, self._reader
        self._writer = self._reader = None
        for tail in self._tails:
            tail.fail(LogUnavailable(f"{self._path}: this client was closed"))
        for half in (writer, reader):
            if half is not None:
                half.stop()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_CLOSE_S):
                        await half.stopped

    # --- what the calls share
    def _topic(self, name: str) -> StoredTopic:
        self._open_writer()
        topic = self._topics.get(name)
        if topic is None:
            raise TopicMismatch(f"this client has not opened topic {name!r}: call open_topic first")
        return topic

    def _open_writer(self) -> LogWriter:
        if self._writer is None:
            raise LogUnavailable(f"{self._path}: this client is closed or was not started")
        return self._writer

    def _open_reader(self) -> LogReader:
        if self._reader is None:
            raise LogUnavailable(f"{self._path}: this client is closed or was not started")
        return self._reader

    async def _within(self, timeout_s: float, answer: Awaitable[T], doing: str) -> T:
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            stuck = "is the disk stuck, or another process of this log stopped?"
            text = f"{self._path}: no answer within {timeout_s:g} s to {doing}; {stuck}"
            raise LogUnavailable(text) from None


def _check_sizes(payloads: Sequence[Payload]) -> None:
    for payload in payloads:
        size_bytes = len(payload.key or b"") + len(payload.value or b"")
        if size_bytes > MAX_PAYLOAD_BYTES:
            raise RecordTooLarge(
                f"a payload of {size_bytes} bytes exceeds the log's {MAX_PAYLOAD_BYTES}; nothing was written"
            )
