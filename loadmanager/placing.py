"""Where a bundle goes: builds the candidates from what this broker knows, and asks the placement strategy.

Remembers what it has just given away, until the table shows it, so that a burst of lookups spreads evenly.
"""

from __future__ import annotations

from collections import Counter

from loadmanager.assignment.model import Candidate, Given, NoPlace, candidates, declined_by
from loadmanager.assignment.placement import Placement
from loadmanager.membership import Membership
from loadmanager.registration import Peer
from loadmanager.views import Views
from statechannel.bundle import Bundle
from statechannel.record import Action, Broker
from statechannel.table import OwnershipTable
from statechannel.transitions import State
from statechannel.verdict import Ownership


class Placing:
    """One broker's placement decisions. `last_refusal` says why a bundle found no place last."""

    def __init__(
        self, me: Broker, table: OwnershipTable, membership: Membership, views: Views, placement: Placement
    ) -> None:
        self._me = me
        self._table = table
        self._membership = membership
        self._views = views
        self._placement = placement
        self._given: dict[Bundle, tuple[int, Broker]] = {}
        self._pending: Counter[Broker] = Counter()
        self._candidates: tuple[Candidate, ...] = ()
        self._basis: list[object] = []
        self.last_refusal = ""

    def place(self, entry: Ownership) -> Broker | None:
        """The owner for an unassigned bundle."""
        return self._choose(entry, self._membership.eligible(), None)

    def place_elsewhere(self, entry: Ownership) -> Broker | None:
        """The new owner of a bundle that has to leave this broker."""
        others = [peer for peer in self._membership.eligible() if peer.broker.name != self._me.name]
        return self._choose(entry, others, None)

    def place_preferring(self, entry: Ownership, name: str | None) -> Broker | None:
        """As `place`, but the broker of that name if it is among the least loaded; never the present holder."""
        others = [peer for peer in self._membership.eligible() if peer.broker != entry.holder]
        return self._choose(entry, others, name)

    def _choose(self, entry: Ownership, peers: list[Peer], preferred: str | None) -> Broker | None:
        self._look(peers)
        declined = declined_by(entry) or _cancelled_by(entry)
        outcome = self._placement.choose(entry.bundle, self._candidates, Given(self._pending, declined, preferred))
        if isinstance(outcome, NoPlace):
            self.last_refusal = outcome.reason
            return None
        earlier = self._given.get(entry.bundle)
        if earlier is not None:
            self._pending[earlier[1]] -= 1
        self._given[entry.bundle] = (entry.revision, outcome.broker)
        self._pending[outcome.broker] += 1
        return outcome.broker

    def _look(self, peers: list[Peer]) -> None:
        """Bring `_candidates` and `_pending` up to date: once for all bundles that are placed at the same instant."""
        applied = [self._table.next_offset(partition) for partition in range(self._table.partitions)]
        loads = [self._views.brokers.get(peer.broker.name) for peer in peers]
        basis: list[object] = [*applied, *peers, *loads]
        if len(basis) == len(self._basis) and all(map(_same, basis, self._basis)):
            return
        self._basis = basis
        shown = {peer.broker.name: load for peer, load in zip(peers, loads, strict=True) if load is not None}
        self._candidates = candidates(peers, shown, self._table)
        self._given = {bundle: given for bundle, given in self._given.items() if self._is_pending(bundle, given[0])}
        self._pending = Counter(broker for _, broker in self._given.values())

    def _is_pending(self, bundle: Bundle, revision: int) -> bool:
        """Whether the table does not show yet what was given away."""
        entry = self._table.get(bundle)
        return entry is not None and entry.revision == revision


def _same(one: object, other: object) -> bool:
    return one is other or (isinstance(one, int) and one == other)


def _cancelled_by(entry: Ownership) -> Broker | None:
    """Who just could not prepare for this bundle: the author of the `cancel` that left it where it was."""
    if entry.state is State.ASSIGNED and entry.action is Action.CANCEL and entry.by != entry.holder:
        return entry.by
    return None
