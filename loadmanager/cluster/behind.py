"""Whether this broker gets at the log, and when it tells the others so.

Who holds little and reads nothing would be given all, so the others must know. But where the log is away it is away for
all at once: then nothing can be given to anybody, while each registration is read by each broker. So brokers tell one
after the other, in an order drawn from their names, and once a tenth of them has told it the others need not. Decides
nothing about ownership.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from zlib import crc32

from loadmanager.cluster.membership import Membership
from loadmanager.model.registration import Peer
from loadmanager.settings import Settings
from statechannel.errors import LogUnavailable, StateChannelError
from statechannel.runtime.service import Channel

LOOK_S = 0.5
"""How often one that has told it looks whether the log answers again."""
STILL_S = 0.2
"""What the log gets to answer, when our turn to tell has come."""
EACH_S = 0.05
"""From one that tells to the next."""
FEW = 20
SHARE = 0.1


def turn_s(name: str, tellers: Iterable[str]) -> float:
    """How long this broker waits where all of these have something to tell: the same order in every process."""
    ours = crc32(name.encode())
    return EACH_S * sum(crc32(other.encode()) < ours for other in tellers)


def worth_telling(peers: Collection[Peer]) -> bool:
    """Whether so few have said that they are behind that it is not the log itself: a few, or a tenth of all."""
    return sum(peer.registration.behind for peer in peers) < max(FEW, SHARE * len(peers))


class LogWatch:
    """Run `run`: it calls `tell(behind)` when that differs from `told()`, the turn of this broker has come, and the log
    still answers, or not, as before."""

    def __init__(self, name: str, channel: Channel, membership: Membership, settings: Callable[[], Settings]) -> None:
        self._name = name
        self._channel = channel
        self._membership = membership
        self._settings = settings

    async def run(self, told: Callable[[], bool], tell: Callable[[bool], Awaitable[None]]) -> None:
        """Until the replica stops for good, and with it the node."""
        while True:
            await asyncio.sleep(LOOK_S if told() else self._settings().monitor_interval_s)
            try:
                news = await self._look(told())
            except StateChannelError:
                return
            if news is not None:
                await tell(news)

    async def _look(self, told: bool) -> bool | None:
        """What there is to tell now, None if nothing. Raises StateChannelError when the replica has stopped."""
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
