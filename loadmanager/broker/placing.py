"""Chooses owners for bundles: builds the candidates from what this broker knows, and asks the placement strategy.

Remembers placements until the table shows them, so that a burst of lookups spreads evenly. The costlier a refresh of
the candidates, the rarer it is: with thousands of bundles in flight, it comes after a number of placements. Changes of
membership and policies count at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby, islice
from zlib import crc32

import msgspec

from loadmanager.cluster.fitness import Fitness
from loadmanager.cluster.membership import Membership
from loadmanager.cluster.views import Views
from loadmanager.leader.quarantine.evidence import ROWS_KEPT, drawn
from loadmanager.model.load import BrokerLoadData, usage, weights_of
from loadmanager.model.policies.effective import Claims, intersects
from loadmanager.model.policies.model import NO_POLICIES, BrokerPolicy, Policies
from loadmanager.model.registration import Peer
from loadmanager.settings import Settings
from loadmanager.strategies.placement.permitting import Permitted, Permitting, has_room, holdings_of
from loadmanager.strategies.placement.placement import (
    Batch,
    Given,
    Measure,
    NoPlace,
    Placement,
    Roster,
    begin,
    declined_by,
)
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership

_DEFAULTS = Settings.model_construct()

_LOOKED_AT = 8
"""The cost of refreshes for each placement: brokers and pending bundles walked, at most."""

MANY = 100
"""With this many brokers a refresh takes a millisecond, and ends the turn of the loop."""

PENDING_AT_ONCE = 250
"""Pending bundles that are looked up in the table in one turn."""

_BATCHES = 16
_KEPT_APART = 50
"""If more bundles than this are drawn, each is drawn from all candidates."""
"""Sets of candidates that are kept, each shared by many bundles."""


class Placing:
    """One broker's placement decisions."""

    def __init__(
        self,
        me: BrokerId,
        table: OwnershipTable,
        membership: Membership,
        views: Views,
        placement: Placement,
        policies: Callable[[], Policies] = lambda: NO_POLICIES,
        settings: Callable[[], Settings] = lambda: _DEFAULTS,
        is_drawn: Callable[[Bundle], bool] = lambda _: False,
        drawn_bundles: Callable[[], Collection[Bundle]] = tuple,
        fitness: Fitness | None = None,
    ) -> None:
        self._me = me
        self._table = table
        self._membership = membership
        self._views = views
        self._placement = placement
        self._given: dict[Bundle, tuple[int, BrokerId]] = {}
        self._pending: Counter[BrokerId] = Counter()
        self._policies = policies
        self._settings = settings
        self._is_drawn = is_drawn
        self._drawn_bundles = drawn_bundles
        self._fitness = fitness or Fitness(lambda: 0.0)
        self._open: tuple[Sequence[Peer], frozenset[BrokerId], Sequence[Peer]] = [], frozenset(), []
        self._drawn_from: dict[Bundle, tuple[int, int]] = {}
        """The number of candidates of each bundle that was drawn, with the revision of its entry."""
        self._claims = (NO_POLICIES, Claims(NO_POLICIES.bundles))
        self._permitting = Permitting(NO_POLICIES, (), (), settings(), lambda _: {})
        self._peers: Sequence[Peer] = []
        self._basis: tuple[object, ...] = ()
        self._seen: list[object] = []
        self._roster = Roster()
        self._measured_by: tuple[Settings, Mapping[str, BrokerPolicy]] = settings(), NO_POLICIES.brokers
        self._fullness = _fullness(*self._measured_by)
        self._placed_since, self._cost = 0, 0
        self._batches: dict[int, tuple[Permitted, Batch]] = {}

    def place_all(self, entries: Sequence[Ownership]) -> list[BrokerId | None]:
        """The owners of unassigned bundles, in their order; None for one that no broker may take."""
        self._look(self._eligible())
        return self._place_some([(entry, None) for entry in entries])

    def place_all_elsewhere(self, entries: Sequence[Ownership]) -> list[BrokerId | None]:
        """The new owners of bundles that must leave this broker, in their order."""
        self.look_elsewhere()
        return self._place_some([(entry, None) for entry in entries])

    def place_many(self, entries: Sequence[Ownership], names: Sequence[str | None]) -> list[BrokerId | None]:
        """The new owners of orphans, in their order, never the present holder.

        `names`: brokers to prefer, each if it is among the least loaded.
        """
        owners: list[BrokerId | None] = []
        for holder, some in groupby(zip(entries, names, strict=True), key=lambda pair: self._living(pair[0].holder)):
            self._look(self._others(holder))
            owners.extend(self._place_some(list(some)))
        return owners

    def look(self) -> bool:
        """Refresh the candidates. Returns True if that took long enough to end the turn of the loop."""
        return self._look(self._eligible())

    def look_elsewhere(self) -> bool:
        """As `look`, for all brokers but this one."""
        return self._look([peer for peer in self._eligible() if peer.broker.name != self._me.name])

    def _eligible(self) -> Sequence[Peer]:
        """Brokers that may be given bundles, without unfit ones unless all are; the same list until that changes."""
        eligible, closed = self._membership.eligible(), self._fitness.closed()
        if not closed:
            return eligible
        if self._open[0] is not eligible or self._open[1] is not closed:
            self._open = eligible, closed, self._fitness.open_of(eligible)
        return self._open[2]

    def _others(self, holder: BrokerId | None) -> Sequence[Peer]:
        """The brokers that may get a bundle of this holder."""
        eligible, living = self._eligible(), self._living(holder)
        return eligible if living is None else [peer for peer in eligible if peer.broker != living]

    def _living(self, holder: BrokerId | None) -> BrokerId | None:
        """The holder if it is eligible, else None: only an eligible holder must be left out."""
        peer = self._membership.peers.get(holder.name) if holder is not None else None
        return holder if peer is not None and peer.broker == holder and self._membership.is_eligible(peer) else None

    def basis(self) -> object:
        """A value that is equal as long as eligible brokers and rules are the same."""
        return self._membership.revision, self._policies().revision, self._settings()

    def cause(self, entry: Ownership) -> str:
        """The `cause` of a record that gives the bundle to the broker that was chosen last; empty unless drawn."""
        revision, candidates = self._drawn_from.get(entry.bundle, (-1, 0))
        return drawn(candidates) if revision == entry.revision else ""

    def draw_unlocked(self, entry: Ownership) -> tuple[BrokerId, int] | None:
        """A broker for a trial of a locked bundle, drawn at random, and from how many; None if none may take it."""
        peers = self._eligible()
        loads = self._views.brokers.several([peer.broker.name for peer in peers])
        permitting = self._permitting_of(peers, loads, _without_lock(self._policies(), entry.bundle))
        return self._drawn_of(entry, permitting, self._drawn_bundles())

    def _drawn_of(
        self, entry: Ownership, permitting: Permitting, others: Collection[Bundle]
    ) -> tuple[BrokerId, int] | None:
        """Draw a broker for a bundle with which brokers were lost, apart from the others of this kind if possible."""
        open_to = [each for each in permitting.of(entry.bundle).candidates if not each.draining and has_room(each)]
        if len(others) <= _KEPT_APART:
            holders = {held.holder for each in others if each != entry.bundle and (held := self._table.get(each))}
            open_to = [each for each in open_to if each.broker not in holders] or open_to
        if not open_to:
            return None
        chosen = open_to[crc32(f"{entry.bundle} {entry.revision}".encode()) % len(open_to)]
        return chosen.broker, len(open_to)

    def why_nowhere(self, entry: Ownership) -> str:
        """Why an unassigned bundle can have no owner at present; empty if it can."""
        self._look(self._eligible())
        permitted = self._permitting.of(entry.bundle)
        outcome = self._placement.choose(entry.bundle, permitted.candidates, Given(self._pending))
        if not isinstance(outcome, NoPlace):
            return ""
        # a placement that gets no candidates does not know the brokers that are none
        return permitted.explain(outcome.reason if self._permitting.candidates else self._membership.why_none())

    def forbids(self, bundle: Bundle, broker: BrokerId) -> str:
        """The hard rule that keeps the bundle off a live broker; empty if none does."""
        peers = [peer for peer in self._membership.peers.values() if peer.broker not in self._membership.suspected]
        self._look(sorted(peers, key=lambda peer: peer.broker))
        permitted = self._permitting.of(bundle)
        rule = next((each.rule for each in permitted.refused if each.broker == broker), "")
        return rule or self._permitting.closed(broker)

    def quarantine(self, bundle: Bundle) -> str:
        """Why the bundle is quarantined until an administrator releases it; empty if it is not."""
        claimed = self._claims_of(self._policies()).on(bundle)
        return next((policy.quarantined for _, policy in claimed if policy.quarantined), "")

    def _claims_of(self, policies: Policies) -> Claims:
        if self._claims[0] is not policies:
            self._claims = (policies, Claims(policies.bundles))
        return self._claims[1]

    def _place_some(self, asked: Sequence[tuple[Ownership, str | None]]) -> list[BrokerId | None]:
        """The owner of each bundle; each comes with the name of a preferred broker."""
        batches = self._batches_of([entry for entry, _ in asked])
        owners: list[BrokerId | None] = []
        tried: BrokerId | None = None
        others: Collection[Bundle] | None = None
        if len(self._drawn_from) > ROWS_KEPT:
            self._drawn_from.clear()
        for (entry, preferred), known in zip(asked, batches, strict=True):
            declined = declined_by(entry) or _cancelled_by(entry)
            self._drawn_from.pop(entry.bundle, None)
            if self._is_drawn(entry.bundle):
                others = self._drawn_bundles() if others is None else others
                owner, candidates = self._drawn_of(entry, self._permitting, others) or (None, 0)
                self._drawn_from[entry.bundle] = entry.revision, candidates
            else:
                owner = self._chosen(entry, known, declined, preferred)
                if owner is not None and owner == tried:  # one bundle is its trial
                    owner = self._chosen(entry, known, owner, preferred)
                elif owner is not None and self._fitness.begins_trial(owner):
                    tried = owner
            owners.append(owner)
            if owner is not None:
                self._give(entry, owner)
        return owners

    def _chosen(
        self, entry: Ownership, known: Batch | None, declined: BrokerId | None, preferred: str | None
    ) -> BrokerId | None:
        if known is not None:
            return known.choose(entry.bundle, declined, preferred)
        candidates_now = self._permitting.of(entry.bundle).candidates
        outcome = self._placement.choose(entry.bundle, candidates_now, Given(self._pending, declined, preferred))
        return None if isinstance(outcome, NoPlace) else outcome.broker

    def _batches_of(self, entries: Sequence[Ownership]) -> list[Batch | None]:
        """The batch of each bundle that shares its candidates with others; each batch is told its bundles beforehand.

        None for the others: in an anti-affinity group the candidates change with each placement.
        """
        if len(self._batches) >= _BATCHES:
            self._batches.clear()
        permitted = [self._permitting.of(entry.bundle) for entry in entries]
        shared: dict[int, list[Bundle]] = {}
        for may, entry in zip(permitted, entries, strict=True):
            shared.setdefault(id(may), []).append(entry.bundle)
        batches: dict[int, Batch] = {}
        for may in permitted:
            worth_it = len(shared[id(may)]) > 1 or id(may) in self._batches
            if worth_it and id(may) not in batches and len(batches) < _BATCHES:
                batches[id(may)] = self._batch(may)
                batches[id(may)].foresee(shared[id(may)])
        return [batches.get(id(may)) for may in permitted]

    def _batch(self, permitted: Permitted) -> Batch:
        """The batch over these candidates; it is told of every placement until the next refresh."""
        found = self._batches.get(id(permitted))
        if found is None:
            found = permitted, begin(self._placement, permitted.candidates, Given(self._pending))
            self._batches[id(permitted)] = found
        return found[1]

    def _give(self, entry: Ownership, broker: BrokerId) -> None:
        """Count the bundle as placed, once, until the table shows it."""
        earlier = self._given.get(entry.bundle)
        if earlier is not None:
            self._count(earlier[1], -1)
        self._given[entry.bundle] = (entry.revision, broker)
        self._count(broker, 1)
        self._permitting.gave(entry.bundle, broker)
        self._placed_since += 1

    def _count(self, broker: BrokerId, change: int) -> None:
        self._pending[broker] += change
        for _, batch in self._batches.values():
            batch.gave(broker, change)

    def _look(self, peers: Sequence[Peer]) -> bool:
        """Refresh the candidates, once for all bundles that are placed together.

        Returns whether that took long enough to end the turn of the loop.
        """
        basis = (self._policies(), self._settings())
        same = (self._peers is peers or _alike(peers, self._peers)) and _alike(basis, self._basis)
        if same and self._placed_since * _LOOKED_AT < self._cost:
            return False
        applied = [self._table.next_offset(partition) for partition in range(self._table.partitions)]
        loads = self._views.brokers.several([peer.broker.name for peer in peers])
        seen: list[object] = [*applied, *loads]
        if same and _alike(seen, self._seen):
            return False
        self._peers = peers
        self._basis, self._seen, self._placed_since = basis, seen, 0
        policies = self._policies()
        self._permitting = self._permitting_of(peers, loads, policies, self._claims_of(policies))
        self._batches.clear()
        self._forget_shown()
        self._cost = min(len(self._given), PENDING_AT_ONCE) + len(peers)
        if self._permitting.groups:
            for bundle, (_, broker) in self._given.items():
                self._permitting.gave(bundle, broker)
        return len(peers) >= MANY

    def _forget_shown(self) -> None:
        """Stop counting placements that the table shows, the oldest first, at most PENDING_AT_ONCE in one turn.

        The next refreshes look at the others; the table hardly shows the newest yet.
        """
        for bundle in list(islice(self._given, PENDING_AT_ONCE)):
            revision, broker = given = self._given.pop(bundle)
            if self._is_pending(bundle, revision):
                self._given[bundle] = given
            else:
                self._pending[broker] -= 1

    def _permitting_of(
        self,
        peers: Sequence[Peer],
        loads: Sequence[BrokerLoadData | None],
        policies: Policies,
        claims: Claims | None = None,
    ) -> Permitting:
        shown = {peer.broker.name: load for peer, load in zip(peers, loads, strict=True) if load is not None}
        known = self._roster.candidates(peers, shown, self._table, self._measure())

        def holdings(name: str) -> Mapping[BrokerId, int]:
            return holdings_of(self._table, name)

        return Permitting(policies, peers, known, self._settings(), holdings, claims)

    def _measure(self) -> Measure:
        """A function for the usage of a broker; the same object until settings or policies change."""
        rules = self._settings(), self._policies().brokers
        if rules != self._measured_by:
            self._measured_by, self._fullness = rules, _fullness(*rules)
        return self._fullness

    def _is_pending(self, bundle: Bundle, revision: int) -> bool:
        """Whether the table does not show a placement yet."""
        entry = self._table.get(bundle)
        return entry is not None and entry.revision == revision


def _fullness(settings: Settings, brokers: Mapping[str, BrokerPolicy]) -> Measure:
    weights = weights_of(settings)

    def fullness(load: BrokerLoadData) -> float:
        policy = brokers.get(load.broker.name)
        return usage(load, weights, policy.capacity if policy is not None else {})

    return fullness


def _without_lock(policies: Policies, bundle: Bundle) -> Policies:
    """The policies without any quarantine that covers the bundle."""
    freed = {
        each: msgspec.structs.replace(policy, quarantined="") if intersects(each, bundle) else policy
        for each, policy in policies.bundles.items()
    }
    return msgspec.structs.replace(policies, bundles=freed)


def _alike(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(map(_same, some, others))


def _same(one: object, other: object) -> bool:
    return one is other or (isinstance(one, int) and one == other)


def _cancelled_by(entry: Ownership) -> BrokerId | None:
    """The broker that just could not prepare for this bundle: the author of the `cancel` that left it at its owner."""
    if entry.state is State.ASSIGNED and entry.action is Action.CANCEL and entry.by != entry.holder:
        return entry.by
    return None
