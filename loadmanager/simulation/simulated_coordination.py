"""A `Coordination` for one simulated process: a session kept by heartbeats, calls with a time-out, lagging watches.

The heartbeat runs in the process: pausing the process stops it, a crash ends it, and the server lets the session
expire. `coordination_server.py` has the true state.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from types import MappingProxyType
from typing import TypeVar

from loadmanager.simulation.coordination_server import (
    COORDINATION_SERVER,
    SessionGone,
    SimulatedCoordinationServer,
    Snapshot,
)
from loadmanager.simulation.network import Network, NoAnswer
from statechannel.errors import CoordinationUnavailable, Fenced, RootLost
from statechannel.law.record import BrokerId
from statechannel.ports import Connection, Identity, Leadership, Member, WatchCounts

T = TypeVar("T")

_CLOSE_TIMEOUT_S = 1.0
_NO_SESSION = 0


class SimulatedCoordination:
    """A client of the simulated server. `session_timeout_s` is kept by the server's clock, the heartbeat (three in
    that time) and `request_timeout_s` by this process's.
    """

    def __init__(
        self,
        server: SimulatedCoordinationServer,
        network: Network,
        process: str,
        *,
        session_timeout_s: float = 6.0,
        request_timeout_s: float = 2.0,
    ) -> None:
        self.link = network.link(process, COORDINATION_SERVER)
        self.request_timeout_s = request_timeout_s
        self.session_timeout_s = session_timeout_s
        self._server = server
        self._session = _NO_SESSION
        self._seen = Snapshot(-1, {}, None, {})
        self._connection = Connection.SUSPENDED
        self._root, self._root_lost = "", False
        self.counts = WatchCounts()
        self._registered: tuple[BrokerId, bytes] | None = None
        self._listeners: list[Callable[[], None]] = []
        self._heartbeat: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._abandoned = False
        self._opening = asyncio.Lock()
        self._context = Context()

    async def start(self, timeout_s: float) -> None:
        self._context = copy_context()
        try:
            async with asyncio.timeout(timeout_s):
                while self._session == _NO_SESSION:
                    with contextlib.suppress(CoordinationUnavailable):
                        await self._open_session(_NO_SESSION)
        except TimeoutError:
            raise CoordinationUnavailable(
                f"{self.link.server} did not answer {self.link.process} within {timeout_s} s"
            ) from None
        self._heartbeat = asyncio.create_task(self._keep_session())

    async def identify(self, cluster: str, log_identity: str, root: str | None = None) -> str:
        self._root = ""
        self._root = await self._ask(lambda: self._server.identify(Identity(cluster, log_identity, root or "")))
        return self._root

    async def identity(self) -> Identity | None:
        return await self._ask(self._server.identity, checked=False)

    # --- incarnations
    async def start_incarnation(self, name: str, above: int) -> BrokerId:
        started = await self._ask(lambda: self._server.start_incarnation(name, above))
        self._abandoned = False
        return started

    async def register(self, broker: BrokerId, data: bytes) -> None:
        self._registered = (broker, data)
        await self._ask_in_session(broker, lambda session: self._server.register(session, broker, data))

    async def prove(self, broker: BrokerId) -> None:
        known = self._registered
        data = known[1] if known is not None and known[0] == broker else b""
        await self._ask_in_session(broker, lambda session: self._server.prove(session, broker, data))

    async def unregister(self, broker: BrokerId) -> None:
        session = self._session
        await self._ask(lambda: self._server.unregister(session, broker))

    async def raise_incarnation(self, broker: BrokerId, epoch: int) -> None:
        await self._ask(lambda: self._server.raise_incarnation(broker, epoch))

    # --- election
    async def campaign(self, candidate: BrokerId, above: int = 0) -> Leadership | None:
        return await self._ask_in_session(candidate, lambda session: self._server.campaign(session, candidate, above))

    async def resign(self, leadership: Leadership) -> None:
        await self._ask(lambda: self._server.end_leadership(leadership))

    async def evict(self, leadership: Leadership) -> bool:
        return await self._ask(lambda: self._server.end_leadership(leadership))

    # --- leases
    async def claim(self, lease: str, candidate: BrokerId) -> bool:
        return await self._ask_in_session(candidate, lambda session: self._server.claim(session, lease, candidate))

    async def vacate(self, lease: str, holder: BrokerId) -> None:
        await self._ask(lambda: self._server.vacate(lease, holder))

    # --- watches
    @property
    def leases(self) -> Mapping[str, BrokerId]:
        return MappingProxyType(self._seen.leases)

    @property
    def members(self) -> Mapping[str, Member]:
        return MappingProxyType(self._seen.members)

    @property
    def leadership(self) -> Leadership | None:
        return self._seen.leadership

    @property
    def connection(self) -> Connection:
        return Connection.SUSPENDED if self._root_lost else self._connection

    def on_change(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    def abandon(self) -> None:
        """Plays what a watchdog does to a client whose process goes on; called on the loop, as everything here."""
        if self._session != _NO_SESSION:
            self._abandoned = True
            session, self._session = self._session, _NO_SESSION
            self._ending = asyncio.get_running_loop().create_task(self._end(session))

    async def _end(self, session: int) -> None:
        with contextlib.suppress(NoAnswer):
            await self.link.call(lambda: self._server.close_session(session), timeout_s=_CLOSE_TIMEOUT_S)

    async def close(self) -> None:
        if self.link.closed:
            return
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            await asyncio.wait([self._heartbeat], timeout=_CLOSE_TIMEOUT_S)
        session, self._session = self._session, _NO_SESSION
        await self._end(session)
        self.link.close()
        self._set_connection(Connection.SUSPENDED)

    # --- the session
    async def _keep_session(self) -> None:
        every_s = self.session_timeout_s / 3
        while True:
            session = self._session
            try:
                await self.link.call(lambda session=session: self._server.heard(session), timeout_s=every_s)
            except NoAnswer:
                self._set_connection(Connection.SUSPENDED)
                continue
            except SessionGone:
                with contextlib.suppress(CoordinationUnavailable):
                    await self._open_session(session)
                continue
            self._set_connection(Connection.CONNECTED)
            await asyncio.sleep(every_s)

    async def _open_session(self, ended: int) -> None:
        """Open a session in place of the one that ended, unless another task did so meanwhile."""
        async with self._opening:
            if self._session != ended:
                return
            self._session, snapshot = await self._ask(
                lambda: self._server.open_session(self.session_timeout_s, self.link, self._hear),
                checked=False,  # a session belongs to the service, whatever data is in it
            )
            self._see(snapshot)
            self._set_connection(Connection.CONNECTED)

    async def _ask_in_session(self, actor: BrokerId, perform: Callable[[int], T]) -> T:
        for _ in range(2):
            if self._abandoned:
                raise Fenced(f"{actor} ended with its session: stop, and start a new incarnation")
            session = self._session
            try:
                return await self._ask(lambda session=session: perform(session))
            except SessionGone:
                await self._open_session(session)
        raise CoordinationUnavailable("the session ended twice in a row; retry with back-off")

    async def _ask(self, perform: Callable[[], T], *, checked: bool = True) -> T:
        if self.link.closed:
            raise CoordinationUnavailable("this coordination client was closed; make another one")
        try:
            asked = self._checked(perform) if checked else perform
            answer = await self.link.call(asked, timeout_s=self.request_timeout_s)
        except NoAnswer as silence:
            raise CoordinationUnavailable(f"{silence}; retry with back-off") from None
        except RootLost:
            self._note_root(lost=True)
            raise
        if checked:
            self._note_root(lost=False)
        return answer

    def _checked(self, perform: Callable[[], T]) -> Callable[[], T]:
        root = self._root

        def checked() -> T:
            if root:
                self._server.check_same_root(root)
            return perform()

        return checked

    def _note_root(self, *, lost: bool) -> None:
        if self._root_lost is not lost:
            self._root_lost = lost
            self._tell()

    # --- what it sees
    def _hear(self, snapshot: Snapshot) -> None:
        """Called outside of the process; continues inside it, when the process runs."""
        asyncio.get_running_loop().call_soon(self._see, snapshot, context=self._context.copy())

    def _see(self, snapshot: Snapshot) -> None:
        self.counts.reads += 1
        if snapshot.version <= self._seen.version:
            return
        self.counts.changes += 1
        self._seen = snapshot
        self._tell()

    def _set_connection(self, connection: Connection) -> None:
        if self._connection is not connection:
            self._connection = connection
            self._tell()

    def _tell(self) -> None:
        for changed in self._listeners:
            changed()
