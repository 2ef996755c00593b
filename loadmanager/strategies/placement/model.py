"""What a placement is asked and what it answers. Values only.

A candidate is a registered, live broker as the asking one knows it: what the ownership table, the load view and the
registrations said when it looked. `Given` is what only the asker knows: what it gave away since then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from loadmanager.model.load.model import BrokerLoadData
from loadmanager.model.load.usage import usage
from loadmanager.model.registration import Peer
from statechannel.law.record import Action, BrokerId
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership


class Candidate(msgspec.Struct, frozen=True):
    """A broker that might take a bundle.

    `usage` is a fraction, None without fresh load data; `reported_bundles` is what the broker held when that was
    measured, and `traffic` whether these bundles had any. `bundles` is what it holds by the table, with what is on its
    way to it and without what is leaving.
    """

    broker: BrokerId
    bundles: int = 0
    usage: float | None = None
    reported_bundles: int = 0
    traffic: bool = True
    draining: bool = False
    max_bundles: int | None = None


class Given(msgspec.Struct, frozen=True):
    """What the asker knows about this one question.

    `bundles`: how many it gave to each broker that the table doesn't show yet. `declined_by`: who just refused the
    bundle. `preferred`: the name of a broker that should get it back, as after its restart. `margin`: the setting
    `placement_margin_percent` as a fraction.
    """

    bundles: Mapping[BrokerId, int] = msgspec.field(default_factory=dict)
    declined_by: BrokerId | None = None
    preferred: str | None = None
    margin: float = 0.10


NOTHING_GIVEN = Given()


class RefusedCandidate(msgspec.Struct, frozen=True):
    """A candidate that was not eligible, the rule that said so, and its numbers."""

    broker: BrokerId
    rule: str
    detail: str


class Placed(msgspec.Struct, frozen=True):
    """The broker to give the bundle to, why, and who was not eligible."""

    broker: BrokerId
    reason: str
    refused: tuple[RefusedCandidate, ...] = ()


class NoPlace(msgspec.Struct, frozen=True):
    """Nobody may take the bundle, and what refused each."""

    reason: str
    refused: tuple[RefusedCandidate, ...] = ()


Measure = Callable[[BrokerLoadData], float]


def candidates(
    peers: Iterable[Peer], loads: Mapping[str, BrokerLoadData], table: OwnershipTable, measure: Measure = usage
) -> tuple[Candidate, ...]:
    """The live brokers as candidates, in the order of `peers`. Load data of another incarnation don't count.

    `measure` says how full a broker is. A broker limits itself by declaring a capacity `bundles`.
    """
    return Roster().candidates(peers, loads, table, measure)


class Roster:
    """Remembers the candidates of the last look: only those of whom something changed are worked out anew."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Peer, BrokerLoadData | None, Candidate]] = {}
        self._measure: Measure | None = None

    def candidates(
        self, peers: Iterable[Peer], loads: Mapping[str, BrokerLoadData], table: OwnershipTable, measure: Measure
    ) -> tuple[Candidate, ...]:
        """As `candidates`. What is remembered counts as long as `measure` is the same function."""
        before = self._known if measure is self._measure else {}
        self._known, self._measure = {}, measure
        found: list[Candidate] = []
        for peer in peers:
            broker, load = peer.broker, loads.get(peer.broker.name)
            bundles = table.count_held_soon(broker)
            known = before.get(broker.name)
            if known is None or known[0] is not peer or known[1] is not load:
                known = peer, load, _candidate(peer, load, bundles, measure)
            elif known[2].bundles != bundles:
                known = peer, load, _with_bundles(known[2], bundles)
            self._known[broker.name] = known
            found.append(known[2])
        return tuple(found)


def _candidate(peer: Peer, load: BrokerLoadData | None, bundles: int, measure: Measure) -> Candidate:
    broker, registration = peer.broker, peer.registration
    if load is not None and load.broker != broker:
        load = None
    most = registration.capacity.get("bundles")
    return Candidate(
        broker=broker,
        bundles=bundles,
        usage=None if load is None else measure(load),
        reported_bundles=0 if load is None else load.bundles,
        traffic=load is None or load.rate_msg_s > 0 or load.throughput_bytes_s > 0,
        draining=registration.draining,
        max_bundles=None if most is None else int(most),
    )


def _with_bundles(of: Candidate, bundles: int) -> Candidate:
    """The candidate with another count: during a mass recovery that of every broker changes between two looks."""
    return Candidate(
        of.broker, bundles, of.usage, of.reported_bundles, of.traffic, of.draining, of.max_bundles
    )  # by place: `msgspec.structs.replace` takes four times as long


def declined_by(entry: Ownership) -> BrokerId | None:
    """Who just refused this bundle: the author of the `release` that left it unassigned, if that was its last record.

    A bundle that was unloaded on purpose looks the same; its former holder then is passed over once, which is what an
    unload without a destination asks for. So is a leader that released the bundle of a dead broker to nobody.
    """
    return entry.by if entry.state is State.UNASSIGNED and entry.action is Action.RELEASE else None
