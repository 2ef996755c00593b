"""Keeps members, leader and leases fresh by ZooKeeper's watches, each of which fires once.

Proofs write liveness nodes several times a second, and must not fire a watch. So a liveness node has a watch on its
children, which it never has: this watch fires only when the node is deleted, and each registration replaces its node.
The transaction id of a node's creation tells whether it was replaced and must be read again. Leases change hands under
the same name, so their watch is on the data.

A child is read when its name is new, or after a watch on it has fired. So a change costs one list of names and a read
or two, however many children there are. Names are listed no faster than `LISTED_NAMES_PER_S`, so that one list serves
many changes at once. Watches end with the link: after it was lost every child is read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Generic, TypeVar

import msgspec
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.protocol.states import WatchedEvent, ZnodeStat

from statechannel.adapters.zookeeper.nodes import Nodes, decode_holder, decode_leadership, decode_member
from statechannel.adapters.zookeeper.session import LOGGER, Denied, Link, Session, Watch, post
from statechannel.errors import CoordinationUnavailable
from statechannel.law.record import BrokerId
from statechannel.ports import Connection, Leadership, Member, WatchCounts
from statechannel.runtime.listeners import Listeners
from statechannel.runtime.tasks import all_or_first_failure

T = TypeVar("T")

CONCURRENT_READS = 32
LISTED_NAMES_PER_S = 2_000

ReadChild = Callable[[Session, str, T | None, Watch], Awaitable[T]]
"""Reads one child, given its last value, and leaves a watch on it. Raises NoNodeError."""


class Directory(Generic[T]):
    """Used on the loop only. Calls `wake` there when `refresh` has something to do."""

    def __init__(self, path: str, read_child: ReadChild[T], wake: Callable[[], None], counts: WatchCounts) -> None:
        self._path = path
        self._read_child = read_child
        self._wake = wake
        self._counts = counts
        self._values: dict[str, T] = {}
        self._due: set[str] = set()
        """Names whose child may have changed since, or during, its last read."""
        self._unlisted = True
        self._list_again_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def values(self) -> Mapping[str, T]:
        """The values read last, by name."""
        return self._values

    @property
    def stale(self) -> bool:
        """Whether `refresh` has something to do."""
        return self._unlisted or bool(self._due)

    def link_lost(self) -> None:
        """All watches are gone: everything must be read again."""
        self._values = dict(self._values)  # a copy: a read under way may still write to the old one, without a watch
        self._due = set(self._values)
        self._unlisted = True

    async def refresh(self, session: Session) -> None:
        """Read the names and children that are due; those that fail remain due."""
        self._loop = asyncio.get_running_loop()
        values, due = self._values, self._due
        if self._unlisted:
            await self._list(session, values, due)
        gate = asyncio.Semaphore(CONCURRENT_READS)
        await all_or_first_failure([self._read(session, name, values, due, gate) for name in sorted(due)])

    async def _list(self, session: Session, values: dict[str, T], due: set[str]) -> None:
        self._unlisted = False
        self._counts.reads += 1
        try:
            names = set(await session.children(self._path, self._names_noticed))
        except BaseException:
            self._unlisted = True
            raise
        self._list_again_s = asyncio.get_running_loop().time() + len(names) / LISTED_NAMES_PER_S
        for gone in values.keys() - names:
            self._drop(gone, values)
        due &= names
        due |= names - values.keys()

    async def _read(
        self, session: Session, name: str, values: dict[str, T], due: set[str], gate: asyncio.Semaphore
    ) -> None:
        async with gate:
            due.discard(name)
            try:
                value = await self._read_child(session, name, values.get(name), self._child_noticed)
            except NoNodeError:
                self._drop(name, values)
            except BaseException:
                due.add(name)
                raise
            else:
                self._counts.changes += name not in values or values[name] != value
                values[name] = value

    def _drop(self, name: str, values: dict[str, T]) -> None:
        if values.pop(name, None) is not None:
            self._counts.changes += 1

    # --- called on kazoo's thread
    def _names_noticed(self, _event: object) -> None:
        post(self._loop, self._mark_unlisted_in_time)

    def _child_noticed(self, event: object) -> None:
        if isinstance(event, WatchedEvent) and event.path:  # no path: the link was lost, which `link_lost` handles
            post(self._loop, self._mark, event.path.rpartition("/")[2])

    # --- on the loop
    def _mark(self, name: str) -> None:
        self._due.add(name)
        self._wake()

    def _mark_unlisted_in_time(self) -> None:
        """Called once for each list, since the watch on the names is gone until they are listed again."""
        assert self._loop is not None
        self._loop.call_at(self._list_again_s, self._mark_unlisted)

    def _mark_unlisted(self) -> None:
        self._unlisted = True
        self._wake()


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
        """Run until cancelled. First calls `prepare` until it succeeds; nothing is read before."""
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
