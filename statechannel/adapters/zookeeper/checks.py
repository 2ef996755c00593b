"""The checks inside writes to ZooKeeper: that an incarnation is current, and the versions of nodes."""

from __future__ import annotations

from kazoo.exceptions import NodeExistsError, NoNodeError

from statechannel.adapters.zookeeper.nodes import Nodes
from statechannel.adapters.zookeeper.session import Operation, Refused, Session, check
from statechannel.errors import CoordinationUnavailable, Deposed, Fenced
from statechannel.law.record import BrokerId

ATTEMPTS = 8
"""How often a transaction that lost a race is tried before the server counts as unavailable."""


class Checks:
    """The checks below one root, over one link."""

    def __init__(self, session: Session, nodes: Nodes) -> None:
        self._session = session
        self._nodes = nodes
        self.abandoned = False
        """Set by another thread: no incarnation writes until a new one has started."""

    def may_act(self, broker: BrokerId) -> None:
        """Raises Fenced if our session was abandoned."""
        if self.abandoned:
            raise fenced(broker)

    def is_current(self, broker: BrokerId) -> Operation:
        """A step that fails its transaction unless this incarnation is current. Raises as `may_act`."""
        self.may_act(broker)
        return check(self._nodes.id(broker.name), broker.incarnation)

    async def confirm_current(self, broker: BrokerId) -> None:
        """Check in a transaction of its own that this incarnation is current. Raises Fenced."""
        try:
            await self._session.commit(self.is_current(broker))
        except Refused:
            raise fenced(broker) from None

    async def version(self, path: str) -> int:
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


def fenced(broker: BrokerId) -> Fenced:
    return Fenced(f"{broker} is not the current incarnation of its name: stop, and start a new incarnation")


def deposed(epoch: int) -> Deposed:
    return Deposed(f"epoch {epoch} is not the current one: stop leading")
