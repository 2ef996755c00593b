"""Where a bundle goes: builds the candidates from what this broker knows, and asks the placement strategy.

Remembers what it has just given away, until the table shows it, so that a burst of lookups spreads evenly.
"""

from __future__ import annotations

from collections.abc import Callable

from loadmanager.membership import Membership
from loadmanager.settings import Settings
from loadmanager.views import Views
from statechannel.record import Broker
from statechannel.service import Channel
from statechannel.verdict import Ownership


class Placing:
    """One broker's placement decisions."""

    def __init__(
        self,
        me: Broker,
        channel: Channel,
        membership: Membership,
        views: Views,
        settings: Settings,
        clock_s: Callable[[], float],
    ) -> None:
        self._me = me
        self._channel = channel
        self._membership = membership

    def place(self, entry: Ownership) -> Broker | None:
        """The owner for an unassigned bundle."""
        eligible = [p.broker for p in self._membership.eligible()]
        return min(eligible, key=self._channel.table.count_held_by, default=None)

    def place_elsewhere(self, entry: Ownership) -> Broker | None:
        """The new owner of a bundle that must leave its holder."""
        eligible = [p.broker for p in self._membership.eligible() if p.broker.name != self._me.name]
        return min(eligible, key=self._channel.table.count_held_by, default=None)

    def place_preferring(self, entry: Ownership, name: str | None) -> Broker | None:
        """As `place`, but the broker of that name if it is eligible."""
        for peer in self._membership.eligible():
            if peer.broker.name == name:
                return peer.broker
        return self.place(entry)
