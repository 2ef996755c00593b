"""`ports.Coordination` on one SQLite file that several processes of one machine share.

Holds the last values seen and this session's identity. The threads that write and watch are in `writer_thread.py`, the
checks of each write in `registry.py`. A crashed process's session ends by time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from sqlite3 import Connection as SqliteConnection
from types import MappingProxyType
from typing import TypeVar

from statechannel.adapters.sqlite import registry
from statechannel.adapters.sqlite.registry import Session, Snapshot
from statechannel.adapters.sqlite.writer_thread import Request, Watch, WriterThread
from statechannel.errors import CoordinationUnavailable, Fenced, RootLost
from statechannel.law.record import BrokerId
from statechannel.ports import Connection, Identity, Leadership, Member, WatchCounts

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
        """As `Coordination.prove`. On a full disk a check under the write lock suffices: nobody can be raised then."""
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
