"""`ports.Coordination` on one SQLite file that several processes of one machine share.

`SqliteCoordination` holds the last values seen and this session's identity; `registry.py` has the checks of each write.
A crashed process's session ends by time-out. Two threads have a connection each. `WriterThread` writes: requests in
their order, and between them this session's heartbeats and the end of dead sessions. `Watch` reads: it wakes at commits
(`wakeup.py`), also polls the file's `data_version` every 10 ms, and reports members, leadership and leases when they
have changed. Both report whether the file answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from sqlite3 import Connection as SqliteConnection
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from statechannel.adapters.sqlite import registry
from statechannel.adapters.sqlite.file import FileFull, FileUnavailable, ForeignFile, SqliteFile
from statechannel.adapters.sqlite.registry import Session, Snapshot
from statechannel.adapters.sqlite.wakeup import Bell, Ear
from statechannel.errors import CoordinationUnavailable, Fenced, ForeignCluster, RootLost, StateChannelError
from statechannel.law.record import BrokerId
from statechannel.ports import Connection, Identity, Leadership, Member, WatchCounts
from statechannel.runtime.tasks import post, settle

T = TypeVar("T")
_CLOSE_S = 1.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boottime_s() -> float:
    """Seconds since this machine's boot, on a clock that runs on during suspend and is the same in all processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SqliteCoordination:
    """A coordination client with one session; any number of them, in any processes of this machine, share the file.

    A session ends after `session_timeout_s` without a heartbeat; six are sent in that time. A request gives up after
    `request_timeout_s`. `clock` is in seconds, and the same in all processes of the machine.
    """

    def __init__(
        self,
        path: Path,
        *,
        session_timeout_s: float = 6.0,
        request_timeout_s: float = 2.0,
        clock: Callable[[], float] = boottime_s,
    ) -> None:
        self._path, self._clock = path, clock
        self.session_timeout_s, self.request_timeout_s = session_timeout_s, request_timeout_s
        self._session_id = secrets.token_hex(8)
        self._boot = _BOOT_ID.read_text().strip()
        self._last_data: dict[BrokerId, bytes] = {}
        self._members: Mapping[str, Member] = MappingProxyType({})
        self._leadership: Leadership | None = None
        self._leases: Mapping[str, BrokerId] = MappingProxyType({})
        self._link = {"reads": False, "writes": False, "root": True}
        self._root = ""
        """The identity of our root; empty until it is known."""
        self.counts = WatchCounts()
        self._changed: list[Callable[[], None]] = []
        self._writer_thread: WriterThread | None = None
        self._watch: Watch | None = None
        self.abandoned = False
        """Set by any thread: the session has ended; nothing is written until another incarnation has started."""
        self.heartbeat_held = False
        """Test hook: while true this client does not keep its session alive by itself, as if it were stopped."""

    async def start(self, timeout_s: float) -> None:
        """Open or create the file. Raises CoordinationUnavailable, or ForeignCluster if the file is not ours."""
        deadline_s = time.monotonic() + timeout_s
        self._writer_thread = WriterThread(self, self._path, deadline_s)
        await self._started(self._writer_thread.started, timeout_s)
        self._watch = Watch(self, self._path, deadline_s, self._writer_thread)
        await self._started(self._watch.started, timeout_s)

    async def _started(self, started: asyncio.Future[None], timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s + 1):
                await started
        except TimeoutError:
            text = f"{self._path}: could not be opened within {timeout_s:g} s; check whether the disk hangs"
            raise CoordinationUnavailable(text) from None

    async def identify(self, cluster: str, log_identity: str, root: str | None = None) -> str:
        self._root = ""
        self._root = await self._write(lambda db: registry.identify(db, Identity(cluster, log_identity, root or "")))
        return self._root

    async def identity(self) -> Identity | None:
        return await self._write(registry.identity, durable=False, rings=False, checked=False)

    # --- incarnations
    async def start_incarnation(self, name: str, above: int) -> BrokerId:
        started = await self._write(lambda db: registry.start_incarnation(db, name, above))
        if self.abandoned:
            self._session_id, self.abandoned = secrets.token_hex(8), False
        return started

    async def register(self, broker: BrokerId, data: bytes) -> None:
        self._last_data[broker] = data
        await self._write(lambda db: registry.register(db, self._acting(broker), broker, data), durable=False)

    async def prove(self, broker: BrokerId) -> None:
        """As `Coordination.prove`. On a full disk a check under the write lock suffices: no number can be raised."""
        data = self._last_data.get(broker, b"")
        await self._write(
            lambda db: registry.prove(db, self._acting(broker), broker, data),
            durable=False,
            rings=False,
            on_full_disk=lambda db: self._check(db, broker),
        )

    async def unregister(self, broker: BrokerId) -> None:
        await self._write(lambda db: registry.unregister(db, self.session(), broker), durable=False)

    async def raise_incarnation(self, broker: BrokerId, epoch: int) -> None:
        await self._write(lambda db: registry.raise_incarnation(db, broker, epoch))

    # --- election
    async def campaign(self, candidate: BrokerId, above: int = 0) -> Leadership | None:
        return await self._write(lambda db: registry.campaign(db, self._acting(candidate), candidate, above))

    async def resign(self, leadership: Leadership) -> None:
        await self._write(lambda db: registry.resign(db, self.session(), leadership), durable=False)

    async def evict(self, leadership: Leadership) -> bool:
        return await self._write(lambda db: registry.evict(db, leadership), durable=False)

    # --- leases
    async def claim(self, lease: str, candidate: BrokerId) -> bool:
        return await self._write(
            lambda db: registry.claim(db, self._acting(candidate), lease, candidate), durable=False
        )

    async def vacate(self, lease: str, holder: BrokerId) -> None:
        await self._write(lambda db: registry.vacate(db, lease, holder), durable=False)

    # --- watches
    @property
    def leases(self) -> Mapping[str, BrokerId]:
        return self._leases

    @property
    def members(self) -> Mapping[str, Member]:
        return self._members

    @property
    def leadership(self) -> Leadership | None:
        return self._leadership

    @property
    def connection(self) -> Connection:
        return Connection.CONNECTED if all(self._link.values()) else Connection.SUSPENDED

    def on_change(self, changed: Callable[[], None]) -> None:
        self._changed.append(changed)

    def abandon(self) -> None:
        writer_thread = self._writer_thread
        if writer_thread is not None:
            self.abandoned = True
            writer_thread.abandon()

    async def close(self) -> None:
        writer_thread, watch = self._writer_thread, self._watch
        self._writer_thread = self._watch = None
        for thread in (watch, writer_thread):
            if thread is not None:
                thread.stop()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_CLOSE_S):
                        await thread.stopped
        self._link = {"reads": False, "writes": False, "root": True}

    # --- what the calls and the threads share
    def session(self) -> Session:
        """This client's session as of now."""
        timeout_ms = int(self.session_timeout_s * 1000)
        return Session(self._session_id, self._boot, timeout_ms, int(self._clock() * 1000))

    def _check(self, db: SqliteConnection, broker: BrokerId) -> None:
        self._acting(broker)
        registry.check_current(db, broker)

    def _acting(self, broker: BrokerId) -> Session:
        """This client's session as of now. Raises Fenced if it was abandoned."""
        if self.abandoned:
            raise Fenced(f"{broker} ended with its session: stop it and start a new incarnation")
        return self.session()

    async def _write(
        self,
        write: Callable[[SqliteConnection], T],
        *,
        durable: bool = True,
        rings: bool = True,
        on_full_disk: Callable[[SqliteConnection], T] | None = None,
        checked: bool = True,
    ) -> T:
        """One checked write. Sessions do not outlive a boot: writes about them are not durable, which saves a flush."""
        writer_thread = self._writer_thread
        if writer_thread is None:
            raise CoordinationUnavailable(f"{self._path}: this client is closed or was not started")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        deadline_s = time.monotonic() + self.request_timeout_s
        in_full = None if on_full_disk is None else self._checked(on_full_disk)
        writer_thread.put(
            Request(self._checked(write) if checked else write, durable, rings, deadline_s, done, in_full)
        )
        try:
            async with asyncio.timeout(self.request_timeout_s):
                answer = await done
        except RootLost:
            self.note_link("root", works=False)
            raise
        except TimeoutError:
            self.note_link("writes", works=False)
            text = f"{self._path}: no answer within {self.request_timeout_s:g} s; it may have been carried out or not"
            raise CoordinationUnavailable(text) from None
        if checked:
            self.note_link("root", works=True)
        return answer

    def _checked(self, write: Callable[[SqliteConnection], T]) -> Callable[[SqliteConnection], T]:
        """The write, preceded by a check that this is still the identified root."""
        root = self._root
        if not root:
            return write

        def checked(db: SqliteConnection) -> T:
            registry.check_same_root(db, root)
            return write(db)

        return checked

    def note_link(self, half: str, *, works: bool) -> None:
        """On the loop: whether reading, writing or the root works now."""
        before = self.connection
        self._link[half] = works
        if self.connection != before:
            self._report()

    def note_snapshot(self, seen: Snapshot) -> None:
        """On the loop: members, leadership or leases have changed."""
        self.counts.changes += 1
        self._members, self._leadership = MappingProxyType(seen.members), seen.leadership
        self._leases = MappingProxyType(seen.leases)
        self._report()

    def _report(self) -> None:
        for changed in self._changed:
            asyncio.get_running_loop().call_soon(changed)


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


class _End(Enum):
    """Requests to end the session; STOP also ends the thread."""

    ABANDON = "abandon"
    STOP = "stop"


class WriterThread:
    """Owns the writing connection and its thread."""

    def __init__(self, client: SqliteCoordination, path: Path, start_by_s: float) -> None:
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
            # We could not write for a while (full disk, suspended machine), so perhaps no client could. As ZooKeeper
            # does when it recovers, give every session its whole time-out again.
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

    def __init__(self, client: SqliteCoordination, path: Path, start_by_s: float, writer_thread: WriterThread) -> None:
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
        self._client.counts.reads += 1  # no other thread writes it
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
