"""The identity of a coordination root on ZooKeeper: cluster, log, and the root's own."""

from __future__ import annotations

import secrets
from contextlib import suppress

import msgspec
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from statechannel.adapters.zookeeper.nodes import Nodes
from statechannel.adapters.zookeeper.session import Refused, Session, put
from statechannel.law.coordination_root import check_root
from statechannel.ports import Identity


class Roots:
    """The identity of one root, over one link.

    A wiped root that is used again gets nodes of the same names and versions. So the identity is also in the *name* of
    a node, the marker, which no other root has.
    """

    def __init__(self, session: Session, nodes: Nodes) -> None:
        self._session = session
        self._nodes = nodes

    async def identity(self) -> Identity | None:
        """What the root is tied to, None if nothing."""
        found = await self._read()
        return found and found[0]

    async def identify(self, ours: Identity) -> str:
        """The root's identity; creates what is missing if `ours` has no `root`. Raises ForeignCluster."""
        while True:
            found = await self._read()
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

    async def _read(self) -> tuple[Identity, int] | None:
        try:
            data, stat = await self._session.read(self._nodes.identity)
        except NoNodeError:
            return None
        return msgspec.json.decode(data, type=Identity), stat.version


def _encoded(ours: Identity) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(ours, root=secrets.token_hex(8)))
