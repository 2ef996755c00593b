"""Early suspicion on evidence: brokers connect to the others' ports; ended and refused connections raise suspicion.

The system ends the connections of a crashed process at once, and its port refuses new ones, long before its session
ends. Brokers share suspicions in a compacted topic; `membership.suspected_by` decides who is suspected. A port that
does not answer is not suspicious.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Set
from contextlib import suppress
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
CLOSING_S = 0.02
"""Time from the end of a connection to the next probe: the system closes a dead process's sockets one by one."""


class SuspicionReport(msgspec.Struct, frozen=True):
    """`observer` found the port of `suspect` closed. The wire has the field names of the first release."""

    observer: BrokerId = msgspec.field(name="accuser")
    suspect: BrokerId = msgspec.field(name="accused")


class Answer(StrEnum):
    """The result of a probe."""

    OPEN = "open"
    """It was open, and the connection lasted as long as asked for."""
    ENDED = "ended"
    """It was open, and the other end closed the connection."""
    REFUSED = "refused"
    SILENT = "silent"


Probe = Callable[[Peer, float], Awaitable[Answer]]
"""Connects, and keeps the connection for so many seconds unless it ends."""


PROBE_INTERVAL_S = 0.25
"""Between two connections to another broker's port: each stays open as long, and a crash ends it."""
PROBE_REFUSALS = 2
"""Refused connections in a row that raise suspicion: one may come from a full backlog. An ended one counts as one."""


async def probe_port(peer: Peer, keep_s: float) -> Answer:
    """Connect to the broker's admin port, and keep the connection for `keep_s` unless the other end closes it."""
    address = peer.registration.admin_url.rpartition("//")[2] or peer.broker.name
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return Answer.REFUSED
    except (OSError, ValueError, OverflowError):  # the last two: the registered URL is not an address
        return Answer.SILENT
    try:
        async with asyncio.timeout(keep_s):
            said = await reader.read(1)
    except TimeoutError:
        return Answer.OPEN
    except OSError:  # reset
        return Answer.ENDED
    finally:
        writer.close()
    return Answer.OPEN if said else Answer.ENDED


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
    """Probes other brokers and publishes this broker's suspicions; keep `run()` running. The view has all brokers'.

    `refusals` in a row make a suspicion. A connection that ended counts as one, and the next probe follows CLOSING_S
    later. If the port accepts that one, it is open.
    """

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
        self._around: tuple[Set[str], list[str]] = set[str](), []
        """The brokers of the last round, and those of them that we probe."""
        self._mine: Mapping[BrokerId, Peer] = {}
        self._watched: set[BrokerId] = set()
        self._suspecting: dict[str, BrokerId] = {}
        """By name, as in the topic: the incarnations of a name share a key."""

    async def run(self) -> None:
        """Probe until cancelled; go on after an error."""
        self._watched.clear()
        async with asyncio.TaskGroup() as tasks:
            while True:
                peers = self._peers()
                if self._around[0] != peers.keys():
                    self._around = frozenset(peers), sorted(Ring(peers).observed_by(self._me.name))
                self._mine = {peers[name].broker: peers[name] for name in self._around[1]}
                for broker in self._mine:
                    if broker not in self._watched:
                        self._watched.add(broker)
                        tasks.create_task(self._watch(broker))
                for broker in list(self._suspecting.values()):
                    if broker not in self._mine:
                        await self._withdraw(broker)
                await asyncio.sleep(self._interval_s)

    async def _watch(self, broker: BrokerId) -> None:
        """Probe a broker as long as it is ours to probe."""
        clock_s = asyncio.get_running_loop().time
        refused, before = 0, Answer.OPEN
        while (peer := self._mine.get(broker)) is not None:
            begun_s = clock_s()
            answer = await self._probe(peer, self._interval_s)
            if answer is Answer.REFUSED:
                refused += 1
            else:
                refused = min(1, self._refusals - 1) if answer is Answer.ENDED else 0
            await (self._suspect if refused >= self._refusals else self._withdraw)(broker)
            ended = answer is Answer.ENDED and before is not Answer.ENDED
            await asyncio.sleep(CLOSING_S if ended else begun_s + self._interval_s - clock_s())
            before = answer
        self._watched.discard(broker)

    async def _suspect(self, broker: BrokerId) -> None:
        if self._suspecting.get(broker.name) == broker:
            return
        self._suspecting[broker.name] = broker
        try:
            await self._view.put(self._key(broker), SuspicionReport(self._me, broker))
        except LogError:  # without the log nothing can be moved either; the next probe tries again
            if self._suspecting.get(broker.name) == broker:
                del self._suspecting[broker.name]

    async def _withdraw(self, broker: BrokerId) -> None:
        if self._suspecting.get(broker.name) != broker:
            return
        with suppress(LogError):
            await self._view.delete(self._key(broker))
            if self._suspecting.get(broker.name) == broker:
                del self._suspecting[broker.name]

    def _key(self, suspect: BrokerId) -> str:
        return f"{self._me.name}>{suspect.name}"
