"""Early suspicion on evidence: each broker looks at the others' ports; a refused connection is an accusation.

A crashed process refuses at once, long before its session ends. Accusations are shared in a compacted topic; what they
add up to is decided by `membership.condemn`. A port that merely does not answer accuses nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from hashlib import blake2b

import msgspec

from loadmanager.registration import Peer
from statechannel.errors import LogError
from statechannel.record import Broker
from statechannel.view import TableView

OBSERVERS = 4
"""How many brokers look at each one: enough for two that agree, few enough for a large cluster."""

PROBE_TIMEOUT_S = 1.0


class Accusation(msgspec.Struct, frozen=True):
    """`accuser` found the port of `accused` closed."""

    accuser: Broker
    accused: Broker


class Answer(StrEnum):
    """What a look at a port showed."""

    OPEN = "open"
    REFUSED = "refused"
    SILENT = "silent"


Probe = Callable[[Peer], Awaitable[Answer]]


async def probe_port(peer: Peer) -> Answer:
    """Connect to the broker's admin port and close again."""
    address = peer.registration.admin_url.rpartition("//")[2] or peer.broker.name
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return Answer.REFUSED
    except (OSError, ValueError, OverflowError):  # the last two: what it registered is no address
        return Answer.SILENT
    writer.close()
    return Answer.OPEN


def observers_of(observed: str, brokers: Mapping[str, Peer]) -> list[str]:
    """The brokers that look at this one: those next to it on a ring of hashes, the same for everybody who asks."""
    others = [name for name in brokers if name != observed]
    return sorted(others, key=lambda name: blake2b(f"{observed}|{name}".encode(), digest_size=8).digest())[:OBSERVERS]


class Suspicion:
    """Run `run()`; what all brokers say is in the view."""

    def __init__(
        self,
        me: Broker,
        peers: Callable[[], Mapping[str, Peer]],
        view: TableView[Accusation],
        probe: Probe,
        *,
        interval_s: float,
        refusals: int,
    ) -> None:
        self._me = me
        self._peers = peers
        self._view = view
        self._probe = probe
        self._interval_s = interval_s
        self._refusals = refusals
        self._refused: dict[Broker, int] = {}
        self._accusing: set[Broker] = set()

    async def run(self) -> None:
        """Look around for ever."""
        while True:
            peers = self._peers()
            mine = [
                p for name, p in peers.items() if name != self._me.name and self._me.name in observers_of(name, peers)
            ]
            answers = await asyncio.gather(*(self._probe(peer) for peer in mine))
            for peer, answer in zip(mine, answers, strict=True):
                self._count(peer.broker, answer)
            await self._publish({peer.broker for peer in mine})
            await asyncio.sleep(self._interval_s)

    def _count(self, broker: Broker, answer: Answer) -> None:
        if answer is Answer.REFUSED:
            self._refused[broker] = self._refused.get(broker, 0) + 1
        else:
            self._refused.pop(broker, None)

    async def _publish(self, observed: set[Broker]) -> None:
        self._refused = {broker: count for broker, count in self._refused.items() if broker in observed}
        accused = {broker for broker, count in self._refused.items() if count >= self._refusals}
        try:
            for broker in self._accusing - accused:  # first, as a name's next incarnation has the same key
                await self._view.delete(self._key(broker))
                self._accusing.discard(broker)
            for broker in sorted(accused - self._accusing):
                await self._view.put(self._key(broker), Accusation(self._me, broker))
                self._accusing.add(broker)
        except LogError:
            return  # without the log nothing can be moved either; the next round says it again

    def _key(self, accused: Broker) -> str:
        return f"{self._me.name}>{accused.name}"
