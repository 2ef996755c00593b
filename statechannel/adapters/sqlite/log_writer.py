"""The writing half of `SqliteLog`: a thread that puts all waiting appends into one transaction (group commit).

Every other write (a new topic, a trim, an exclusive writer's group) is a transaction of its own, in the order of the
calls. A client has two of these threads: one appends, the other does long work (groups of tens of MB, sweeps after
trims), so that appends wait only for the file's lock. The format of the rows is in `log_inserts.py`,
`log_exclusive.py` and `log_trim.py`.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from statechannel.adapters.sqlite.file import FileUnavailable, ForeignFile, SqliteFile, translated
from statechannel.adapters.sqlite.handing_back import post, settle
from statechannel.adapters.sqlite.log_inserts import (
    Keeping,
    drop_dead,
    encoded_chunks,
    insert_chunks,
    insert_keyed,
)
from statechannel.adapters.sqlite.log_trim import Sweeper
from statechannel.adapters.sqlite.topics import SCHEMA, StoredTopic, check_topic, create_topic, find_topic
from statechannel.adapters.sqlite.wakeup import Bell
from statechannel.errors import LogError, LogUnavailable, TopicMismatch
from statechannel.ports import Payload, TopicSpec

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


def log_error(error: FileUnavailable | ForeignFile) -> LogError:
    """The error as one of the port's."""
    return TopicMismatch(str(error)) if isinstance(error, ForeignFile) else LogUnavailable(str(error))
