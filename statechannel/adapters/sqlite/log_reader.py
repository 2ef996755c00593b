"""The reading half of `SqliteLog`: one thread with its own connection that serves all readers of one client.

It reads ahead of each reader up to a bound, wakes at every commit of any process (see `wakeup.py`), and also polls the
file's `data_version` every few milliseconds. It retries while the file cannot be read. It ends a tail only if the next
entry was trimmed, or is missing or damaged.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from statechannel.adapters.sqlite.file import FileUnavailable, ForeignFile, SqliteFile, log_error, translated
from statechannel.adapters.sqlite.log_tables import NOTHING, OFFSETS, SCHEMA, Extent, StoredTopic, extents, next_batch
from statechannel.adapters.sqlite.wakeup import Ear
from statechannel.errors import LogError, LogUnavailable, Trimmed
from statechannel.ports import LogEntry
from statechannel.runtime.tasks import post, settle

POLL_S = 0.004
_RETRY_S = 0.05


class Question(msgspec.Struct, eq=False):
    """One call that asks about the file as of one commit."""

    ask: Callable[[sqlite3.Connection], Any]
    done: asyncio.Future[Any]


class LogReader:
    """Owns the reading connection and its thread."""

    def __init__(self, path: Path, *, loop: asyncio.AbstractEventLoop) -> None:
        self._path, self._loop, self._start_timeout_s = path, loop, 0.0
        self._ear = Ear(path)
        self._requests: queue.SimpleQueue[Question | tuple[Tail, bool] | None] = queue.SimpleQueue()
        self._tails: list[Tail] = []
        self._news: list[tuple[Tail, Sequence[LogEntry] | LogError | None]] = []
        """Results of one turn, handed to the loop together: batches, the error of a tail, None at the end of a read."""
        self._seen_version = -1
        self._extents: dict[int, Extent] = {}
        self._thread = threading.Thread(target=self._run, name=f"log-reader {path.name}", daemon=True)
        self.started: asyncio.Future[None] = loop.create_future()
        self.stopped: asyncio.Future[None] = loop.create_future()

    def start(self, timeout_s: float) -> None:
        self._start_timeout_s = timeout_s
        self._thread.start()

    def ask(self, question: Question) -> None:
        self._put(question)

    def add(self, tail: Tail) -> None:
        self._put((tail, True))

    def remove(self, tail: Tail) -> None:
        self._put((tail, False))

    def stop(self) -> None:
        self._put(None)

    def nudge(self) -> None:
        """Make the thread look again, since a tail that was full has room."""
        self._ear.nudge()

    def _put(self, request: Question | tuple[Tail, bool] | None) -> None:
        self._requests.put(request)
        self._ear.nudge()

    # --- the thread
    def _run(self) -> None:
        try:
            self._file = SqliteFile(self._path, SCHEMA, time.monotonic() + self._start_timeout_s)
        except (FileUnavailable, ForeignFile) as error:
            self._ear.close()
            post(self._loop, settle, self.stopped, None, None)
            post(self._loop, settle, self.started, None, log_error(error))
            return
        self._file.db.execute("PRAGMA busy_timeout = 500")
        post(self._loop, settle, self.started, None, None)
        try:
            while self._serve_requests():
                if not self._read():
                    self._ear.wait(POLL_S)
        finally:
            self._file.close()
            self._ear.close()
            post(self._loop, settle, self.stopped, None, None)

    def _serve_requests(self) -> bool:
        """Take all requests; False once the reader must stop."""
        while not self._requests.empty():
            match self._requests.get():
                case None:
                    return False
                case (tail, True):
                    self._tails.append(tail)
                case (tail, _):
                    self._tails.remove(tail)
                case Question() as question:
                    self._answer(question)
        return True

    def _answer(self, question: Question) -> None:
        answer, failure = None, None
        try:
            self._file.check_same()
            with self._file.reading() as db:
                answer = question.ask(db)
        except (FileUnavailable, ForeignFile) as error:
            failure = log_error(error)
        except Exception as error:  # noqa: BLE001 - the thread must outlive a bug, and its caller must hear of it
            failure = LogUnavailable(f"{self._path}: the reader failed: {error!r}")
        post(self._loop, settle, question.done, answer, failure)

    def _read(self) -> bool:
        """Read one batch for each partition that has more. Returns True if any has still more.

        After False no second look is needed: every later commit wakes the thread.
        """
        more = False
        try:
            if self._tails:  # else there is no reader, and there may be 10,000 partitions
                self._refresh_extents()
            for tail in self._tails:
                more |= self._read_tail(tail)
        except sqlite3.Error as error:
            failure = log_error(translated(self._path, error))
            if not isinstance(failure, LogUnavailable):
                for tail in self._tails:
                    self._fail(tail, failure)
            self._ear.wait(_RETRY_S)
        if self._news:
            post(self._loop, _hand_over, self._news)
            self._news = []
        return more

    def _refresh_extents(self) -> None:
        version = self._file.data_version()
        if version != self._seen_version:
            self._extents = extents(self._file.db)
            self._seen_version = version

    def _read_tail(self, tail: Tail) -> bool:
        """Read the next batches of a tail. Returns True if there is more, and room for it."""
        more = False
        try:
            for partition in tail.positions:
                if tail.is_over or not tail.has_room:
                    return False
                more |= self._read_partition(tail, partition)
        except msgspec.DecodeError as error:
            self._fail(tail, LogError(f"{self._path}: {tail.topic.name} is damaged: {error}; restore it from a backup"))
        except LogError as error:
            self._fail(tail, error)
        return more and not tail.is_over and tail.has_room

    def _read_partition(self, tail: Tail, partition: int) -> bool:
        """Read the next batch, if any. Returns True if there is more. Raises Trimmed, or LogError at a hole."""
        position, topic = tail.positions[partition], tail.topic
        extent = self._extents.get(topic.first_id + partition, NOTHING)
        before = tail.end_of(extent)
        if position >= before:
            self._end_if_read(tail)
            return False
        self._check_begin(tail, partition)
        bound = before if tail.only_what_is_there else OFFSETS
        batch = next_batch(self._file.db, topic, partition, position, bound, aligned=partition in tail.aligned)
        if batch.after > position:
            tail.aligned.add(partition)
            tail.positions[partition] = batch.after
        elif topic.compacted:
            tail.positions[partition] = before  # all that was left has been replaced
        else:
            self._refresh_extents()
            self._check_begin(tail, partition)
            text = f"{self._path}: offset {position} of {topic.name}/{partition} is missing; restore it from a backup"
            raise LogError(text)
        if batch.entries:
            tail.delivered += 1
            self._news.append((tail, batch.entries))
        if batch.is_last and topic.compacted:
            self._end_if_read(tail)
        return tail.positions[partition] < before

    def _check_begin(self, tail: Tail, partition: int) -> None:
        """Raises Trimmed if a reader of a plain topic is below its begin."""
        position = tail.positions[partition]
        begin = self._extents.get(tail.topic.first_id + partition, NOTHING).begin
        if position < begin and not tail.topic.compacted:
            raise Trimmed(
                f"{self._path}: offset {position} of {tail.topic.name}/{partition} was trimmed, it begins at {begin}: "
                "start from a snapshot"
            )

    def _end_if_read(self, tail: Tail) -> None:
        if tail.only_what_is_there:
            tail.is_over = True
            self._news.append((tail, None))

    def _fail(self, tail: Tail, error: LogError) -> None:
        tail.is_over = True
        self._news.append((tail, error))


def _hand_over(news: Sequence[tuple[Tail, Sequence[LogEntry] | LogError | None]]) -> None:
    for tail, arrived in news:
        match arrived:
            case None:
                tail.end()
            case LogError():
                tail.fail(arrived)
            case batch:
                tail.deliver(batch)


READ_AHEAD_BATCHES = 16
_READ_AHEAD_LOW = 8


class Tail:
    """Positions and batches of one reader. The thread owns the first group of attributes, the loop the second."""

    def __init__(self, topic: StoredTopic, starts: Mapping[int, int], *, only_what_is_there: bool = False) -> None:
        self.topic = topic
        self.positions = dict(starts)
        self.aligned: set[int] = set()
        """Partitions in which no chunk reaches across the position."""
        self.only_what_is_there = only_what_is_there
        """True for a `read`: it ends, and has one partition."""
        self._before: int | None = None
        self.is_over = False
        self.delivered = 0

        self.taken = 0
        self.batches: deque[Sequence[LogEntry]] = deque()
        self.failure: LogError | None = None
        self.ended = False
        self.arrived = asyncio.Event()

    # --- the thread
    @property
    def has_room(self) -> bool:
        return self.delivered - self.taken < READ_AHEAD_BATCHES

    def end_of(self, extent: Extent) -> int:
        """The offset before which to read at present.

        A `read` of a plain topic keeps the end that it saw first. A `read` of a compacted topic goes on until it finds
        no more: a key that is replaced meanwhile must not be missed.
        """
        if not self.only_what_is_there:
            return extent.end
        if self._before is None:
            self._before = OFFSETS if self.topic.compacted else extent.end
        return self._before

    # --- the loop
    def deliver(self, batch: Sequence[LogEntry]) -> None:
        self.batches.append(batch)
        self.arrived.set()

    def end(self) -> None:
        """The `read` is complete: no batch comes after those delivered."""
        self.ended = True
        self.arrived.set()

    def fail(self, error: LogError) -> None:
        if not self.ended and self.failure is None:
            self.failure = error
            self.arrived.set()

    async def take(self, nudge: Callable[[], None], timeout_s: float | None) -> Sequence[LogEntry] | None:
        """The next batch, None at the end of a `read`; LogUnavailable if it does not come within `timeout_s`."""
        while not self.batches:
            if self.ended:
                return None
            if self.failure is not None:
                raise self.failure
            self.arrived.clear()
            await self._arrival(timeout_s)
        self.taken += 1
        if self.delivered - self.taken == _READ_AHEAD_LOW:
            nudge()
        return self.batches.popleft()

    async def _arrival(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self.arrived.wait()
        except TimeoutError:
            text = f"{self.topic.name!r} could not be read for {timeout_s:g} s; check the disk and the file"
            raise LogUnavailable(text) from None
