"""The writing half of `SqliteLog`: one thread that puts everything that waits into one transaction (group commit).

An append of a plain topic becomes *chunks*: one row holds up to 1,000 entries, so that the cost of a row, and of
letting go of the interpreter lock at each of SQLite's steps, is paid once per group instead of once per entry. A
compacted topic has one row per entry, because its rows are superseded one by one.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from statechannel.adapters.sqlite_file import FileUnavailable, ForeignFile, SqliteFile, translated
from statechannel.adapters.sqlite_topics import (
    OFFSET_BITS,
    SCHEMA,
    StoredTopic,
    check_topic,
    create_topic,
    find_topic,
)
from statechannel.adapters.wakeup import Bell
from statechannel.errors import LogError, LogUnavailable, TopicMismatch
from statechannel.ports import Payload, TopicSpec

CHUNK_ENTRIES = 1_000
CHUNK_BYTES = 1 << 20
_GROUP_APPENDS = 4_096
_GROUP_BYTES = 16 << 20
_SWEEP_EVERY_S = 5.0
_ENTRY_OVERHEAD_BYTES = 64

# Few steps a transaction: at each of them this thread may have to wait for the interpreter lock, and others for us.
_ADVANCE = "UPDATE partitions SET next_offset = next_offset + ? WHERE id = ?"
_INSERT_CHUNK = f"""
    INSERT INTO chunks (place, appended_ms, entries)
    SELECT (id << {OFFSET_BITS}) + next_offset, ?, ? FROM partitions WHERE id = ?"""

_encode = msgspec.msgpack.Encoder().encode


class Append(msgspec.Struct, eq=False):
    """One call of `append` on its way; `done` lives on the loop."""

    partition_id: int
    compacted: bool
    payloads: Sequence[Payload]
    size_bytes: int
    done: asyncio.Future[None]


class OpenTopic(msgspec.Struct, eq=False):
    """One call of `open_topic` on its way."""

    spec: TopicSpec
    done: asyncio.Future[StoredTopic]


Settle = Callable[[Sequence[Append], LogError | None], None]
"""Called on the loop with the appends that a transaction took along, and why it failed if it did."""


class LogWriter:
    """Owns the writing connection and its thread."""

    def __init__(
        self, path: Path, *, loop: asyncio.AbstractEventLoop, settle: Settle, default_partitions: int,
        timeout_s: float, tombstone_s: float,
    ) -> None:  # fmt: skip
        self._path, self._loop, self._settle = path, loop, settle
        self._default_partitions, self._timeout_s, self._tombstone_s = default_partitions, timeout_s, tombstone_s
        self._queue: queue.SimpleQueue[Append | OpenTopic | None] = queue.SimpleQueue()
        self._next_sweep_s = self._start_timeout_s = 0.0
        self._thread = threading.Thread(target=self._run, name=f"log-writer {path.name}", daemon=True)
        self.started: asyncio.Future[None] = loop.create_future()
        self.stopped: asyncio.Future[None] = loop.create_future()

    def start(self, timeout_s: float) -> None:
        self._start_timeout_s = timeout_s
        self._thread.start()

    def put(self, item: Append | OpenTopic) -> None:
        """Hand over; the caller bounds how much is under way."""
        self._queue.put(item)

    def stop(self) -> None:
        """End the thread after everything that was put before."""
        self._queue.put(None)

    # --- the thread
    def _run(self) -> None:
        try:
            self._file = SqliteFile(self._path, SCHEMA, time.monotonic() + self._start_timeout_s)
        except (FileUnavailable, ForeignFile) as error:
            self._post(_succeed, self.stopped, None)
            self._post(_fail, self.started, log_error(error))
            return
        self._bell = Bell(self._path)
        self._post(_succeed, self.started, None)
        try:
            while self._turn():
                pass
        finally:
            self._bell.close()
            self._file.close()
            self._post(_succeed, self.stopped, None)

    def _turn(self) -> bool:
        """Take what waits, at most a group, and write it; False at the end."""
        item = self._queue.get()
        group: list[Append] = []
        size_bytes = 0
        while isinstance(item, Append):
            group.append(item)
            size_bytes += item.size_bytes
            if len(group) >= _GROUP_APPENDS or size_bytes >= _GROUP_BYTES:
                break
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
        if group:
            self._write(group)
        if isinstance(item, OpenTopic):
            self._open(item)
        return item is not None

    def _write(self, group: list[Append]) -> None:
        failure: LogError | None = None
        try:
            self._file.check_same()
            with self._file.transaction(time.monotonic() + self._timeout_s) as db:
                self._insert_group(db, group)
        except (FileUnavailable, ForeignFile) as error:
            failure = log_error(error)
        except Exception as error:  # noqa: BLE001 - the thread must outlive a bug, and its callers must hear of it
            failure = LogUnavailable(f"{self._path}: the writer failed: {error!r}")
        else:
            self._bell.ring()
        self._post(self._settle, group, failure)

    def _insert_group(self, db: sqlite3.Connection, group: list[Append]) -> None:
        now_ms = time.time_ns() // 1_000_000
        plain: dict[int, list[Payload]] = {}
        keyed: dict[int, list[Payload]] = {}
        for append in group:
            (keyed if append.compacted else plain).setdefault(append.partition_id, []).extend(append.payloads)
        for partition_id, payloads in plain.items():
            for chunk in chunks(payloads):
                entries = _encode([(p.key, p.value) for p in chunk])
                db.execute(_INSERT_CHUNK, (now_ms, entries, partition_id))
                db.execute(_ADVANCE, (len(chunk), partition_id))
        for partition_id, payloads in keyed.items():
            self._insert_keyed(db, partition_id, payloads, now_ms)
        if keyed and time.monotonic() >= self._next_sweep_s:
            self._next_sweep_s = time.monotonic() + _SWEEP_EVERY_S
            db.execute("DELETE FROM chunks WHERE dies_ms < ?", (now_ms,))

    def _insert_keyed(
        self, db: sqlite3.Connection, partition_id: int, payloads: Sequence[Payload], now_ms: int
    ) -> None:
        """Insert the last entry of each key and remove what it supersedes; the offsets of the others stay gaps."""
        first = _reserve(db, partition_id, len(payloads))
        last: dict[object, tuple[int, Payload]] = {}
        for place, payload in enumerate(payloads, first):
            last[place if payload.key is None else payload.key] = (place, payload)
        tombstone_dies_ms = now_ms + int(self._tombstone_s * 1000)
        for place, payload in last.values():
            if payload.key is not None:
                older = (payload.key, partition_id << OFFSET_BITS, first)
                db.execute("DELETE FROM chunks WHERE key = ? AND place >= ? AND place < ?", older)
            dies_ms = tombstone_dies_ms if payload.value is None and payload.key is not None else None
            entry = _encode([(payload.key, payload.value)])
            db.execute(
                "INSERT INTO chunks (place, appended_ms, entries, key, dies_ms) VALUES (?, ?, ?, ?, ?)",
                (place, now_ms, entry, payload.key, dies_ms),
            )

    def _open(self, item: OpenTopic) -> None:
        try:
            self._file.check_same()
            topic = find_topic(self._file.db, item.spec.name)
            if topic is None:
                with self._file.transaction(time.monotonic() + self._timeout_s) as db:
                    topic = create_topic(db, item.spec, self._default_partitions)
            check_topic(topic, item.spec)
        except sqlite3.Error as error:
            self._post(_fail, item.done, log_error(translated(self._path, error)))
        except (FileUnavailable, ForeignFile) as error:
            self._post(_fail, item.done, log_error(error))
        except TopicMismatch as error:
            self._post(_fail, item.done, error)
        else:
            self._post(_succeed, item.done, topic)

    def _post(self, call: Callable[..., None], *arguments: Any) -> None:
        post(self._loop, call, *arguments)


def _reserve(db: sqlite3.Connection, partition_id: int, count: int) -> int:
    """Take the next offsets of a partition; the place of the first."""
    (end,) = db.execute(_ADVANCE + " RETURNING next_offset", (count, partition_id)).fetchall()[0]
    return (partition_id << OFFSET_BITS) + end - count


def chunks(payloads: Sequence[Payload]) -> Iterator[Sequence[Payload]]:
    """Cut into runs of at most `CHUNK_ENTRIES` entries and, unless a single entry is larger, `CHUNK_BYTES`."""
    start, size_bytes = 0, 0
    for index, payload in enumerate(payloads):
        size_bytes += payload_bytes(payload)
        if index > start and (size_bytes > CHUNK_BYTES or index - start >= CHUNK_ENTRIES):
            yield payloads[start:index]
            start, size_bytes = index, payload_bytes(payload)
    yield payloads[start:]


def payload_bytes(payload: Payload) -> int:
    """What a payload takes, about."""
    return len(payload.key or b"") + len(payload.value or b"") + _ENTRY_OVERHEAD_BYTES


def log_error(error: FileUnavailable | ForeignFile) -> LogError:
    """The same in the words of the port."""
    return TopicMismatch(str(error)) if isinstance(error, ForeignFile) else LogUnavailable(str(error))


def post(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
    """Run a call on the loop, from another thread; nobody waits for it any more once the loop is closed."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _succeed(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
