"""The contract of placements: candidates, the question, the answer, and batches. No clock, no I/O, no randomness.

A candidate is a registered, live broker as the caller sees it in the ownership table, the load view and the
registrations. `Given` is what only the caller knows: the bundles that it gave away since then. Third-party placements
are installed by an entry point of group `loadmanager.placements` (see `strategies/registry.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from loadmanager.model.load import BrokerLoadData
from loadmanager.model.registration import Peer
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership


class Candidate(msgspec.Struct, frozen=True):
    """A broker that might take a bundle.

    `usage` is a fraction, None without fresh load data; `reported_bundles` is how many bundles the broker then had, and
    `traffic` whether they had any. `bundles` is how many it has by the table, plus those that arrive, less those that
    leave.
    """

    broker: BrokerId
    bundles: int = 0
    usage: float | None = None
    reported_bundles: int = 0
    traffic: bool = True
    draining: bool = False
    max_bundles: int | None = None


class Given(msgspec.Struct, frozen=True):
    """What the caller knows about this one question.

    `bundles`: how many bundles it gave to each broker that the table does not show yet. `declined_by`: the broker that
    just refused the bundle. `preferred`: the name of a broker that should get it back, as after its restart. `margin`:
    the fraction below the mean that `least-resource-usage` asks for; by default Pulsar's.
    """

    bundles: Mapping[BrokerId, int] = msgspec.field(default_factory=dict)
    declined_by: BrokerId | None = None
    preferred: str | None = None
    margin: float = 0.10


class RefusedCandidate(msgspec.Struct, frozen=True):
    """A candidate that was not eligible, with the rule and its numbers."""

    broker: BrokerId
    rule: str
    detail: str


class Placed(msgspec.Struct, frozen=True):
    """The chosen broker, why, and which brokers were not eligible."""

    broker: BrokerId
    reason: str
    refused: tuple[RefusedCandidate, ...] = ()


class NoPlace(msgspec.Struct, frozen=True):
    """No broker may take the bundle, with the rule that refused each."""

    reason: str
    refused: tuple[RefusedCandidate, ...] = ()


Measure = Callable[[BrokerLoadData], float]


class Roster:
    """Remembers the last candidates: only those of brokers with a change are computed again."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Peer, BrokerLoadData | None, Candidate]] = {}
        self._measure: Measure | None = None

    def candidates(
        self, peers: Iterable[Peer], loads: Mapping[str, BrokerLoadData], table: OwnershipTable, measure: Measure
    ) -> tuple[Candidate, ...]:
        """The live brokers as candidates, in the order of `peers`; load data of another incarnation do not count.

        `measure` computes how full a broker is. The memory is valid only while it is the same function. A broker limits
        itself by declaring a capacity `bundles`.
        """
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
                # every count changes during a mass recovery, and `msgspec.structs.replace` takes four times as long
                of = known[2]
                now = Candidate(
                    of.broker, bundles, of.usage, of.reported_bundles, of.traffic, of.draining, of.max_bundles
                )
                known = peer, load, now
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


def declined_by(entry: Ownership) -> BrokerId | None:
    """The broker that just refused this bundle: the author of a `release` that left it unassigned as its last record.

    A bundle that was unloaded on purpose looks the same. Its former holder is then skipped once, as intended by an
    unload without a destination. So is a leader that released the bundle of a dead broker without a destination.
    """
    return entry.by if entry.state is State.UNASSIGNED and entry.action is Action.RELEASE else None


class Placement(Protocol):
    """Chooses a broker. The same question gets the same answer on every broker."""

    @property
    def name(self) -> str:
        """Its name in the setting `placement`."""
        ...

    def choose(self, bundle: Bundle, candidates: Sequence[Candidate], given: Given) -> Placed | NoPlace:
        """Where the bundle goes. Changes nothing: a caller that acts on it adds it to the next `given`."""
        ...


class Batch(Protocol):
    """A batch of placements over the same candidates; answers as `Placement.choose` with all bundles given so far."""

    def foresee(self, bundles: Sequence[Bundle]) -> None:
        """Hint which bundles come next."""
        ...

    def choose(
        self, bundle: Bundle, declined_by: BrokerId | None = None, preferred: str | None = None
    ) -> BrokerId | None:
        """The broker for this bundle, None if no broker may take it. A caller that gives it the bundle calls `gave`."""
        ...

    def gave(self, broker: BrokerId, change: int = 1) -> None:
        """The broker was given one more bundle, or one less (-1), which the table does not show yet."""
        ...


@runtime_checkable
class Batching(Protocol):
    """A placement that has its own way to place many bundles."""

    def batch(self, candidates: Sequence[Candidate], given: Mapping[BrokerId, int]) -> Batch:
        """Begin a batch; `given` is as `Given.bundles`, and is copied."""
        ...


class OneByOne:
    """Asks the placement again for each bundle."""

    def __init__(self, placement: Placement, candidates: Sequence[Candidate], given: Given) -> None:
        self._placement = placement
        self._candidates = candidates
        self._margin = given.margin
        self._given = dict(given.bundles)

    def foresee(self, bundles: Sequence[Bundle]) -> None:
        """Nothing to prepare."""

    def choose(
        self, bundle: Bundle, declined_by: BrokerId | None = None, preferred: str | None = None
    ) -> BrokerId | None:
        """See `Batch`."""
        given = Given(self._given, declined_by, preferred, self._margin)
        outcome = self._placement.choose(bundle, self._candidates, given)
        return outcome.broker if isinstance(outcome, Placed) else None

    def gave(self, broker: BrokerId, change: int = 1) -> None:
        """See `Batch`."""
        self._given[broker] = self._given.get(broker, 0) + change


def begin(placement: Placement, candidates: Sequence[Candidate], given: Given) -> Batch:
    """Begin a batch with this placement, in its own way if it has one; uses the bundles and the margin of `given`."""
    if isinstance(placement, Batching):
        return placement.batch(candidates, given.bundles)
    return OneByOne(placement, candidates, given)


def willing(
    candidates: Sequence[Candidate], given: Given
) -> tuple[Sequence[Candidate], tuple[RefusedCandidate, ...]] | NoPlace:
    """The eligible candidates and the refused ones; a broker that declined the bundle only if there is no other."""
    eligible: list[Candidate] = []
    refused: list[RefusedCandidate] = []
    for each in candidates:
        if each.draining:
            refused.append(RefusedCandidate(each.broker, "draining", "it gives its bundles away"))
        elif each.max_bundles is not None and count(each, given) >= each.max_bundles:
            detail = f"{count(each, given)} bundles of at most {each.max_bundles}"
            refused.append(RefusedCandidate(each.broker, "full", detail))
        else:
            eligible.append(each)
    if not refused and not eligible:
        return NoPlace("no broker is registered")
    if not eligible:
        rules = "; ".join(f"{each.broker.name}: {each.rule}, {each.detail}" for each in refused)
        return NoPlace(f"no broker may take it: {rules}", tuple(refused))
    return [each for each in eligible if each.broker != given.declined_by] or eligible, tuple(refused)


def count(candidate: Candidate, given: Given) -> int:
    """How many bundles it has, with those it was just given."""
    return candidate.bundles + given.bundles.get(candidate.broker, 0)
