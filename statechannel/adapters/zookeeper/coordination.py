"""`Coordination` on ZooKeeper: one checked transaction for each write of the port.

A wiped root that is used again gets nodes of the same names and versions. So the identity of a root is also in the
*name* of a node, the marker, which no other root has.

`nodes.py` has the format of the nodes, `session.py` the link, `watches.py` the watched values. Every write checks that
an incarnation is current, and the versions of nodes. A lease is an ephemeral node. Its *term* is a second node, whose
version rises with every claim. A new ephemeral node always has version 0, so only the term tells a holder's node from
its successor's.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError
from kazoo.protocol.states import ZnodeStat

from statechannel.adapters.zookeeper.access import open_to_all
from statechannel.adapters.zookeeper.nodes import (
    Nodes,
    decode_holder,
    decode_leadership,
    encode_holder,
    encode_leadership,
    encode_member,
)
from statechannel.adapters.zookeeper.session import (
    LOGGER,
    Operation,
    Precondition,
    Refused,
    Session,
    check,
    drop,
    make,
    put,
)
from statechannel.adapters.zookeeper.watches import Watches
from statechannel.errors import CoordinationError, CoordinationUnavailable, Deposed, Fenced, ForeignRoot, RootLost
from statechannel.law.agreement import check_root, lost, replaced
from statechannel.law.record import BrokerId
from statechannel.ports import Connection, Identity, Leadership, Member, WatchCounts

ATTEMPTS = 8
"""How often a transaction that lost a race is tried before the server counts as unavailable."""


def fenced(broker: BrokerId) -> Fenced:
    return Fenced(f"{broker} is not the current incarnation of its name: stop, and start a new incarnation")


def deposed(epoch: int) -> Deposed:
    return Deposed(f"epoch {epoch} is not the current one: stop leading")


def _encoded(ours: Identity) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(ours, root=secrets.token_hex(8)))


RAISES_AT_ONCE = 500
MAX_DATA_BYTES = 256 * 1024
TELL_S, TELL_AGAIN_S = 1.0, 10.0
MAX_VERSION = 2**31 - 1


class ZooKeeperCoordination:
    """A `statechannel.ports.Coordination` on the ensemble `hosts` (`host:port[,host:port...]`), below `root`.

    The server may lengthen `session_timeout_s` to what its tick time allows. `client_settings` are those of `access.py`
    (credentials, ACLs, TLS); raises CoordinationError for settings that it refuses.
    """

    def __init__(
        self,
        hosts: str,
        *,
        root: str = "/loadmanager",
        session_timeout_s: float = 6.0,
        request_timeout_s: float = 2.0,
        client_settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._nodes = Nodes(root)
        self._hosts = hosts
        self._watches = Watches(self._nodes)
        self._session = Session(
            hosts, session_timeout_s, request_timeout_s, client_settings or {}, self._watches.link_changed
        )
        self._abandoned = False
        """Set by another thread: no incarnation writes until a new one has started."""
        self._keeper: asyncio.Task[None] | None = None
        self._data: dict[BrokerId, bytes] = {}
        self._unconfirmed: set[BrokerId] = set()
        """Those whose last registration got no answer. Their nodes may have been made with other data."""
        self._won: Leadership | None = None

    async def start(self, timeout_s: float) -> None:
        """As `Coordination.start`."""
        self._session.open()
        self._keeper = asyncio.create_task(
            self._watches.run(self._session, self._prepare_root), name="zookeeper-watches"
        )
        telling = asyncio.create_task(self._tell_trouble(timeout_s))
        try:
            async with asyncio.timeout(timeout_s):
                await self._watches.until_known()
        except BaseException as error:
            reason = self._trouble()
            await self.close()
            if isinstance(error, TimeoutError):
                raise CoordinationUnavailable(
                    f"ZooKeeper at {self._hosts} did not answer within {timeout_s:g} s: {reason}"
                ) from None
            raise
        finally:
            telling.cancel()

    async def _tell_trouble(self, timeout_s: float) -> None:
        """Log why the start waits: after TELL_S, then every TELL_AGAIN_S."""
        began_s = asyncio.get_running_loop().time()
        await asyncio.sleep(TELL_S)
        while True:
            left_s = max(0.0, began_s + timeout_s - asyncio.get_running_loop().time())
            text = "ZooKeeper at %s does not answer yet: %s; trying for another %.0f s"
            LOGGER.warning(text, self._hosts, self._trouble(), left_s)
            await asyncio.sleep(TELL_AGAIN_S)

    def _trouble(self) -> str:
        return self._watches.trouble or self._session.trouble or "it does not answer"

    async def identify(self, cluster: str, log_identity: str, root: str | None = None) -> str:
        """As `Coordination.identify`."""
        self._session.precondition = None
        await self._prepare_root()
        identity = await self._identify(Identity(cluster, log_identity, root or ""))
        self._session.precondition = Precondition(check(self._nodes.marker(identity)), lambda: self._moved(identity))
        self._watches.note_root(lost=False)
        return identity

    async def _moved(self, root: str) -> CoordinationError:
        """The error to raise because the root is not the identified one any more."""
        found = await self.identity()
        where = f"{self._nodes.root} on ZooKeeper at {self._hosts}"
        if found is None or found.root == root:
            self._watches.note_root(lost=True)
            return RootLost(lost(where, root))
        return ForeignRoot(replaced(where, found.root, root))

    async def identity(self) -> Identity | None:
        """As `Coordination.identity`."""
        found = await self._read_identity()
        return found and found[0]

    async def _identify(self, ours: Identity) -> str:
        """The root's identity; creates what is missing if `ours` has no `root`. Raises ForeignCluster."""
        while True:
            found = await self._read_identity()
            check_root(found and found[0], ours)
            if found is None:
                with suppress(NodeExistsError):
                    await self._session.create(self._nodes.identity, _encoded(ours))
            elif not found[0].root:  # made by an earlier release, or not named yet
                with suppress(Refused, BadVersionError):
                    await self._session.commit(put(self._nodes.identity, _encoded(ours), found[1]))
            else:
                with suppress(NodeExistsError):
                    await self._session.create(self._nodes.marker(found[0].root), b"")
                return found[0].root

    async def _read_identity(self) -> tuple[Identity, int] | None:
        try:
            data, stat = await self._session.read(self._nodes.identity)
        except NoNodeError:
            return None
        return msgspec.json.decode(data, type=Identity), stat.version

    # --- incarnations
    async def start_incarnation(self, name: str, above: int) -> BrokerId:
        """As `Coordination.start_incarnation`."""
        started = BrokerId(name, await self._raise_number(name, above))
        self._abandoned = False
        return started

    async def register(self, broker: BrokerId, data: bytes) -> None:
        """As `Coordination.register`; data of at most 256 KiB."""
        if len(data) > MAX_DATA_BYTES:
            raise CoordinationError(f"registered data of {len(data)} bytes exceeds {MAX_DATA_BYTES}: shorten it")
        exists = broker in self._data
        self._data[broker] = data  # first: a proof that is sent after this one must not write the former data again
        self._unconfirmed.add(broker)
        await self._replace(broker, exists=exists)

    async def prove(self, broker: BrokerId) -> None:
        """As `Coordination.prove`.

        Others read a node once, so its data must never change. Therefore, a proof after a registration that got no
        answer replaces the node, too.
        """
        if broker in self._unconfirmed:
            await self._replace(broker)
            return
        live, data = self._nodes.live(broker.name), self._data.get(broker, b"")
        try:
            _, written = await self._session.commit(self._is_current(broker), put(live, encode_member(broker, data)))
        except Refused as refused:
            if refused.index == 0:
                raise fenced(broker) from None
            await self._replace(broker)
            return
        ours = self._session.session_id
        if ours is not None and written.ephemeralOwner != ours:
            await self._replace(broker)  # else the node would vanish with the older session that made it

    async def unregister(self, broker: BrokerId) -> None:
        """As `Coordination.unregister`."""
        self._data.pop(broker, None)
        self._unconfirmed.discard(broker)
        if self._abandoned:
            return  # the node ends with its session
        live = self._nodes.live(broker.name)
        try:
            await self._session.commit(self._is_current(broker), drop(live))
        except Refused as refused:
            if refused.index == 0:
                await self._remove_revoked(broker, live)

    async def raise_incarnation(self, broker: BrokerId, epoch: int) -> None:
        """As `Coordination.raise_incarnation`."""
        leads = check(self._nodes.epoch, epoch)
        try:
            await self._session.commit(leads, put(self._nodes.id(broker.name), b"", broker.incarnation))
        except Refused as refused:
            if refused.index == 0:
                raise deposed(epoch) from None
            if await self._version(self._nodes.id(broker.name)) > broker.incarnation:
                return
            try:
                await self._raise_number(broker.name, broker.incarnation, leads)
            except Refused:
                raise deposed(epoch) from None

    # --- election
    async def campaign(self, candidate: BrokerId, above: int = 0) -> Leadership | None:
        """As `Coordination.campaign`."""
        self._may_act(candidate)
        await self._raise_epoch(candidate, above)
        for _ in range(ATTEMPTS):
            self._may_act(candidate)
            present = await self._present_leader()
            if present is not None and (present.leader != candidate or present == self._won):
                await self._confirm_current(candidate)
                return None
            epoch = await self._version(self._nodes.epoch)
            ours = Leadership(candidate, epoch + 1)
            # a leadership of ours that we do not know of: the answer to an earlier campaign was lost
            again = () if present is None else (drop(self._nodes.leader),)
            try:
                await self._session.commit(
                    self._is_current(candidate),
                    put(self._nodes.epoch, b"", epoch),
                    *again,
                    make(self._nodes.leader, encode_leadership(ours), ephemeral=True),
                )
            except Refused as refused:
                if refused.index == 0:
                    raise fenced(candidate) from None
                continue
            self._won = ours
            return ours
        return None

    async def resign(self, leadership: Leadership) -> None:
        """As `Coordination.resign`."""
        await self.evict(leadership)

    async def evict(self, leadership: Leadership) -> bool:
        """As `Coordination.evict`."""
        try:
            await self._session.commit(check(self._nodes.epoch, leadership.epoch), drop(self._nodes.leader))
        except Refused:
            return False
        return True

    # --- leases
    async def claim(self, lease: str, candidate: BrokerId) -> bool:
        """As `Coordination.claim`. Raises InvalidName for an invalid lease."""
        node, term = self._nodes.lease(lease), self._nodes.term(lease)
        for _ in range(ATTEMPTS):
            self._may_act(candidate)
            count = await self._version(term)
            present = await self._read_lease(node)
            if present is not None:
                data, stat = present
                ours = decode_holder(lease, data) == candidate
                if not ours or stat.ephemeralOwner == self._session.session_id:
                    await self._confirm_current(candidate)
                    return ours
            # a node of ours from an earlier session: it would vanish with that session
            outlived = () if present is None else (drop(node),)
            try:
                await self._session.commit(
                    self._is_current(candidate),
                    put(term, b"", count),
                    *outlived,
                    make(node, encode_holder(candidate), ephemeral=True),
                )
            except Refused as refused:
                if refused.index == 0:
                    raise fenced(candidate) from None
                continue
            return True
        return False

    async def vacate(self, lease: str, holder: BrokerId) -> None:
        """As `Coordination.vacate`. Raises InvalidName for an invalid lease."""
        node, term = self._nodes.lease(lease), self._nodes.term(lease)
        for _ in range(ATTEMPTS):
            counted = await self._session.stat(term)
            present = await self._read_lease(node)
            if counted is None or present is None or decode_holder(lease, present[0]) != holder:
                return
            with suppress(Refused):
                await self._session.commit(check(term, counted.version), drop(node))
                return
        raise CoordinationUnavailable(f"lost {ATTEMPTS} races for lease {lease} of {holder}: try again")

    async def _read_lease(self, node: str) -> tuple[bytes, ZnodeStat] | None:
        with suppress(NoNodeError):
            return await self._session.read(node)
        return None

    # --- watches
    @property
    def leases(self) -> Mapping[str, BrokerId]:
        """As `Coordination.leases`."""
        return self._watches.leases

    @property
    def members(self) -> Mapping[str, Member]:
        """As `Coordination.members`."""
        return self._watches.members

    @property
    def leadership(self) -> Leadership | None:
        """As `Coordination.leadership`."""
        return self._watches.leadership

    @property
    def connection(self) -> Connection:
        """As `Coordination.connection`."""
        return self._watches.connection

    @property
    def counts(self) -> WatchCounts:
        """As `Coordination.counts`."""
        return self._watches.counts

    def on_change(self, changed: Callable[[], None]) -> None:
        """As `Coordination.on_change`."""
        self._watches.on_change(changed)

    def abandon(self) -> None:
        """As `Coordination.abandon`."""
        if self._session.abandon():
            self._abandoned = True

    async def close(self) -> None:
        """As `Coordination.close`."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper
        await self._session.close()

    # --- what the transactions check
    def _may_act(self, broker: BrokerId) -> None:
        """Raises Fenced if our session was abandoned."""
        if self._abandoned:
            raise fenced(broker)

    def _is_current(self, broker: BrokerId) -> Operation:
        """A step that fails its transaction unless this incarnation is current. Raises as `_may_act`."""
        self._may_act(broker)
        return check(self._nodes.id(broker.name), broker.incarnation)

    async def _confirm_current(self, broker: BrokerId) -> None:
        """Check in a transaction of its own that this incarnation is current. Raises Fenced."""
        try:
            await self._session.commit(self._is_current(broker))
        except Refused:
            raise fenced(broker) from None

    async def _version(self, path: str) -> int:
        """The version of a node; creates the node if it does not exist."""
        while True:
            stat = await self._session.stat(path)
            if stat is not None:
                return stat.version
            try:
                await self._session.create(path, b"")
            except NodeExistsError:
                continue
            except NoNodeError:
                if self._session.precondition is not None:
                    raise await self._session.precondition.failed() from None
                raise CoordinationUnavailable(f"the directory of {path} is gone from ZooKeeper") from None

    # --- transactions that may need several attempts
    async def _raise_epoch(self, candidate: BrokerId, above: int) -> None:
        """Raise the epoch to at least `above`: the log may have seen higher epochs than this root."""
        while (missing := above - await self._version(self._nodes.epoch)) > 0:
            raises = [put(self._nodes.epoch, b"")] * min(missing, RAISES_AT_ONCE)
            try:
                await self._session.commit(self._is_current(candidate), *raises)
            except Refused as refused:
                if refused.index == 0:
                    raise fenced(candidate) from None
                raise CoordinationUnavailable(f"the epoch could not be raised: {refused}; try again") from None

    async def _raise_number(self, name: str, above: int, *guards: Operation) -> int:
        """Raise the number of `name` by at least one, to more than `above`. Raises Refused if a guard fails."""
        if above >= MAX_VERSION - RAISES_AT_ONCE:
            raise CoordinationError(f"incarnation numbers of {name} are used up at {above}: use another root")
        path = self._nodes.id(name)
        while True:
            missing = above + 1 - await self._version(path)
            count = min(max(1, missing), RAISES_AT_ONCE)
            # unconditional writes: each of several concurrent callers gets its own number
            results = await self._session.commit(*guards, *[put(path, b"")] * count)
            if (number := results[-1].version) > above:
                return number

    async def _replace(self, broker: BrokerId, *, exists: bool = True) -> None:
        """Replace the liveness node, also that of another session, by one of ours with the data registered last."""
        live = self._nodes.live(broker.name)
        for _ in range(ATTEMPTS):
            data = self._data.get(broker, b"")
            fresh = make(live, encode_member(broker, data), ephemeral=True)
            try:
                await self._session.commit(self._is_current(broker), *((drop(live),) if exists else ()), fresh)
            except Refused as refused:
                if refused.index == 0:
                    raise fenced(broker) from None
                exists = isinstance(refused.cause, NodeExistsError)
            else:
                if self._data.get(broker, b"") == data:
                    self._unconfirmed.discard(broker)
                return
        raise CoordinationUnavailable(f"lost {ATTEMPTS} races for the liveness node of {broker}: try again")

    async def _remove_revoked(self, broker: BrokerId, live: str) -> None:
        """Delete the liveness node of our raised incarnation, unless it is already its successor's."""
        with suppress(NoNodeError, BadVersionError):
            data, stat = await self._session.read(live)
            ours = data.startswith(encode_member(broker, b""))
            if ours and stat.ephemeralOwner == self._session.session_id:
                await self._session.delete(live, stat.version)

    async def _present_leader(self) -> Leadership | None:
        with suppress(NoNodeError):
            data, _ = await self._session.read(self._nodes.leader)
            return decode_leadership(data)
        return None

    async def _prepare_root(self) -> None:
        if await self._session.stat(self._nodes.root) is None:
            for path in self._nodes.ancestors():
                await self._ensure(path, for_all=True)
        for path in self._nodes.directories():
            await self._ensure(path)
        if open_to_all(await self._session.acl(self._nodes.root)) and not open_to_all(self._session.default_acl):
            LOGGER.warning(
                "everybody may still change %s: once all brokers have an identity, run `setAcl -R` of zkCli.sh on it",
                self._nodes.root,
            )

    async def _ensure(self, path: str, *, for_all: bool = False) -> None:
        """Create a node if it is missing. Looks first: without the right to create, even an existing one is refused."""
        if await self._session.stat(path) is None:
            with suppress(NodeExistsError):
                await self._session.create(path, b"", for_all=for_all)
