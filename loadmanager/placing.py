"""Where a bundle goes: builds the candidates from what this broker knows, and asks the placement strategy.

Remembers what it has just given away, until the table shows it, so that a burst of lookups spreads evenly.
"""

from __future__ import annotations

from collections import Counter

from loadmanager.assignment.model import Given, NoPlace, candidates, declined_by
from loadmanager.assignment.placement import Placement
from loadmanager.membership import Membership
from loadmanager.registration import Peer
from loadmanager.views import Views
from statechannel.bundle import Bundle
from statechannel.record import Broker
from statechannel.table import OwnershipTable
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
        given = Given(self._pending(), declined_by(entry), preferred)
        outcome = self._placement.choose(entry.bundle, candidates(peers, self._views.brokers, self._table), given)
        if isinstance(outcome, NoPlace):
            self.last_refusal = outcome.reason
            return None
        self._given[entry.bundle] = (entry.revision, outcome.broker)
        return outcome.broker

    def _pending(self) -> Counter[Broker]:
        """What was given away and is not in the table yet."""
        for bundle, (revision, _) in list(self._given.items()):
            entry = self._table.get(bundle)
            if entry is None or entry.revision != revision:
                del self._given[bundle]
        return Counter(broker for _, broker in self._given.values())
