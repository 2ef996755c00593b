"""A simulated coordination server, and the `Coordination` of one simulated process.

The server has sessions that expire by its clock, incarnations, liveness, one election, and leases. Every public method
that carries a request is one atomic transaction: it checks everything that it depends on, or changes nothing. The
server decides what is current.

The client keeps a session by heartbeats; its calls have a time-out, its watches lag. The heartbeat runs in the process:
pausing the process stops it, a crash ends it, and the server lets the session expire.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from types import MappingProxyType
from typing import TypeVar

import msgspec

from statechannel.errors import CoordinationError, CoordinationUnavailable, Deposed, Fenced, ForeignRoot, RootLost
from statechannel.law.agreement import check_root, lost, replaced
from statechannel.law.record import BrokerId
from statechannel.ports import Connection, Identity, Leadership, Member, WatchCounts
from tests.simulator.network import Link, Network, NoAnswer

COORDINATION_SERVER = "coordination"


class SessionGone(CoordinationError):
    """The session that asked has ended; between client and server only."""


class Snapshot(msgspec.Struct, frozen=True):
    """All that is watched, at one instant. `version` only grows."""

    version: int
    members: dict[str, Member]
    leadership: Leadership | None
    leases: dict[str, BrokerId]


class _Session:
    """A client's session, and the one snapshot that may be under way to it."""

    def __init__(self, number: int, timeout_s: float, link: Link, see: Callable[[Snapshot], None]) -> None:
        self.number = number
        self.timeout_s = timeout_s
        self.link = link
        self.see = see
        self.heard_s = 0.0
        self.sent_version = -1
        self.sending = False


class SimulatedCoordinationServer:
    """One coordination service. While it is down no session expires; when it returns all get their full time."""

    def __init__(self, *, name: str = "root", trace: Callable[[str], None] | None = None) -> None:
        self.sessions_expired = 0
        self._trace = trace or _no_trace
        self._identity: Identity | None = None
        self._name, self._roots = name, 0
        self._numbers: dict[str, int] = {}
        self._alive: dict[str, tuple[Member, int]] = {}
        self._leadership: tuple[Leadership, int] | None = None
        self._epoch = 0
        self._leases: dict[str, tuple[BrokerId, int]] = {}
        self._version = 0
        self._sessions: dict[int, _Session] = {}
        self._opened = 0
        self._down = False

    # --- sessions
    def open_session(self, timeout_s: float, link: Link, see: Callable[[Snapshot], None]) -> tuple[int, Snapshot]:
        """A new session. Calls `see`, outside of its process, with every change."""
        self._opened += 1
        session = _Session(self._opened, timeout_s, link, see)
        session.heard_s = asyncio.get_running_loop().time()
        session.sent_version = self._version
        self._sessions[session.number] = session
        self._expect(session, timeout_s)
        return session.number, self._snapshot()

    def heard(self, number: int) -> None:
        """A sign of life. Raises SessionGone."""
        session = self._sessions.get(number)
        if session is None:
            raise SessionGone(f"session {number} has ended; open another one")
        session.heard_s = asyncio.get_running_loop().time()

    def close_session(self, number: int) -> None:
        """End a session with its registrations, leadership and leases. Idempotent."""
        if self._sessions.pop(number, None) is None:
            return
        for name in [name for name, (_, owner) in self._alive.items() if owner == number]:
            self._trace(f"liveness node of {name} ends with session {number}")
            del self._alive[name]
        if self._leadership is not None and self._leadership[1] == number:
            self._trace(f"leadership {self._leadership[0].epoch} ends with session {number}")
            self._leadership = None
        for lease in [lease for lease, (_, owner) in self._leases.items() if owner == number]:
            self._trace(f"{lease} is free as session {number} ends")
            del self._leases[lease]
        self._changed()

    def expire_sessions_of(self, process: str) -> None:
        """End every session of a process (by its name), as if nothing had been heard from it."""
        for session in [session for session in self._sessions.values() if session.link.process == process]:
            self._expire(session)

    def set_down(self, down: bool) -> None:
        """Nothing expires while it is down; when it returns, every session begins its time anew."""
        if self._down and not down:
            for session in self._sessions.values():
                session.heard_s = asyncio.get_running_loop().time()
        self._down = down

    # --- identity and incarnations
    def identify(self, ours: Identity) -> str:
        check_root(self._identity, ours)
        if self._identity is None:
            self._roots += 1
            self._identity = msgspec.structs.replace(ours, root=f"{self._name}-{self._roots}")
        return self._identity.root

    def identity(self) -> Identity | None:
        return self._identity

    def check_same_root(self, root: str) -> None:
        """Raises RootLost or ForeignRoot unless this is the root that a client has identified."""
        if self._identity is None:
            raise RootLost(lost(COORDINATION_SERVER, root))
        if self._identity.root != root:
            raise ForeignRoot(replaced(COORDINATION_SERVER, self._identity.root, root))

    def lose_everything(self) -> None:
        """All data is deleted, as by an operator; sessions go on, and what they had made is gone."""
        self._identity, self._leadership, self._epoch = None, None, 0
        self._numbers, self._alive, self._leases = {}, {}, {}
        self._trace("all data of the coordination service is lost")
        self._changed()

    def start_incarnation(self, name: str, above: int) -> BrokerId:
        self._numbers[name] = max(self._numbers.get(name, 0), above) + 1
        return BrokerId(name, self._numbers[name])

    def is_current(self, broker: BrokerId) -> bool:
        """Whether this incarnation of its name has not been followed by another."""
        return self._numbers.get(broker.name, 0) == broker.incarnation

    def raise_incarnation(self, broker: BrokerId, epoch: int) -> None:
        if self._leadership is None or self._leadership[0].epoch != epoch:
            raise Deposed(f"epoch {epoch} is not the current one ({self._epoch}); stop leading")
        if self._numbers.get(broker.name, 0) > broker.incarnation:
            return
        self._numbers[broker.name] = broker.incarnation + 1
        self._trace(f"incarnation of {broker.name} raised to {broker.incarnation + 1} in epoch {epoch}")

    # --- liveness
    def register(self, number: int, broker: BrokerId, data: bytes) -> None:
        """Create or replace the liveness node, in this session. Raises Fenced, SessionGone."""
        self.heard(number)
        self._check_current(broker)
        self._alive[broker.name] = (Member(broker, data), number)
        self._changed()

    def prove(self, number: int, broker: BrokerId, data: bytes) -> None:
        """Write the liveness node; create it where it is not this session's. Raises Fenced, SessionGone."""
        self.heard(number)
        self._check_current(broker)
        member, owner = self._alive.get(broker.name, (None, -1))
        if member is None or member.broker != broker or owner != number:
            self.register(number, broker, data)

    def unregister(self, number: int, broker: BrokerId) -> None:
        member, owner = self._alive.get(broker.name, (None, -1))
        if member is not None and member.broker == broker and owner == number:
            del self._alive[broker.name]
            self._changed()

    # --- election
    def campaign(self, number: int, candidate: BrokerId, above: int) -> Leadership | None:
        """The lead under the next epoch, above `above`, if nobody has it. Raises Fenced, SessionGone."""
        self.heard(number)
        self._check_current(candidate)
        if self._leadership is not None:
            return None
        self._epoch = max(self._epoch, above) + 1
        self._leadership = (Leadership(candidate, self._epoch), number)
        self._trace(f"{candidate} leads in epoch {self._epoch}")
        self._changed()
        return self._leadership[0]

    def end_leadership(self, leadership: Leadership) -> bool:
        """End it if it is still this one; whether it was."""
        if self._leadership is None or self._leadership[0] != leadership:
            return False
        self._trace(f"leadership {leadership.epoch} of {leadership.leader} is ended")
        self._leadership = None
        self._changed()
        return True

    @property
    def leadership(self) -> Leadership | None:
        """Who leads."""
        return self._leadership[0] if self._leadership else None

    @property
    def current_epoch(self) -> int:
        """The epoch of the newest leadership, whether or not it has ended."""
        return self._epoch

    # --- leases
    def claim(self, number: int, lease: str, candidate: BrokerId) -> bool:
        """Give the lease to the candidate, in this session, unless another has it. Raises Fenced, SessionGone."""
        self.heard(number)
        self._check_current(candidate)
        holder, owner = self._leases.get(lease, (candidate, -1))
        if holder != candidate:
            return False
        if owner != number:
            self._leases[lease] = (candidate, number)
            self._trace(f"{candidate} is {lease}")
            self._changed()
        return True

    def vacate(self, lease: str, holder: BrokerId) -> None:
        if lease in self._leases and self._leases[lease][0] == holder:
            del self._leases[lease]
            self._trace(f"{holder} is {lease} no longer")
            self._changed()

    # --- watches and time
    def _check_current(self, broker: BrokerId) -> None:
        if not self.is_current(broker):
            current = self._numbers.get(broker.name, 0)
            raise Fenced(f"{broker} is not current, {broker.name}#{current} is: stop, and start a new incarnation")

    def _snapshot(self) -> Snapshot:
        members = {name: self._alive[name][0] for name in sorted(self._alive)}
        leases = {lease: self._leases[lease][0] for lease in sorted(self._leases)}
        return Snapshot(self._version, members, self._leadership[0] if self._leadership else None, leases)

    def _changed(self) -> None:
        self._version += 1
        for session in self._sessions.values():
            self._show(session)

    def _show(self, session: _Session) -> None:
        """Send the newest snapshot, one at a time: a slow link skips states, as a real watch does."""
        if session.sending or session.sent_version == self._version:
            return
        snapshot, session.sending, session.sent_version = self._snapshot(), True, self._version
        session.link.push(lambda: self._shown(session, snapshot))

    def _shown(self, session: _Session, snapshot: Snapshot) -> None:
        session.sending = False
        session.see(snapshot)
        if session.number in self._sessions:
            self._show(session)

    def _expire(self, session: _Session) -> None:
        self.sessions_expired += 1
        self._trace(f"session {session.number} of {session.link.process} expires")
        self.close_session(session.number)

    def _expect(self, session: _Session, within_s: float) -> None:
        Context().run(asyncio.get_running_loop().call_later, within_s, self._check_expiry, session)

    def _check_expiry(self, session: _Session) -> None:
        if session.number not in self._sessions:
            return
        left_s = session.heard_s + session.timeout_s - asyncio.get_running_loop().time()
        if self._down:
            self._expect(session, session.timeout_s)
        elif left_s > 0:
            self._expect(session, left_s)
        else:
            self._expire(session)


def _no_trace(_line: str) -> None:
    """For servers without a history."""


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
