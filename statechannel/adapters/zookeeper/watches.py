"""What is known of members, leader and offices: read again, and watched anew, after each notice and each reconnect.

Liveness nodes carry no watch of their own: each proof writes them. A registration replaces its node, which the watch on
the directory shows. Offices do carry one, since they change hands under the same name; they are read once each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import MappingProxyType

from kazoo.exceptions import KazooException, NoNodeError
from kazoo.protocol.states import WatchedEvent

from statechannel.adapters.zookeeper.nodes import Nodes, decode_holder, decode_leadership, decode_member
from statechannel.adapters.zookeeper.session import LOGGER, Denied, Session
from statechannel.errors import CoordinationUnavailable
from statechannel.ports import Connection, Leadership, Member
from statechannel.record import Broker

CONCURRENT_READS = 32
AGAIN_S = 0.1
GONE_FOR_S = 1.0


class Watches:
    """Keeps four values fresh; one task, `run`, owns them."""

    def __init__(self, nodes: Nodes) -> None:
        self.members: Mapping[str, Member] = MappingProxyType({})
        self.leadership: Leadership | None = None
        self.offices: Mapping[str, Broker] = MappingProxyType({})
        self.connection = Connection.SUSPENDED
        self._denial: Denied | None = None
        self._settled = asyncio.Event()
        """Set while everything is known, or `_denial` says that it cannot be."""
        self._told = (self.members, self.leadership, self.offices, self.connection)
        self._nodes = nodes
        self._listeners: list[Callable[[], None]] = []
        self._woken = asyncio.Event()
        self._members_stale = True
        self._leader_stale = True
        self._offices_stale = True
        self._known_offices: dict[str, Broker | None] = {}
        self._moved: set[str] = set()
        """Office nodes that have changed since they were read, or while they are."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._prepared = False
        self.trouble = ""
        """Why the last reading failed, for messages."""

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call `changed` on the loop after each change of a value."""
        self._listeners.append(changed)

    async def until_known(self) -> None:
        """Wait until everything has been read once. Raises Denied if we may not."""
        await self._settled.wait()
        if self._denial is not None:
            raise self._denial

    def link_changed(self) -> None:
        """The link came, went, or is in doubt: nothing is known until it was read again."""
        self._members_stale = self._leader_stale = self._offices_stale = True
        self._known_offices = {}  # another dictionary: a read under way may still end, and its watch is lost
        self._woken.set()
        self._suspend()

    async def run(self, session: Session, prepare: Callable[[], Awaitable[None]]) -> None:
        """For ever; `prepare` succeeds once before anything is read."""
        self._loop = asyncio.get_running_loop()
        while True:
            self._woken.clear()
            if session.connected:
                await self._refresh(session, prepare)
            else:
                self._suspend()
                try:
                    async with asyncio.timeout(GONE_FOR_S):
                        await self._woken.wait()
                except TimeoutError:
                    session.revive()
                continue
            await self._woken.wait()

    async def _refresh(self, session: Session, prepare: Callable[[], Awaitable[None]]) -> None:
        try:
            if not self._prepared:
                await prepare()
                self._prepared = True
            await self._read_stale(session)
        except (CoordinationUnavailable, KazooException) as error:
            self.trouble = str(error) or repr(error)
            LOGGER.warning("cannot read members, leader and offices: %s", self.trouble)
            self.link_changed()
            self._denial = error if isinstance(error, Denied) else None
            if self._denial is not None:
                self._settled.set()
            await asyncio.sleep(GONE_FOR_S if self._denial else AGAIN_S)
            return
        if not (self._members_stale or self._leader_stale or self._offices_stale):  # else overtaken; `_woken` is set
            self.connection = Connection.CONNECTED
            self._denial = None
            self._settled.set()
        self._tell_changes()

    async def _read_stale(self, session: Session) -> None:
        if self._leader_stale:
            self._leader_stale = False
            self.leadership = await self._read_leader(session)
        if self._offices_stale:
            self._offices_stale = False
            self.offices = await self._read_offices(session)
        if self._members_stale:
            self._members_stale = False
            self.members = await self._read_members(session)

    async def _read_leader(self, session: Session) -> Leadership | None:
        while True:
            with suppress(NoNodeError):
                data, _ = await session.read(self._nodes.leader, self._leader_noticed)
                return decode_leadership(data)
            if await session.stat(self._nodes.leader, self._leader_noticed) is None:
                return None

    async def _read_offices(self, session: Session) -> Mapping[str, Broker]:
        """A node that moves while it is read is in `_moved` again, so that the next round reads it anew."""
        known, moved, self._moved = self._known_offices, self._moved, set()
        names = await session.children(self._nodes.offices_dir, self._offices_noticed)
        for forgotten in moved | (known.keys() - set(names)):
            known.pop(forgotten, None)
        gate = asyncio.Semaphore(CONCURRENT_READS)

        async def read(office: str) -> None:
            async with gate:
                with suppress(NoNodeError):
                    data, _ = await session.read(f"{self._nodes.offices_dir}/{office}", self._office_noticed)
                    known[office] = decode_holder(office, data)

        await asyncio.gather(*(read(office) for office in names if office not in known))
        return MappingProxyType({office: holder for office, holder in sorted(known.items()) if holder is not None})

    async def _read_members(self, session: Session) -> Mapping[str, Member]:
        names = await session.children(self._nodes.live_dir, self._members_noticed)
        gate = asyncio.Semaphore(CONCURRENT_READS)

        async def read(name: str) -> Member | None:
            async with gate:
                with suppress(NoNodeError):
                    data, _ = await session.read(f"{self._nodes.live_dir}/{name}")
                    return decode_member(name, data)
            return None

        found = await asyncio.gather(*(read(name) for name in sorted(names)))
        return MappingProxyType({member.broker.name: member for member in found if member is not None})

    # --- called on kazoo's thread
    def _members_noticed(self, _event: object) -> None:
        self._notice(self._mark_members)

    def _leader_noticed(self, _event: object) -> None:
        self._notice(self._mark_leader)

    def _offices_noticed(self, _event: object) -> None:
        self._notice(self._mark_office, "")

    def _office_noticed(self, event: object) -> None:
        path = event.path if isinstance(event, WatchedEvent) else None
        self._notice(self._mark_office, (path or "").rpartition("/")[2])

    def _notice(self, mark: Callable[..., None], *arguments: object) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(mark, *arguments)

    # --- on the loop
    def _mark_members(self) -> None:
        self._members_stale = True
        self._woken.set()

    def _mark_leader(self) -> None:
        self._leader_stale = True
        self._woken.set()

    def _mark_office(self, office: str) -> None:
        if office:
            self._moved.add(office)
        self._offices_stale = True
        self._woken.set()

    def _suspend(self) -> None:
        self.connection = Connection.SUSPENDED
        self._settled.clear()
        self._tell_changes()

    def _tell_changes(self) -> None:
        """Compared with what was told, not with what was known: reading may be overtaken half-way."""
        known = (self.members, self.leadership, self.offices, self.connection)
        if known != self._told:
            self._told = known
            for listener in tuple(self._listeners):
                try:
                    listener()
                except Exception:  # noqa: BLE001 (one that fails must not leave everybody else with old values)
                    LOGGER.exception("a listener failed")
