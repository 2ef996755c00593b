"""Keeps members, leader and leases fresh by ZooKeeper's watches, each of which fires once.

Proofs write liveness nodes several times a second, and must not fire a watch. So a liveness node has a watch on its
children, which it never has: this watch fires only when the node is deleted, and each registration replaces its node.
The transaction id of a node's creation tells whether it was replaced and must be read again. Leases change hands under
the same name, so their watch is on the data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import MappingProxyType

import msgspec
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.protocol.states import ZnodeStat

from statechannel.adapters.zookeeper.directory import Directory
from statechannel.adapters.zookeeper.nodes import Nodes, decode_holder, decode_leadership, decode_member
from statechannel.adapters.zookeeper.session import LOGGER, Denied, Link, Session, Watch, post
from statechannel.errors import CoordinationUnavailable
from statechannel.law.record import BrokerId
from statechannel.ports import Connection, Leadership, Member, WatchCounts
from statechannel.runtime.listeners import Listeners

AGAIN_S = 0.1
GONE_FOR_S = 1.0


class _LiveNode(msgspec.Struct, frozen=True):
    """A liveness node: its member (None if the data is not ours), and the transaction and session that made it.

    The session is needed too: a server that lost its data counts transactions from 1 again, but numbers sessions by its
    clock.
    """

    made: tuple[int, int]
    member: Member | None


class Watches:
    """Keeps members, leadership, leases and connection fresh; one task, `run`, owns them."""

    def __init__(self, nodes: Nodes) -> None:
        self.members: Mapping[str, Member] = MappingProxyType({})
        self.leadership: Leadership | None = None
        self.leases: Mapping[str, BrokerId] = MappingProxyType({})
        self.connection = Connection.SUSPENDED
        self.counts = WatchCounts()
        self._denial: Denied | None = None
        self._settled = asyncio.Event()
        """Set while everything is known, or `_denial` says why it cannot be."""
        self._told = (self.members, self.leadership, self.leases, self.connection)
        self._nodes = nodes
        self._listeners: Listeners[[]] = Listeners("the coordination's values")
        self._woken = asyncio.Event()
        self._leader_stale = True
        self._live: Directory[_LiveNode] = Directory(nodes.live_dir, self._read_live, self._woken.set, self.counts)
        self._holders: Directory[BrokerId | None] = Directory(
            nodes.leases_dir, self._read_holder, self._woken.set, self.counts
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._prepared = False
        self.root_lost = False
        """Our root's data is gone: values read below it mean nothing."""
        self.trouble = ""
        """Why the last reading failed, for messages."""

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call `changed` on the loop after each change of a value."""
        self._listeners.add(changed)

    async def until_known(self) -> None:
        """Wait until everything has been read once. Raises Denied if we may not."""
        await self._settled.wait()
        if self._denial is not None:
            raise self._denial

    def link_changed(self, link: Link) -> None:
        """A lost link loses its watches. A link in doubt keeps them: one read shows whether it works."""
        if link is not Link.UP:
            self._leader_stale = True
            if link is Link.LOST:
                self._live.link_lost()
                self._holders.link_lost()
            self._suspend()
        self._woken.set()

    def note_root(self, *, lost: bool) -> None:
        """The root's data is gone, or there again (perhaps another root's)."""
        if self.root_lost is not lost:
            self.root_lost = lost
            self.link_changed(Link.LOST)

    async def run(self, session: Session, prepare: Callable[[], Awaitable[None]]) -> None:
        """Run for ever; calls `prepare` until it succeeds, before anything is read."""
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
            self._tell_trouble("its nodes are gone" if isinstance(error, NoNodeError) else str(error) or repr(error))
            self._suspend()
            self._woken.set()
            self._denial = error if isinstance(error, Denied) else None
            if self._denial is not None:
                self._settled.set()
            await asyncio.sleep(GONE_FOR_S if self._denial else AGAIN_S)
            return
        stale = self._leader_stale or self._live.stale or self._holders.stale
        if not (stale or self.root_lost):  # stale again: something changed meanwhile, and `_woken` is or will be set
            self.trouble = ""
            self.connection = Connection.CONNECTED
            self._denial = None
            self._settled.set()
        self._tell_changes()

    def _tell_trouble(self, trouble: str) -> None:
        if trouble != self.trouble:
            LOGGER.warning("cannot read members, leader and leases: %s", trouble)
        self.trouble = trouble

    async def _read_stale(self, session: Session) -> None:
        if self._leader_stale:
            await self._read_leader(session)
        if self._holders.stale:
            await self._holders.refresh(session)
            holders = sorted(self._holders.values.items())
            self.leases = MappingProxyType({lease: holder for lease, holder in holders if holder is not None})
        if self._live.stale:
            await self._live.refresh(session)
            found = sorted(self._live.values.items())
            self.members = MappingProxyType({name: live.member for name, live in found if live.member is not None})

    async def _read_leader(self, session: Session) -> None:
        self._leader_stale = False
        try:
            leadership = await self._ask_who_leads(session)
        except BaseException:
            self._leader_stale = True
            raise
        self.counts.changes += leadership != self.leadership
        self.leadership = leadership

    async def _ask_who_leads(self, session: Session) -> Leadership | None:
        while True:
            self.counts.reads += 1
            with suppress(NoNodeError):
                data, _ = await session.read(self._nodes.leader, self._leader_noticed)
                return decode_leadership(data)
            self.counts.reads += 1
            if await session.stat(self._nodes.leader, self._leader_noticed) is None:
                return None

    async def _read_holder(
        self, session: Session, lease: str, _before: BrokerId | None, noticed: Watch
    ) -> BrokerId | None:
        self.counts.reads += 1
        data, _ = await session.read(f"{self._nodes.leases_dir}/{lease}", noticed)
        return decode_holder(lease, data)

    async def _read_live(self, session: Session, name: str, before: _LiveNode | None, deleted: Watch) -> _LiveNode:
        path = f"{self._nodes.live_dir}/{name}"
        self.counts.reads += 1
        state = await session.await_deletion(path, deleted)
        if before is not None and before.made == _made(state):
            return before
        self.counts.reads += 1
        data, state = await session.read(path)
        return _LiveNode(_made(state), decode_member(name, data))

    def _leader_noticed(self, _event: object) -> None:
        """Called on kazoo's thread."""
        post(self._loop, self._mark_leader)

    def _mark_leader(self) -> None:
        self._leader_stale = True
        self._woken.set()

    def _suspend(self) -> None:
        self.connection = Connection.SUSPENDED
        self._settled.clear()
        self._tell_changes()

    def _tell_changes(self) -> None:
        """Call the listeners if any value differs from the last call; a read may be interrupted half-way."""
        known = (self.members, self.leadership, self.leases, self.connection)
        if known != self._told:
            self._told = known
            self._listeners.call()


def _made(state: ZnodeStat) -> tuple[int, int]:
    return state.czxid, state.ephemeralOwner
