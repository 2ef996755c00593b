"""The reading half of `SqliteLog`: one thread with a connection of its own that serves all tails of one client.

It reads ahead of each tail up to a bound, wakes at every commit of any process (see `wakeup.py`), and looks at the
file's `data_version` every few milliseconds besides. It rides out a file that cannot be read at present; it ends a
tail only if entries that must be there are not.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from statechannel.adapters.sqlite_file import FileUnavailable, ForeignFile, SqliteFile, translated
from statechannel.adapters.sqlite_log_writer import CHUNK_BYTES, CHUNK_ENTRIES, log_error, post
from statechannel.adapters.sqlite_topics import OFFSET_BITS, SCHEMA, StoredTopic
from statechannel.adapters.wakeup import Ear
from statechannel.errors import LogError, LogUnavailable
from statechannel.ports import LogEntry

POLL_S = 0.004
_READ_AHEAD_BATCHES = 16
_RETRY_S = 0.05
_OFFSETS = (1 << OFFSET_BITS) - 1
_NO_ROOM_EVER = 1 << 62
_NEXT_CHUNKS = "SELECT place, appended_ms, entries FROM chunks WHERE place >= ? AND place <= ? ORDER BY place"

_decode = msgspec.msgpack.Decoder(list[tuple[bytes | None, bytes | None]]).decode


class Tail:
    """One `tail` call. The thread owns `positions` and counts `delivered`; the loop owns the rest."""

    def __init__(self, topic: StoredTopic, starts: Sequence[int]) -> None:
        self.topic = topic
        self.positions = list(starts)
        self.aligned = [False] * len(starts)
        self.delivered = 0
        self.taken = 0
        self.batches: deque[Sequence[LogEntry]] = deque()
        self.failure: LogError | None = None
        self.arrived = asyncio.Event()

    @property
    def has_room(self) -> bool:
        return self.delivered - self.taken < _READ_AHEAD_BATCHES

    def fail(self, error: LogError) -> None:
        self.failure = error
        self.arrived.set()


class Ends(msgspec.Struct, eq=False):
    """One call of `ends` on its way."""

    topic: StoredTopic
    done: asyncio.Future[tuple[int, ...]]


class LogReader:
    """Owns the reading connection and its thread."""

    def __init__(self, path: Path, *, loop: asyncio.AbstractEventLoop) -> None:
        self._path, self._loop, self._start_timeout_s = path, loop, 0.0
        self._ear = Ear(path)
        self._requests: queue.SimpleQueue[Ends | tuple[Tail, bool] | None] = queue.SimpleQueue()
        self._tails: list[Tail] = []
        self._seen_version = -1
        self._ends: dict[int, int] = {}
        self._thread = threading.Thread(target=self._run, name=f"log-reader {path.name}", daemon=True)
        self.started: asyncio.Future[None] = loop.create_future()
        self.stopped: asyncio.Future[None] = loop.create_future()

    def start(self, timeout_s: float) -> None:
        self._start_timeout_s = timeout_s
        self._thread.start()

    def ask(self, request: Ends) -> None:
        self._put(request)

    def add(self, tail: Tail) -> None:
        self._put((tail, True))

    def remove(self, tail: Tail) -> None:
        self._put((tail, False))

    def stop(self) -> None:
        self._put(None)

    def nudge(self) -> None:
        """Look again: a tail that was full has room."""
        self._ear.nudge()

    def _put(self, request: Ends | tuple[Tail, bool] | None) -> None:
        self._requests.put(request)
        self._ear.nudge()

    # --- the thread
    def _run(self) -> None:
        try:
            self._file = SqliteFile(self._path, SCHEMA, time.monotonic() + self._start_timeout_s)
        except (FileUnavailable, ForeignFile) as error:
            self._ear.close()
            post(self._loop, _settle, self.stopped, None, None)
            post(self._loop, _settle, self.started, None, log_error(error))
            return
        self._file.db.execute("PRAGMA busy_timeout = 500")
        post(self._loop, _settle, self.started, None, None)
        try:
            while self._serve_requests():
                if not self._read():
                    self._ear.wait(POLL_S)
        finally:
            self._file.close()
            self._ear.close()
            post(self._loop, _settle, self.stopped, None, None)

    def _serve_requests(self) -> bool:
        """False once the reader is to stop."""
        while not self._requests.empty():
            match self._requests.get():
                case None:
                    return False
                case (tail, True):
                    self._tails.append(tail)
                case (tail, _):
                    self._tails.remove(tail)
                case Ends() as request:
                    self._answer(request)
        return True

    def _answer(self, request: Ends) -> None:
        topic = request.topic
        sql = "SELECT next_offset FROM partitions WHERE id >= ? AND id < ? ORDER BY id"
        ids = (topic.first_id, topic.first_id + topic.partitions)
        try:
            self._file.check_same()
            ends = tuple(row[0] for row in self._file.db.execute(sql, ids))
        except sqlite3.Error as error:
            post(self._loop, _settle, request.done, None, log_error(translated(self._path, error)))
        except FileUnavailable as error:
            post(self._loop, _settle, request.done, None, log_error(error))
        else:
            post(self._loop, _settle, request.done, ends, None)

    def _read(self) -> bool:
        """Read one batch for each partition that has more; whether some of them have still more.

        What is committed from here on rings the bell, so there is no need to look again at once.
        """
        ready: list[tuple[Tail, Sequence[LogEntry]]] = []
        more = False
        try:
            version = self._file.data_version()
            if version != self._seen_version:
                self._ends = dict(self._file.db.execute("SELECT id, next_offset FROM partitions").fetchall())
                self._seen_version = version
            for tail in self._tails:
                more |= self._read_tail(tail, ready)
        except sqlite3.Error as error:
            failure = log_error(translated(self._path, error))
            if not isinstance(failure, LogUnavailable):
                for tail in self._tails:
                    self._fail(tail, failure)
            self._ear.wait(_RETRY_S)
        if ready:
            post(self._loop, _deliver, ready)
        return more

    def _read_tail(self, tail: Tail, ready: list[tuple[Tail, Sequence[LogEntry]]]) -> bool:
        """Whether there is more, and room for it."""
        more = False
        for partition, position in enumerate(tail.positions):
            end = self._ends.get(tail.topic.first_id + partition, 0)
            if position >= end or not tail.has_room:
                continue
            try:
                batch, after = self._read_batch(tail, partition)
            except msgspec.DecodeError as error:
                self._fail(tail, LogError(f"{self._path}: {tail.topic.name}/{partition} is damaged: {error}"))
                return False
            if after == position and not tail.topic.compacted:
                text = f"{self._path}: offset {position} of {tail.topic.name}/{partition} is missing; restore it"
                self._fail(tail, LogError(text))
                return False
            tail.positions[partition] = after if after > position else end  # what is left of it was superseded
            if batch:
                tail.delivered += 1
                ready.append((tail, batch))
            more = more or tail.positions[partition] < end
        return more and tail.has_room

    def _fail(self, tail: Tail, error: LogError) -> None:
        tail.delivered = _NO_ROOM_EVER
        post(self._loop, tail.fail, error)

    def _read_batch(self, tail: Tail, partition: int) -> tuple[list[LogEntry], int]:
        """The next entries of a partition and the position after them; the same position if there are none."""
        position = after = tail.positions[partition]
        base = (tail.topic.first_id + partition) << OFFSET_BITS
        place = base + position if tail.aligned[partition] else self._chunk_with(base, base + position)
        batch: list[LogEntry] = []
        size_bytes = 0
        cursor = self._file.db.execute(_NEXT_CHUNKS, (place, base + _OFFSETS))
        try:
            for chunk_place, appended_ms, blob in cursor:
                first, rows = chunk_place - base, _decode(blob)
                full = len(batch) + len(rows) > CHUNK_ENTRIES or size_bytes + len(blob) > CHUNK_BYTES
                hole = first > after and not tail.topic.compacted
                if hole or (batch and full):
                    break
                entries = [LogEntry(partition, at, k, v, appended_ms) for at, (k, v) in enumerate(rows, first)]
                batch += entries[position - first :] if first < position else entries
                size_bytes += len(blob)
                after = max(after, first + len(rows))
        finally:
            cursor.close()  # or the statement would keep its snapshot, and the WAL would grow
        tail.aligned[partition] = tail.aligned[partition] or after > position
        return batch, after

    def _chunk_with(self, base: int, place: int) -> int:
        """Where the chunk begins that a place falls into, if any does."""
        sql = "SELECT max(place) FROM chunks WHERE place >= ? AND place <= ?"
        found = self._file.db.execute(sql, (base, place)).fetchone()[0]
        return place if found is None else found


def _deliver(ready: list[tuple[Tail, Sequence[LogEntry]]]) -> None:
    for tail, batch in ready:
        tail.batches.append(batch)
        tail.arrived.set()


def _settle(future: asyncio.Future[Any], result: Any, error: LogError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
