"""Early suspicion on evidence: brokers connect to the others' ports, and a refused connection is a suspicion.

The port of a crashed process refuses at once, long before its session ends. Brokers share suspicions in a compacted
topic; `membership.suspected_by` decides who is suspected. A port that does not answer is no suspicion.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from enum import StrEnum
from hashlib import blake2b

import msgspec

from loadmanager.model.registration import Peer
from statechannel.errors import LogError
from statechannel.law.record import BrokerId
from statechannel.runtime.view import TableView

OBSERVERS = 4
"""How many brokers probe each broker: enough for two to agree, few enough for a large cluster."""

PROBE_TIMEOUT_S = 1.0


class SuspicionReport(msgspec.Struct, frozen=True):
    """`observer` found the port of `suspect` closed. The wire has the field names of the first release."""

    observer: BrokerId = msgspec.field(name="accuser")
    suspect: BrokerId = msgspec.field(name="accused")


class Answer(StrEnum):
    """The result of a probe."""

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
    except (OSError, ValueError, OverflowError):  # the last two: the registered URL is no address
        return Answer.SILENT
    writer.close()
    return Answer.OPEN


class Ring:
    """Who probes whom: brokers on a ring, in the order of their names' hashes; the next OBSERVERS probe each one.

    The same for all processes that know the same names. A broker that comes or goes affects only its neighbours, and no
    broker probes more than OBSERVERS others.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names, key=_place_of)
        self._places = {name: place for place, name in enumerate(self._names)}

    def observers_of(self, name: str) -> list[str]:
        """The brokers that probe this one, next on the ring first."""
        return self._next(name, 1)

    def observed_by(self, name: str) -> list[str]:
        """The brokers that this one probes."""
        return self._next(name, -1)

    def _next(self, name: str, step: int) -> list[str]:
        place, size = self._places.get(name), len(self._names)
        if place is None:
            return []
        return [self._names[(place + step * away) % size] for away in range(1, min(OBSERVERS, size - 1) + 1)]


def _place_of(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=8).digest()


class Suspicion:
    """Probes other brokers and publishes this broker's suspicions; keep `run()` running. The view has all brokers'."""

    def __init__(
        self,
        me: BrokerId,
        peers: Callable[[], Mapping[str, Peer]],
        view: TableView[SuspicionReport],
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
        self._refused: dict[BrokerId, int] = {}
        self._suspecting: set[BrokerId] = set()
        self._around: tuple[Set[str], list[str]] = set[str](), []
        """The brokers of the last round, and those of them that we probe."""

    async def run(self) -> None:
        """Probe for ever."""
        while True:
            peers = self._peers()
            if self._around[0] != peers.keys():
                self._around = frozenset(peers), sorted(Ring(peers).observed_by(self._me.name))
            mine = [peers[name] for name in self._around[1]]
            answers = await asyncio.gather(*(self._probe(peer) for peer in mine))
            for peer, answer in zip(mine, answers, strict=True):
                self._count(peer.broker, answer)
            await self._publish({peer.broker for peer in mine})
            await asyncio.sleep(self._interval_s)

    def _count(self, broker: BrokerId, answer: Answer) -> None:
        if answer is Answer.REFUSED:
            self._refused[broker] = self._refused.get(broker, 0) + 1
        else:
            self._refused.pop(broker, None)

    async def _publish(self, observed: set[BrokerId]) -> None:
        self._refused = {broker: count for broker, count in self._refused.items() if broker in observed}
        suspect = {broker for broker, count in self._refused.items() if count >= self._refusals}
        try:
            for broker in self._suspecting - suspect:  # first, as a name's next incarnation has the same key
                await self._view.delete(self._key(broker))
                self._suspecting.discard(broker)
            for broker in sorted(suspect - self._suspecting):
                await self._view.put(self._key(broker), SuspicionReport(self._me, broker))
                self._suspecting.add(broker)
        except LogError:
            return  # without the log nothing can be moved either; the next round tries again

    def _key(self, suspect: BrokerId) -> str:
        return f"{self._me.name}>{suspect.name}"
