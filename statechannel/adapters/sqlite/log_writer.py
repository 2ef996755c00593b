"""The writing half of `SqliteLog`: a thread that puts all waiting appends into one transaction (group commit).

Every other write (a new topic, a trim, an exclusive writer's group) is a transaction of its own, in the order of the
calls. A client has two of these threads: one appends, the other does long work (groups of tens of MB, sweeps after
trims), so that appends wait only for the file's lock.

A trim raises the begin of a partition in one step. Readers go by the begin alone, so it counts as soon as that row is
committed. The rows below are *swept* afterwards, a few MB in each transaction, so that no append waits for a trim of
gigabytes. After a crash the next process that opens the file continues the sweep. SQLite reuses the freed space before
the file grows again.

Each id of an exclusive writer has a number that a new writer raises and every commit checks. Both are write
transactions of one file, and SQLite runs one at a time: an earlier writer's commits all come before the number is
raised, and none after it.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import msgspec

from statechannel.adapters.sqlite.file import FileUnavailable, ForeignFile, SqliteFile, log_error, translated
from statechannel.adapters.sqlite.log_tables import (
    OFFSET_BITS,
    SCHEMA,
    Chunk,
    Keeping,
    StoredTopic,
    check_topic,
    create_topic,
    drop_dead,
    encoded_chunks,
    find_topic,
    insert_chunks,
    insert_keyed,
)
from statechannel.adapters.sqlite.wakeup import Bell
from statechannel.errors import LogError, LogUnavailable, TopicMismatch, WriterFenced
from statechannel.ports import Payload, TopicSpec
from statechannel.runtime.tasks import post, settle

_GROUP_APPENDS = 4_096
_GROUP_BYTES = 16 << 20
_DROP_DEAD_EVERY_S = 5.0


class Append(msgspec.Struct, eq=False):
    """One waiting call of `append`; `done` belongs to the loop."""

    partition_id: int
    keeping: Keeping | None
    """None for a plain topic."""
    payloads: Sequence[Payload]
    size_bytes: int
    done: asyncio.Future[None]


class OpenTopic(msgspec.Struct, eq=False):
    """One waiting call of `open_topic`."""

    spec: TopicSpec
    done: asyncio.Future[StoredTopic]


class Write(msgspec.Struct, eq=False):
    """Any other waiting write transaction; its result, or the LogError that it raises, settles `done`."""

    body: Callable[[sqlite3.Connection], Any]
    done: asyncio.Future[Any]
    prepare: Callable[[], None] | None = None
    """Work to do before the transaction, which keeps other writers waiting."""
    large: bool = False
    trims: int | None = None
    """The id of the partition to sweep afterwards."""


Item = Append | OpenTopic | Write
Settle = Callable[[Sequence[Append], LogError | None], None]
"""Called on the loop with the appends of one transaction, and its error if it failed."""


class LogWriter:
    """Owns a writing connection and its thread."""

    def __init__(
        self, path: Path, *, loop: asyncio.AbstractEventLoop, settle: Settle, default_partitions: int,
        timeout_s: float, sweeps: bool = False,
    ) -> None:  # fmt: skip
        self._path, self._loop, self._settle = path, loop, settle
        self._default_partitions, self._timeout_s = default_partitions, timeout_s
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._next_drop_s = self._start_timeout_s = 0.0
        self._sweeps = sweeps
        self._sweeper: Sweeper | None = None
        self._thread = threading.Thread(target=self._run, name=f"log-writer {path.name}", daemon=True)
        self.started: asyncio.Future[None] = loop.create_future()
        self.stopped: asyncio.Future[None] = loop.create_future()

    def start(self, timeout_s: float) -> None:
        self._start_timeout_s = timeout_s
        self._thread.start()

    def put(self, item: Item) -> None:
        """Queue an item; the caller bounds how much is under way."""
        self._queue.put(item)

    def stop(self) -> None:
        """End the thread after all items that were put before."""
        self._queue.put(None)

    # --- the thread
    def _run(self) -> None:
        try:
            self._file = SqliteFile(self._path, SCHEMA, time.monotonic() + self._start_timeout_s)
        except (FileUnavailable, ForeignFile) as error:
            self._post(settle, self.stopped, None, None)
            self._post(settle, self.started, None, log_error(error))
            return
        self._sweeper = Sweeper(self._file) if self._sweeps else None
        self._bell = Bell(self._path)
        self._post(settle, self.started, None, None)
        try:
            while self._turn():
                if self._sweeper is not None:
                    self._sweeper.step()
        finally:
            self._bell.close()
            self._file.close()
            self._post(settle, self.stopped, None, None)

    def _turn(self) -> bool:
        """Take waiting items, at most one group of appends, and write them; False at the end."""
        try:
            item = self._queue.get(timeout=None if self._sweeper is None else self._sweeper.wait_s)
        except queue.Empty:
            return True
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
            failure, _ = self._transact(lambda db: self._insert_group(db, group))
            self._post(self._settle, group, failure)
        if isinstance(item, OpenTopic):
            self._open(item)
        elif isinstance(item, Write):
            self._write(item)
        return item is not None

    def _transact(
        self,
        body: Callable[[sqlite3.Connection], Any],
        *,
        prepare: Callable[[], None] | None = None,
        large: bool = False,
    ) -> tuple[LogError | None, Any]:
        """Run one write transaction; returns its error, or None and its result."""
        try:
            self._file.check_same()
            if prepare is not None:
                prepare()
            with self._file.transaction(time.monotonic() + self._timeout_s, large=large) as db:
                result = body(db)
        except (FileUnavailable, ForeignFile) as error:
            return log_error(error), None
        except LogError as error:
            return error, None
        except Exception as error:  # noqa: BLE001 - the thread must outlive a bug, and its callers must hear of it
            return LogUnavailable(f"{self._path}: the writer failed: {error!r}"), None
        self._bell.ring()
        return None, result

    def _insert_group(self, db: sqlite3.Connection, group: list[Append]) -> None:
        now_ms = time.time_ns() // 1_000_000
        plain: dict[int, list[Payload]] = {}
        keyed: dict[tuple[int, Keeping], list[Payload]] = {}
        for append in group:
            if append.keeping is None:
                plain.setdefault(append.partition_id, []).extend(append.payloads)
            else:
                keyed.setdefault((append.partition_id, append.keeping), []).extend(append.payloads)
        for partition_id, payloads in plain.items():
            insert_chunks(db, partition_id, encoded_chunks(payloads), now_ms)
        for (partition_id, keeping), payloads in keyed.items():
            insert_keyed(db, partition_id, payloads, now_ms, keeping)
        if keyed and time.monotonic() >= self._next_drop_s:
            self._next_drop_s = time.monotonic() + _DROP_DEAD_EVERY_S
            drop_dead(db, now_ms)

    def _write(self, item: Write) -> None:
        if item.done.done():
            return  # its caller has given up
        failure, result = self._transact(item.body, prepare=item.prepare, large=item.large)
        if failure is not None:
            self._post(settle, item.done, None, failure)
            return
        self._post(settle, item.done, result, None)
        if item.large:
            self._file.checkpoint()
        if item.trims is not None and self._sweeper is not None:
            self._sweeper.add(item.trims)

    def _open(self, item: OpenTopic) -> None:
        try:
            self._file.check_same()
            topic = find_topic(self._file.db, item.spec.name)
            if topic is None:
                with self._file.transaction(time.monotonic() + self._timeout_s) as db:
                    topic = create_topic(db, item.spec, self._default_partitions)
            check_topic(topic, item.spec)
        except sqlite3.Error as error:
            self._post(settle, item.done, None, log_error(translated(self._path, error)))
        except (FileUnavailable, ForeignFile) as error:
            self._post(settle, item.done, None, log_error(error))
        except TopicMismatch as error:
            self._post(settle, item.done, None, error)
        else:
            self._post(settle, item.done, topic, None)

    def _post(self, call: Callable[..., None], *arguments: Any) -> None:
        post(self._loop, call, *arguments)


_STEP_BYTES = 4 << 20
_STEP_CHUNKS = 2_000
_STEP_WAIT_S = 1.0
_RETRY_S = 0.5

_RAISE_BEGIN = """
    INSERT INTO begins (id, begin_offset) SELECT id, min(?, next_offset) FROM partitions WHERE id = ?
    ON CONFLICT (id) DO UPDATE SET begin_offset = max(begin_offset, excluded.begin_offset)"""
_EXTENT = "SELECT begin_offset, next_offset FROM begins JOIN partitions USING (id) WHERE id = ?"
_CHUNK_WITH = "SELECT max(place) FROM chunks WHERE place >= ? AND place <= ?"
_STEP_TO = """
    SELECT max(place) FROM (
        SELECT place, sum(size) OVER (ORDER BY place ROWS UNBOUNDED PRECEDING) - size AS bytes_before FROM (
            SELECT place, length(entries) AS size FROM chunks WHERE place >= ? AND place < ? ORDER BY place LIMIT ?))
    WHERE bytes_before < ?"""


def raise_begin(db: sqlite3.Connection, partition_id: int, before: int) -> None:
    """The body of a trim's transaction: raise the begin to `before`, at most to the end."""
    db.execute(_RAISE_BEGIN, (before, partition_id))


class Sweeper:
    """Removes rows below the begins, step by step, for the thread that owns `file`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._pending: list[int] | None = None
        """Partitions that may have rows to sweep; None before the first look at what other processes left."""
        self._not_before_s = 0.0

    def add(self, partition_id: int) -> None:
        if self._pending is not None and partition_id not in self._pending:
            self._pending.append(partition_id)

    @property
    def wait_s(self) -> float | None:
        """How long the thread may be idle before the next step; None if there is nothing to sweep."""
        return None if self._pending == [] else max(0.0, self._not_before_s - time.monotonic())

    def step(self) -> None:
        """One small transaction, if there is something to sweep; a failed step is tried again later."""
        if self.wait_s != 0:
            return
        began_s = time.monotonic()
        try:
            if self._pending is None:
                self._pending = [row[0] for row in self._file.db.execute("SELECT id FROM begins").fetchall()]
            elif not self._sweep(self._pending[0]):
                self._pending.pop(0)
            ended_s = time.monotonic()
            self._not_before_s = ended_s + (ended_s - began_s)  # leaves half of the time to other writers
        except (sqlite3.Error, FileUnavailable, ForeignFile):
            self._not_before_s = time.monotonic() + _RETRY_S

    def _sweep(self, partition_id: int) -> bool:
        """Remove the next rows. Returns True if there were any."""
        to = self._step_to(partition_id)
        if to is None:
            return False
        with self._file.transaction(time.monotonic() + _STEP_WAIT_S, durable=False) as db:
            db.execute("DELETE FROM chunks WHERE place >= ? AND place <= ?", (partition_id << OFFSET_BITS, to))
        return True

    def _step_to(self, partition_id: int) -> int | None:
        """The last place that the next step removes, None if nothing is left."""
        db, base = self._file.db, partition_id << OFFSET_BITS
        begin, end = db.execute(_EXTENT, (partition_id,)).fetchall()[0]
        kept = base + end
        if begin < end:  # the chunk with the entry at `begin` stays whole
            kept = db.execute(_CHUNK_WITH, (base, base + begin)).fetchall()[0][0] or base
        return db.execute(_STEP_TO, (base, kept, _STEP_CHUNKS, _STEP_BYTES)).fetchall()[0][0]


_RAISE = """
    INSERT INTO writers (id, number) VALUES (?, 1)
    ON CONFLICT (id) DO UPDATE SET number = number + 1 RETURNING number"""


class Claim(msgspec.Struct, frozen=True):
    """The number under which a client became the writer of an id."""

    writer_id: str
    number: int

    def check(self, db: Connection) -> None:
        """Check the number, in the transaction that writes. Raises WriterFenced."""
        rows = db.execute("SELECT number FROM writers WHERE id = ?", (self.writer_id,)).fetchall()
        if rows != [(self.number,)]:
            raise WriterFenced(
                f"another client became the exclusive writer of {self.writer_id!r}; nothing was written: stop writing"
            )


def raised(db: Connection, writer_id: str) -> Claim:
    """Fence the previous writer of this id; the body of a write transaction."""
    return Claim(writer_id, db.execute(_RAISE, (writer_id,)).fetchall()[0][0])


class Group:
    """The payloads of one commit. Both steps run in the writing thread; only `write` keeps other writers waiting."""

    def __init__(self, claim: Claim, partition_id: int, payloads: Sequence[Payload], keeping: Keeping | None) -> None:
        """`keeping` is None for a plain topic."""
        self._claim, self._partition_id, self._payloads = claim, partition_id, payloads
        self._keeping = keeping
        self._chunks: Sequence[Chunk] = ()

    def prepare(self) -> None:
        if self._keeping is None:
            self._chunks = encoded_chunks(self._payloads)

    def write(self, db: Connection) -> None:
        """The body of a write transaction. Raises WriterFenced."""
        self._claim.check(db)
        now_ms = time.time_ns() // 1_000_000
        if self._keeping is not None:
            insert_keyed(db, self._partition_id, self._payloads, now_ms, self._keeping)
            drop_dead(db, now_ms)
        else:
            insert_chunks(db, self._partition_id, self._chunks, now_ms)
