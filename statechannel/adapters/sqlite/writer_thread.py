"""The two threads of `SqliteCoordination`, each with a connection of its own.

`WriterThread` writes: requests in their order, and between them this session's heartbeats and the end of dead sessions.
`Watch` reads: it wakes at commits (`wakeup.py`), also polls the file's `data_version` every 10 ms, and reports members,
leadership and leases when they have changed. Both report whether the file answers.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

import msgspec

from statechannel.adapters.sqlite import registry
from statechannel.adapters.sqlite.file import FileFull, FileUnavailable, ForeignFile, SqliteFile
from statechannel.adapters.sqlite.handing_back import post, settle
from statechannel.adapters.sqlite.registry import Session, Snapshot
from statechannel.adapters.sqlite.wakeup import Bell, Ear
from statechannel.errors import CoordinationUnavailable, ForeignCluster, StateChannelError
from statechannel.ports import WatchCounts

_POLL_S = 0.01  # watches may lag, and wake-ups are hardly ever lost
_RETRY_S = 0.05
_QUEUE = 1_024
_HEARTBEATS_PER_TIMEOUT = 6
_TICKS_PER_TIMEOUT = 20


class Request(msgspec.Struct, eq=False):
    """One waiting checked write; `done` belongs to the loop."""

    write: Callable[[sqlite3.Connection], Any]
    durable: bool
    rings: bool
    deadline_s: float
    done: asyncio.Future[Any]
    on_full_disk: Callable[[sqlite3.Connection], Any] | None = None
    """Answers the request on a full disk: runs under the write lock, and does not write."""


class Client(Protocol):
    """The client, as the threads see it. They read `session`, `abandoned` and `heartbeat_held`."""

    abandoned: bool
    heartbeat_held: bool
    request_timeout_s: float
    counts: WatchCounts

    def session(self) -> Session: ...

    def note_link(self, half: str, *, works: bool) -> None: ...

    def note_snapshot(self, seen: Snapshot) -> None: ...


class _End(Enum):
    """Requests to end the session; STOP also ends the thread."""

    ABANDON = "abandon"
    STOP = "stop"


class WriterThread:
    """Owns the writing connection and its thread."""

    def __init__(self, client: Client, path: Path, start_by_s: float) -> None:
        self._client, self._path, self._start_by_s = client, path, start_by_s
        self._loop = asyncio.get_running_loop()
        self._queue: queue.Queue[Request | _End] = queue.Queue()
        self._next_heartbeat_s = 0.0
        self._last_beat_ms = client.session().now_ms
        self._patient_until_ms = 0
        self._writing_since_s: float | None = None
        self.started: asyncio.Future[None] = self._loop.create_future()
        self.stopped: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._run, name=f"writer {path.name}", daemon=True).start()

    def put(self, request: Request) -> None:
        """Queue a request. Raises CoordinationUnavailable if too many wait."""
        if self._queue.qsize() >= _QUEUE:
            raise CoordinationUnavailable(f"{self._path}: {_QUEUE} requests wait already; try again later")
        self._queue.put(request)

    @property
    def stuck(self) -> bool:
        """Whether one write takes longer than a request may (hung disk, stopped process)."""
        since_s = self._writing_since_s
        return since_s is not None and time.monotonic() - since_s > self._client.request_timeout_s

    def stop(self) -> None:
        """End the session and the thread, after all requests that were put before."""
        self._queue.put(_End.STOP)

    def abandon(self) -> None:
        """End the session, after all requests that were put before. Any thread may call it."""
        self._queue.put(_End.ABANDON)

    # --- the thread
    def _run(self) -> None:
        try:
            self._file = SqliteFile(self._path, registry.SCHEMA, self._start_by_s)
        except (FileUnavailable, ForeignFile) as error:
            post(self._loop, settle, self.stopped, None, None)
            post(self._loop, settle, self.started, None, coordination_error(error))
            return
        self._bell = Bell(self._path)
        timeout_s = self._client.session().timeout_ms / 1000
        tick_s, heartbeat_s = timeout_s / _TICKS_PER_TIMEOUT, timeout_s / _HEARTBEATS_PER_TIMEOUT
        self._tick(heartbeat_s)
        post(self._loop, settle, self.started, None, None)
        try:
            self._serve(tick_s, heartbeat_s)
        finally:
            self._bell.close()
            self._file.close()
            post(self._loop, settle, self.stopped, None, None)

    def _serve(self, tick_s: float, heartbeat_s: float) -> None:
        next_tick_s = time.monotonic() + tick_s
        while True:
            try:
                request = self._queue.get(timeout=max(0.0, next_tick_s - time.monotonic()))
            except queue.Empty:
                pass
            else:
                if request is _End.STOP:
                    return self._end_session()
                self._writing_since_s = time.monotonic()
                if isinstance(request, Request):
                    self._answer(request)
                else:
                    self._end_session()
            if time.monotonic() >= next_tick_s:
                self._writing_since_s = time.monotonic()
                self._tick(heartbeat_s)
                next_tick_s = time.monotonic() + tick_s
            self._writing_since_s = None

    def _answer(self, request: Request) -> None:
        if request.done.done():
            return  # its caller has given up
        result, failure = None, None
        try:
            self._file.check_same()
            result = self._carry_out(request)
        except StateChannelError as error:
            failure = error
        except (FileUnavailable, ForeignFile) as error:
            failure = CoordinationUnavailable(str(error))
            post(self._loop, lambda: self._client.note_link("writes", works=False))
        except Exception as error:  # noqa: BLE001 - the thread must outlive a bug, and its caller must hear of it
            failure = CoordinationUnavailable(f"{self._path}: the write failed: {error!r}")
        else:
            if request.rings:
                self._bell.ring()
        post(self._loop, settle, request.done, result, failure)

    def _carry_out(self, request: Request) -> Any:
        try:
            with self._file.transaction(request.deadline_s, durable=request.durable) as db:
                return request.write(db)
        except FileFull:
            if request.on_full_disk is None:
                raise
            post(self._loop, lambda: self._client.note_link("writes", works=False))
            with self._file.transaction(request.deadline_s, durable=False) as db:
                return request.on_full_disk(db)

    def _tick(self, heartbeat_s: float) -> None:
        """Send this session's heartbeat if it is time, and end dead sessions; reports whether writing works."""
        now_s = time.monotonic()
        try:
            self._file.check_same()
            if now_s >= self._next_heartbeat_s and not (self._client.abandoned or self._client.heartbeat_held):
                self._beat()
                self._next_heartbeat_s = now_s + heartbeat_s
            self._end_dead_sessions()
        except (sqlite3.Error, FileUnavailable, ForeignFile):
            post(self._loop, lambda: self._client.note_link("writes", works=False))

    def _beat(self) -> None:
        with self._transaction() as db:
            session = self._client.session()
            registry.hear(db, session)
        if session.now_ms - self._last_beat_ms > session.timeout_ms // 2:
            # We could not write for a while (full disk, suspended machine), so perhaps nobody could. As ZooKeeper does
            # when it recovers, give every session its whole time-out again.
            self._patient_until_ms = session.now_ms + session.timeout_ms
        self._last_beat_ms = session.now_ms
        post(self._loop, lambda: self._client.note_link("writes", works=True))

    def _end_dead_sessions(self) -> None:
        session = self._client.session()
        deaf = session.now_ms - self._last_beat_ms > session.timeout_ms // 2
        if deaf or session.now_ms < self._patient_until_ms or not registry.has_dead_sessions(self._file.db, session):
            return
        with self._transaction() as db:
            registry.end_dead_sessions(db, self._client.session())
        self._bell.ring()

    def _transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """A transaction of the thread's own, which need not survive a power cut."""
        return self._file.transaction(time.monotonic() + self._client.request_timeout_s, durable=False)

    def _end_session(self) -> None:
        try:
            self._file.check_same()
            with self._transaction() as db:
                registry.end_session(db, self._client.session().id)
        except (FileUnavailable, ForeignFile):
            return  # the session ends by time-out
        self._bell.ring()


class Watch:
    """Owns the reading connection and its thread."""

    def __init__(self, client: Client, path: Path, start_by_s: float, writer_thread: WriterThread) -> None:
        self._client, self._path, self._start_by_s, self._writer_thread = client, path, start_by_s, writer_thread
        self._loop = asyncio.get_running_loop()
        self._ear = Ear(path)
        self._stopping = threading.Event()
        self._seen_version = -1
        self._reported: Snapshot | None = None
        self._works: bool | None = None
        self.started: asyncio.Future[None] = self._loop.create_future()
        self.stopped: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._run, name=f"watch {path.name}", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()
        self._ear.nudge()

    # --- the thread
    def _run(self) -> None:
        try:
            self._file = SqliteFile(self._path, registry.SCHEMA, self._start_by_s)
        except (FileUnavailable, ForeignFile) as error:
            self._ear.close()
            post(self._loop, settle, self.stopped, None, None)
            post(self._loop, settle, self.started, None, coordination_error(error))
            return
        self._look()
        post(self._loop, settle, self.started, None, None)
        try:
            while not self._stopping.is_set():
                self._ear.wait(_POLL_S if self._works else _RETRY_S)
                self._look()
        finally:
            self._file.close()
            self._ear.close()
            post(self._loop, settle, self.stopped, None, None)

    def _look(self) -> None:
        """Report changes since the last look, and whether reading works."""
        try:
            self._file.check_same()
            version = self._file.data_version()
            if version != self._seen_version:
                self._read()
                self._seen_version = version
        except (sqlite3.Error, FileUnavailable):
            works = False
        else:
            works = not self._writer_thread.stuck
        if works != self._works:
            self._works = works
            post(self._loop, lambda: self._client.note_link("reads", works=works))

    def _read(self) -> None:
        db = self._file.db
        self._client.counts.reads += 1  # nobody else writes it
        db.execute("BEGIN")
        try:
            seen = registry.snapshot(db)
        finally:
            db.execute("COMMIT")
        if seen != self._reported:
            self._reported = seen
            post(self._loop, self._client.note_snapshot, seen)


def coordination_error(error: FileUnavailable | ForeignFile) -> StateChannelError:
    """The error as one of the port's."""
    return ForeignCluster(str(error)) if isinstance(error, ForeignFile) else CoordinationUnavailable(str(error))
