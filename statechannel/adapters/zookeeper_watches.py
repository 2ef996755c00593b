"""What is known of members and leader: read again, and watched anew, after each notice and each reconnect.

Liveness nodes carry no watch of their own: each proof writes them. A registration replaces its node, which the watch on
the directory shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import MappingProxyType

from kazoo.exceptions import KazooException, NoNodeError

from statechannel.adapters.zookeeper_nodes import Nodes, decode_leadership, decode_member
from statechannel.adapters.zookeeper_session import LOGGER, Session
from statechannel.errors import CoordinationUnavailable
from statechannel.ports import Connection, Leadership, Member

CONCURRENT_READS = 32
AGAIN_S = 0.1
GONE_FOR_S = 1.0


class Watches:
    """Keeps three values fresh; one task, `run`, owns them."""

    def __init__(self, nodes: Nodes) -> None:
        self.members: Mapping[str, Member] = MappingProxyType({})
        self.leadership: Leadership | None = None
        self.connection = Connection.SUSPENDED
        self.connected = asyncio.Event()
        self._told = (self.members, self.leadership, self.connection)
        self._nodes = nodes
        self._listeners: list[Callable[[], None]] = []
        self._woken = asyncio.Event()
        self._members_stale = True
        self._leader_stale = True
        self._loop: asyncio.AbstractEventLoop | None = None
        self._prepared = False
        self.trouble = ""
        """Why the last reading failed, for messages."""

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call `changed` on the loop after each change of a value."""
        self._listeners.append(changed)

    def link_changed(self) -> None:
        """The link came, went, or is in doubt: nothing is known until it was read again."""
        self._members_stale = self._leader_stale = True
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
            if self._leader_stale:
                self._leader_stale = False
                self.leadership = await self._read_leader(session)
            if self._members_stale:
                self._members_stale = False
                self.members = await self._read_members(session)
        except (CoordinationUnavailable, KazooException) as error:
            self.trouble = str(error) or repr(error)
            LOGGER.warning("cannot read members and leader: %s", self.trouble)
            self.link_changed()
            await asyncio.sleep(AGAIN_S)
            return
        if not (self._members_stale or self._leader_stale):  # else overtaken while reading; `_woken` is set
            self.connection = Connection.CONNECTED
            self.connected.set()
        self._tell_changes()

    async def _read_leader(self, session: Session) -> Leadership | None:
        while True:
            with suppress(NoNodeError):
                data, _ = await session.read(self._nodes.leader, self._leader_noticed)
                return decode_leadership(data)
            if await session.stat(self._nodes.leader, self._leader_noticed) is None:
                return None

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

    def _notice(self, mark: Callable[[], None]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(mark)

    # --- on the loop
    def _mark_members(self) -> None:
        self._members_stale = True
        self._woken.set()

    def _mark_leader(self) -> None:
        self._leader_stale = True
        self._woken.set()

    def _suspend(self) -> None:
        self.connection = Connection.SUSPENDED
        self.connected.clear()
        self._tell_changes()

    def _tell_changes(self) -> None:
        """Compared with what was told, not with what was known: reading may be overtaken half-way."""
        known = (self.members, self.leadership, self.connection)
        if known != self._told:
            self._told = known
            for listener in tuple(self._listeners):
                try:
                    listener()
                except Exception:  # noqa: BLE001 (one that fails must not leave everybody else with old values)
                    LOGGER.exception("a listener failed")
