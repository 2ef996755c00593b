"""What a broker tells the others beside its registration: that it cannot read the log, or that it gives up its name.

A broker that holds little but cannot read the log looks idle and would be given all bundles, so the others must know.
But if the log fails it fails for all: then no broker can be given anything, and every broker would read every new
registration. So brokers tell one after the other, ordered by a hash of their names; once a tenth of them has told it,
the rest stays silent. Of two processes with the same advertised name, which would fence each other without end, one
ends. Decides nothing about ownership.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from zlib import crc32

from loadmanager.cluster.membership import Membership
from loadmanager.model.registration import Peer
from loadmanager.settings import Settings
from statechannel.errors import CoordinationUnavailable, LogUnavailable, NameTaken, StateChannelError
from statechannel.law.record import BrokerId
from statechannel.ports import Coordination
from statechannel.runtime.channel import Channel

LOOK_S = 0.5
"""How often a broker that has reported this checks whether the log answers again."""
STILL_S = 0.2
"""How long the log may take to answer when our turn to tell has come."""
EACH_S = 0.05
"""The time between one broker's turn and the next."""
FEW = 20
SHARE = 0.1


def turn_s(name: str, tellers: Iterable[str]) -> float:
    """How long this broker waits for its turn among `tellers`; the order is the same in every process."""
    ours = crc32(name.encode())
    return EACH_S * sum(crc32(other.encode()) < ours for other in tellers)


def worth_telling(peers: Collection[Peer]) -> bool:
    """Whether so few brokers are behind (FEW, or a tenth of all) that the log itself has not failed."""
    return sum(peer.registration.behind for peer in peers) < max(FEW, SHARE * len(peers))


class LogWatch:
    """Watches the log. `run` calls `tell(behind)` if `behind` differs from `told()` and still does in our turn."""

    def __init__(self, name: str, channel: Channel, membership: Membership, settings: Callable[[], Settings]) -> None:
        self._name = name
        self._channel = channel
        self._membership = membership
        self._settings = settings

    async def run(self, told: Callable[[], bool], tell: Callable[[bool], Awaitable[None]]) -> None:
        """Watch until the replica stops for good, and the node with it."""
        while True:
            await asyncio.sleep(LOOK_S if told() else self._settings().monitor_interval_s)
            try:
                news = await self._look(told())
            except StateChannelError:
                return
            if news is not None:
                await tell(news)

    async def _look(self, told: bool) -> bool | None:
        """The value to tell now, None if nothing is new. Raises StateChannelError when the replica has stopped."""
        behind = await self._is_behind(self._settings().publish_timeout_s)
        if behind == told:
            return None
        peers = self._membership.peers.values()
        tellers = [peer.broker.name for peer in peers if behind or peer.registration.behind]
        await asyncio.sleep(turn_s(self._name, tellers))
        if await self._is_behind(STILL_S) != behind or (behind and not worth_telling(self._membership.peers.values())):
            return None
        return behind

    async def _is_behind(self, timeout_s: float) -> bool:
        try:
            await self._channel.catch_up(timeout_s)
        except LogUnavailable:
            return True
        return False


ANSWERS = 5
"""Enough for the answer with the namesake's number, the round trip of its registration, the same for our watch, and one
more, since it asks later than we do."""


async def yield_to_namesake(
    me: BrokerId,
    membership: Membership,
    coordination: Coordination,
    clock_s: Callable[[], float],
    validity_s: float,
    stopping: asyncio.Event,
) -> None:
    """Return once no other process has registered under the name of `me`, which was fenced. Raises NameTaken.

    A leader that fenced us registers no process under our name. A namesake registers right after it took the number,
    and its round trip to the coordination service may be as long as ours. So we look for `validity_s / 2`, and until
    the service has answered us ANSWERS times.
    """
    answers, until_s = 0, clock_s() + validity_s / 2
    while not stopping.is_set():
        peer = membership.peers.get(me.name)
        if peer is not None and peer.broker.incarnation > me.incarnation:
            raise NameTaken(f"another process runs as {peer.broker}; give each its own --advertised address")
        if answers >= ANSWERS and clock_s() >= until_s:
            return
        if answers < ANSWERS:
            with suppress(CoordinationUnavailable):
                await coordination.identity()  # changes nothing
                answers += 1
        await asyncio.sleep(validity_s / 40)
