"""Where a bundle goes: builds the candidates from what this broker knows, and asks the placement strategy.

Remembers what it has just given away, until the table shows it, so that a burst of lookups spreads evenly. What it
knows of the others is brought up to date less often the more that costs: while thousands of bundles are in flight,
after every so many placements. Who is there, and the policies, always count at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby

from loadmanager.assignment.batching import Batch, begin
from loadmanager.assignment.model import Given, NoPlace, candidates, declined_by
from loadmanager.assignment.placement import Placement
from loadmanager.load.model import BrokerLoadData
from loadmanager.load.usage import usage, weights_of
from loadmanager.membership import Membership
from loadmanager.policies.claims import Claims
from loadmanager.policies.model import NO_POLICIES, Policies
from loadmanager.policies.permitting import Permitted, Permitting, holdings_of
from loadmanager.registration import Peer
from loadmanager.settings import Settings
from loadmanager.views import Views
from statechannel.bundle import Bundle
from statechannel.record import Action, Broker
from statechannel.table import OwnershipTable
from statechannel.transitions import IN_FLIGHT, State
from statechannel.verdict import Ownership

_DEFAULTS = Settings.model_construct()

_LOOKED_AT = 8
"""Bundles in flight, or given away and not shown yet, that are gone through again for each placement at most."""

_BATCHES = 16
"""Sets of candidates that are kept for many bundles: as many as there are kinds of bundles among those in a hurry."""


class Placing:
    """One broker's placement decisions. `last_refusal` says why a bundle found no place last."""

    def __init__(
        self,
        me: Broker,
        table: OwnershipTable,
        membership: Membership,
        views: Views,
        placement: Placement,
        policies: Callable[[], Policies] = lambda: NO_POLICIES,
        settings: Callable[[], Settings] = lambda: _DEFAULTS,
        held_back: Callable[[Bundle], str] = lambda _: "",
    ) -> None:
        self._me = me
        self._table = table
        self._membership = membership
        self._views = views
        self._placement = placement
        self._given: dict[Bundle, tuple[int, Broker]] = {}
        self._pending: Counter[Broker] = Counter()
        self._policies = policies
        self._settings = settings
        self._held_back = held_back
        self._claims = (NO_POLICIES, Claims(NO_POLICIES.bundles))
        self._permitting = Permitting(NO_POLICIES, (), (), settings(), lambda _: {})
        self._basis: list[object] = []
        self._seen: list[object] = []
        self._placed_since, self._cost = 0, 0
        self._batches: dict[int, tuple[Permitted, Batch]] = {}
        self.last_refusal = ""

    def place(self, entry: Ownership) -> Broker | None:
        """The owner for an unassigned bundle."""
        if self._waits(entry):
            return None
        return self._choose(entry, self._membership.eligible(), None)

    def place_elsewhere(self, entry: Ownership) -> Broker | None:
        """The new owner of a bundle that has to leave this broker."""
        others = [peer for peer in self._membership.eligible() if peer.broker.name != self._me.name]
        return self._choose(entry, others, None)

    def place_preferring(self, entry: Ownership, name: str | None) -> Broker | None:
        """As `place`, but the broker of that name if it is among the least loaded; never the present holder."""
        others = [peer for peer in self._membership.eligible() if peer.broker != entry.holder]
        return self._choose(entry, others, name)

    def place_many(self, entries: Sequence[Ownership], name: str | None) -> list[Broker | None]:
        """As `place_preferring` for one after the other, in order, but fast: for what a dead broker leaves behind."""
        owners: list[Broker | None] = []
        eligible = self._membership.eligible()
        for holder, some in groupby(entries, key=lambda entry: entry.holder):
            there = holder is not None and holder.name in self._membership.peers
            self._look([peer for peer in eligible if peer.broker != holder] if there else eligible)
            owners.extend(self._place_some(list(some), name))
        return [None if owner is None or self._waits(e) else owner for owner, e in zip(owners, entries, strict=True)]

    def why_nowhere(self, entry: Ownership) -> str:
        """Why an unassigned bundle has no place at present; empty if it has one, or would have."""
        if self._waits(entry):
            return self.last_refusal
        self._look(self._membership.eligible())
        return self._why_nowhere(entry)

    def _waits(self, entry: Ownership) -> bool:
        """Whether nobody is to be given the bundle for the time being: brokers died of it."""
        why = self._held_back(entry.bundle)
        self.last_refusal = why or self.last_refusal
        return bool(why)

    def forbids(self, bundle: Bundle, broker: Broker) -> str:
        """The hard rule that keeps the bundle off a live broker; empty if none does."""
        peers = [peer for peer in self._membership.peers.values() if peer.broker not in self._membership.condemned]
        self._look(sorted(peers, key=lambda peer: peer.broker))
        permitted = self._permitting.of(bundle)
        rule = next((each.rule for each in permitted.refused if each.broker == broker), "")
        return rule or self._permitting.closed(broker)

    def quarantine(self, bundle: Bundle) -> str:
        """Why nobody may be given the bundle until an administrator says otherwise; empty if it is not quarantined."""
        claimed = self._claims_of(self._policies()).on(bundle)
        return next((policy.quarantined for _, policy in claimed if policy.quarantined), "")

    def _claims_of(self, policies: Policies) -> Claims:
        if self._claims[0] is not policies:
            self._claims = (policies, Claims(policies.bundles))
        return self._claims[1]

    def _choose(self, entry: Ownership, peers: list[Peer], preferred: str | None) -> Broker | None:
        self._look(peers)
        declined = declined_by(entry) or _cancelled_by(entry)
        permitted = self._permitting.of(entry.bundle)
        given = Given(self._pending, declined, preferred)
        outcome = self._placement.choose(entry.bundle, permitted.candidates, given)
        if isinstance(outcome, NoPlace):
            self.last_refusal = permitted.explain(outcome.reason)
            return None
        self._give(entry, outcome.broker)
        return outcome.broker

    def _place_some(self, entries: Sequence[Ownership], preferred: str | None) -> list[Broker | None]:
        sittings = self._sittings(entries)
        owners: list[Broker | None] = []
        nowhere: Ownership | None = None
        for entry, known in zip(entries, sittings, strict=True):
            declined = declined_by(entry) or _cancelled_by(entry)
            owner = (
                known.choose(entry.bundle, declined, preferred)
                if known is not None
                else self._alone(entry, Given(self._pending, declined, preferred))
            )
            owners.append(owner)
            if owner is not None:
                self._give(entry, owner)
            elif nowhere is None:
                nowhere = entry
        if nowhere is not None:
            self.last_refusal = self._why_nowhere(nowhere) or self.last_refusal
        return owners

    def _alone(self, entry: Ownership, given: Given) -> Broker | None:
        candidates_now = self._permitting.of(entry.bundle).candidates
        outcome = self._placement.choose(entry.bundle, candidates_now, given)
        return None if isinstance(outcome, NoPlace) else outcome.broker

    def _why_nowhere(self, entry: Ownership) -> str:
        permitted = self._permitting.of(entry.bundle)
        outcome = self._placement.choose(entry.bundle, permitted.candidates, Given(self._pending))
        return permitted.explain(outcome.reason) if isinstance(outcome, NoPlace) else ""

    def _sittings(self, entries: Sequence[Ownership]) -> list[Batch | None]:
        """Those of bundles that share their candidates, who are told what they will be asked.

        None for the others: who may take a bundle of an anti-affinity group changes with each one that is given.
        """
        if len(self._batches) >= _BATCHES:
            self._batches.clear()
        permitted = [self._permitting.of(entry.bundle) for entry in entries]
        shared: dict[int, list[Bundle]] = {}
        for may, entry in zip(permitted, entries, strict=True):
            shared.setdefault(id(may), []).append(entry.bundle)
        sittings: dict[int, Batch] = {}
        for may in permitted:
            if len(shared[id(may)]) > 1 and id(may) not in sittings and len(sittings) < _BATCHES:
                sittings[id(may)] = self._batch(may)
                sittings[id(may)].foresee(shared[id(may)])
        return [sittings.get(id(may)) for may in permitted]

    def _batch(self, permitted: Permitted) -> Batch:
        """The sitting over these candidates, told of everything that is given until the next look."""
        found = self._batches.get(id(permitted))
        if found is None:
            found = permitted, begin(self._placement, permitted.candidates, Given(self._pending))
            self._batches[id(permitted)] = found
        return found[1]

    def _give(self, entry: Ownership, broker: Broker) -> None:
        """Count the bundle as given, once, until the table shows it."""
        earlier = self._given.get(entry.bundle)
        if earlier is not None:
            self._count(earlier[1], -1)
        self._given[entry.bundle] = (entry.revision, broker)
        self._count(broker, 1)
        self._permitting.gave(entry.bundle, broker)
        self._placed_since += 1

    def _count(self, broker: Broker, change: int) -> None:
        self._pending[broker] += change
        for _, batch in self._batches.values():
            batch.gave(broker, change)

    def _look(self, peers: list[Peer]) -> None:
        """Bring what is known up to date: once for all bundles that are placed at the same instant."""
        basis: list[object] = [*peers, self._policies(), self._settings()]
        applied = [self._table.next_offset(partition) for partition in range(self._table.partitions)]
        loads = [self._views.brokers.get(peer.broker.name) for peer in peers]
        seen: list[object] = [*applied, *loads]
        if _alike(basis, self._basis) and (_alike(seen, self._seen) or self._placed_since * _LOOKED_AT < self._cost):
            return
        self._basis, self._seen, self._placed_since = basis, seen, 0
        shown = {peer.broker.name: load for peer, load in zip(peers, loads, strict=True) if load is not None}
        known = candidates(peers, shown, self._table, self._fullness())
        policies = self._policies()
        self._permitting = Permitting(
            policies,
            peers,
            known,
            self._settings(),
            lambda name: holdings_of(self._table, name),
            self._claims_of(policies),
        )
        self._given = {bundle: given for bundle, given in self._given.items() if self._is_pending(bundle, given[0])}
        self._pending = Counter(broker for _, broker in self._given.values())
        self._batches.clear()
        self._cost = len(self._given) + sum(n for at, n in self._table.count_by_state().items() if at in IN_FLIGHT)
        for bundle, (_, broker) in self._given.items():
            self._permitting.gave(bundle, broker)

    def _fullness(self) -> Callable[[BrokerLoadData], float]:
        """How full a broker is, as settings and policies have it."""
        weights, brokers = weights_of(self._settings()), self._policies().brokers

        def fullness(load: BrokerLoadData) -> float:
            policy = brokers.get(load.broker.name)
            return usage(load, weights, policy.capacity if policy is not None else {})

        return fullness

    def _is_pending(self, bundle: Bundle, revision: int) -> bool:
        """Whether the table does not show yet what was given away."""
        entry = self._table.get(bundle)
        return entry is not None and entry.revision == revision


def _alike(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(map(_same, some, others))


def _same(one: object, other: object) -> bool:
    return one is other or (isinstance(one, int) and one == other)


def _cancelled_by(entry: Ownership) -> Broker | None:
    """Who just could not prepare for this bundle: the author of the `cancel` that left it where it was."""
    if entry.state is State.ASSIGNED and entry.action is Action.CANCEL and entry.by != entry.holder:
        return entry.by
    return None
