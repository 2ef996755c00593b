"""`ports.Log` on one SQLite file that several processes of one machine share.

Bounds the bytes that wait to be written: one bound for appends, one for groups. `log_writer.py` writes and
`log_reader.py` reads, each in threads of its own; `log_tables.py` has the format. Not for network file systems:
SQLite's write-ahead log needs memory that all its processes share.

A loop that is never idle should run with `sys.setswitchinterval(0.0005)` or so. With CPython's default of 5 ms these
threads waited for the interpreter lock for seconds, while the loop worked in steps of 2 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import Any, TypeVar

from statechannel.adapters.sqlite import log_tables
from statechannel.adapters.sqlite.log_reader import LogReader, Question, Tail
from statechannel.adapters.sqlite.log_tables import (
    MAX_PAYLOAD_BYTES,
    Keeping,
    StoredTopic,
    check_topic,
    checked_size_bytes,
    find_topic,
)
from statechannel.adapters.sqlite.log_writer import (
    Append,
    Claim,
    Group,
    LogWriter,
    OpenTopic,
    Write,
    raise_begin,
    raised,
)
from statechannel.errors import LogError, LogUnavailable, TopicMismatch
from statechannel.ports import LogEntry, Payload, TopicSpec

__all__ = ["MAX_PAYLOAD_BYTES", "SqliteLog"]

_CLOSE_S = 1.0
_SLOW_DISK_BYTES_S = 4 << 20
_LARGE_BYTES = 1 << 20

T = TypeVar("T")


class SqliteLog:
    """A log client; any number of them, in any processes of this machine, share the file at `path`.

    `append_timeout_s` bounds each wait: for room in the queue, for the file's lock, for the disk. A tombstone of a
    compacted topic stays readable for `tombstone_s`; each entry of a followed topic for `compaction_lag_s`, even if
    replaced. The directory of `path` must exist and be on a local disk.
    """

    def __init__(
        self,
        path: Path,
        *,
        default_partitions: int = 4,
        append_timeout_s: float = 5.0,
        tombstone_s: float = 60.0,
        compaction_lag_s: float = 86_400.0,
        queue_bytes: int = 64 << 20,
    ) -> None:
        self._path = path
        self._default_partitions = default_partitions
        self._append_timeout_s = append_timeout_s
        self._keeping = Keeping(int(tombstone_s * 1000))
        self._keeping_followed = Keeping(int(tombstone_s * 1000), int(compaction_lag_s * 1000))
        self._intake, self._group_intake = Intake(queue_bytes), Intake(queue_bytes)
        self._topics: dict[str, StoredTopic] = {}
        self._followed: set[str] = set()
        self._tails: set[Tail] = set()
        self._writer: LogWriter | None = None
        self._group_writer: LogWriter | None = None
        self._reader: LogReader | None = None

    async def start(self, timeout_s: float) -> None:
        """Open or create the file. Raises LogUnavailable, or TopicMismatch if the file is not a log of ours."""
        self._writer = self._new_writer(sweeps=False)
        self._writer.start(timeout_s)
        await self._within(timeout_s + 1, self._writer.started, "start")  # creates the file for the other threads
        self._group_writer = self._new_writer(sweeps=True)
        self._reader = LogReader(self._path, loop=asyncio.get_running_loop())
        for thread in (self._group_writer, self._reader):
            thread.start(timeout_s)
        for thread in (self._group_writer, self._reader):
            await self._within(timeout_s + 1, thread.started, "start")

    def _new_writer(self, *, sweeps: bool) -> LogWriter:
        return LogWriter(
            self._path,
            loop=asyncio.get_running_loop(),
            settle=self._settle,
            default_partitions=self._default_partitions,
            timeout_s=self._append_timeout_s,
            sweeps=sweeps,
        )

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
        if spec.followed:
            self._followed.add(spec.name)
        return topic.partitions

    async def has_topic(self, topic: str) -> bool:
        return await self._ask(lambda db: find_topic(db, topic), "look for a topic") is not None

    async def append(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        stored = self._topic(topic)
        partition_id = stored.partition_id(partition)
        if not payloads:
            return
        size_bytes = checked_size_bytes(payloads)
        await self._enter(self._intake, size_bytes)
        try:
            writer = self._open_writer()
        except LogUnavailable:
            self._intake.leave(size_bytes)
            raise
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        writer.put(Append(partition_id, self._keeping_of(stored), payloads, size_bytes, done))
        await self._within(2 * self._append_timeout_s, done, "append")

    async def _enter(self, intake: Intake, size_bytes: int) -> None:
        try:
            await intake.enter(size_bytes, self._append_timeout_s)
        except TimeoutError:
            text = f"{self._path}: the queue of appends stayed full for {self._append_timeout_s:g} s; try again later"
            raise LogUnavailable(text) from None

    def _settle(self, appends: Sequence[Append], failure: LogError | None) -> None:
        for append in appends:
            self._intake.leave(append.size_bytes)
            if append.done.done():
                continue
            if failure is None:
                append.done.set_result(None)
            else:
                append.done.set_exception(type(failure)(*failure.args))  # a new one each: they collect tracebacks

    async def ends(self, topic: str) -> tuple[int, ...]:
        stored = self._topic(topic)
        return await self._ask(lambda db: log_tables.ends(db, stored), "read the ends")

    def tail(self, topic: str, starts: Sequence[int]) -> AsyncGenerator[Sequence[LogEntry]]:
        return self._entries(topic, dict(enumerate(starts)), only_what_is_there=False)

    # --- a log that lives for years
    def read(self, topic: str, partition: int, start: int) -> AsyncGenerator[Sequence[LogEntry]]:
        """As `Log.read`; the call counts as made when the first batch is asked for."""
        return self._entries(topic, {partition: start}, only_what_is_there=True)

    async def begins(self, topic: str) -> tuple[int, ...]:
        stored = self._topic(topic)
        return await self._ask(lambda db: log_tables.begins(db, stored), "read the begins")

    async def offset_at(self, topic: str, partition: int, at_ms: int) -> int:
        partition_id = self._topic(topic).partition_id(partition)
        return await self._ask(lambda db: log_tables.offset_at(db, partition_id, at_ms), "look up a time")

    async def trim(self, topic: str, partition: int, before: int) -> None:
        """As `Log.trim`; the space is freed moments later. Raises TopicMismatch for a compacted topic."""
        stored = self._topic(topic)
        partition_id = stored.partition_id(partition)
        if stored.compacted:
            raise TopicMismatch(f"topic {topic!r} is compacted and cannot be trimmed: delete its keys instead")
        await self._write(lambda db: raise_begin(db, partition_id, before), "trim", trims=partition_id)

    async def exclusive(self, writer_id: str) -> SqliteExclusiveWriter:
        claim: Claim = await self._write(lambda db: raised(db, writer_id), "become the exclusive writer")
        return SqliteExclusiveWriter(claim, self._commit)

    async def _commit(self, claim: Claim, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        stored = self._topic(topic)
        partition_id = stored.partition_id(partition)
        if not payloads:
            return
        size_bytes = checked_size_bytes(payloads)
        group = Group(claim, partition_id, payloads, self._keeping_of(stored))
        await self._enter(self._group_intake, size_bytes)
        timeout_s = 2 * self._append_timeout_s + size_bytes / _SLOW_DISK_BYTES_S
        try:
            await self._write(
                group.write, "commit a group", timeout_s, prepare=group.prepare, large=size_bytes > _LARGE_BYTES
            )
        finally:
            self._group_intake.leave(size_bytes)

    async def _write(
        self, body: Callable[[Connection], T], doing: str, timeout_s: float | None = None, **kind: Any
    ) -> T:
        """A write transaction of the group writer, which does not delay appends."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        writer = self._group_writer
        if writer is None:
            raise self._closed()
        writer.put(Write(body, done, **kind))
        return await self._within(timeout_s or 2 * self._append_timeout_s, done, doing)

    async def close(self) -> None:
        threads = (self._reader, self._group_writer, self._writer)
        self._writer = self._group_writer = self._reader = None
        for tail in self._tails:
            tail.fail(LogUnavailable(f"{self._path}: this client was closed"))
        for thread in threads:  # one by one: if two close at once, SQLite takes neither for the last
            if thread is not None:
                thread.stop()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_CLOSE_S):
                        await thread.stopped

    # --- what the calls share
    async def _entries(
        self, topic: str, starts: Mapping[int, int], *, only_what_is_there: bool
    ) -> AsyncGenerator[Sequence[LogEntry]]:
        stored, reader = self._topic(topic), self._open_reader()
        for partition in starts:
            stored.partition_id(partition)
        if min(starts.values(), default=-1) < 0 or not (only_what_is_there or len(starts) == stored.partitions):
            raise TopicMismatch(f"{topic!r} needs a start, 0 or more, for each of its {stored.partitions} partitions")
        tail = Tail(stored, starts, only_what_is_there=only_what_is_there)
        self._tails.add(tail)
        reader.add(tail)
        try:
            timeout_s = self._append_timeout_s if only_what_is_there else None
            while (batch := await tail.take(reader.nudge, timeout_s)) is not None:
                yield batch
        finally:
            self._tails.discard(tail)
            reader.remove(tail)

    async def _ask(self, ask: Callable[[Connection], Any], doing: str) -> Any:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open_reader().ask(Question(ask, done))
        return await self._within(self._append_timeout_s, done, doing)

    def _keeping_of(self, topic: StoredTopic) -> Keeping | None:
        if not topic.compacted:
            return None
        return self._keeping_followed if topic.name in self._followed else self._keeping

    def _topic(self, name: str) -> StoredTopic:
        self._open_writer()
        topic = self._topics.get(name)
        if topic is None:
            raise TopicMismatch(f"this client has not opened topic {name!r}: call open_topic first")
        return topic

    def _open_writer(self) -> LogWriter:
        if self._writer is None:
            raise self._closed()
        return self._writer

    def _open_reader(self) -> LogReader:
        if self._reader is None:
            raise self._closed()
        return self._reader

    def _closed(self) -> LogUnavailable:
        return LogUnavailable(f"{self._path}: this client is closed or was not started")

    async def _within(self, timeout_s: float, answer: Awaitable[T], doing: str) -> T:
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            stuck = "check whether the disk hangs, or another process of this log is stopped"
            text = f"{self._path}: no answer within {timeout_s:g} s to {doing}; {stuck}"
            raise LogUnavailable(text) from None


class SqliteExclusiveWriter:
    """`ports.ExclusiveWriter`; has only its claim, and writes through the log that made it."""

    def __init__(self, claim: Claim, commit: Callable[[Claim, str, int, Sequence[Payload]], Awaitable[None]]) -> None:
        self._claim, self._commit = claim, commit
        self._closed = False

    async def commit(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        if self._closed:
            raise LogUnavailable(f"this writer of {self._claim.writer_id!r} is closed: ask the log for a new one")
        await self._commit(self._claim, topic, partition, payloads)

    async def close(self) -> None:
        self._closed = True


class Intake:
    """A bound on the bytes under way. An append larger than the bound enters alone."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._under_way_bytes = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    async def enter(self, size_bytes: int, timeout_s: float) -> None:
        """Wait for room and take it. Raises TimeoutError; then nothing is taken."""
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
