"""What the ownership table counts while it replays, so that nobody has to walk a million bundles to know it.

Kept small on purpose: for bundles at rest there are only counts. Bundles in flight, of which there are few, are listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from statechannel.bundle import Bundle
from statechannel.errors import InvariantError
from statechannel.namespace import Namespace
from statechannel.record import Broker
from statechannel.transitions import IN_FLIGHT, State
from statechannel.verdict import Ownership

Indexed = dict[Bundle, None]
"""An ordered set: its order follows the records replayed, never the hash seed."""


class Indices:
    """Counts by holder and namespace, and by state; lists of the bundles in flight."""

    def __init__(self) -> None:
        self.states: dict[State, int] = dict.fromkeys(State, 0)
        self._held: dict[Broker, dict[str, int]] = {}
        self._totals: dict[Broker, int] = {}
        self._in_flight: dict[State, Indexed] = {state: {} for state in State if state in IN_FLIGHT}

    def copy(self) -> Indices:
        """The same, and its own from now on."""
        copy = Indices()
        copy.states = dict(self.states)
        copy._held = {holder: dict(held) for holder, held in self._held.items()}
        copy._totals = dict(self._totals)
        copy._in_flight = {state: dict(bundles) for state, bundles in self._in_flight.items()}
        return copy

    def count_of(self, broker: Broker) -> int:
        """How many bundles this incarnation holds."""
        return self._totals.get(broker, 0)

    def namespaces_of(self, broker: Broker) -> tuple[str, ...]:
        """The namespaces in which this incarnation holds something."""
        return tuple(self._held.get(broker, ()))

    def holders(self) -> tuple[Broker, ...]:
        """Every incarnation that holds something."""
        return tuple(self._held)

    def in_state(self, state: State) -> tuple[Bundle, ...]:
        """Bundles in one of the states in flight."""
        return tuple(self._in_flight[state])

    def move(self, before: Ownership | None, after: Ownership | None) -> None:
        """A bundle was in one entry and is in another; None where it did not or does not exist."""
        if before is not None:
            self._leave(before)
        if after is not None:
            self._enter(after)
            self._count(after, 1)  # before it is taken back: another thread must not find a holder with nothing
        if before is not None:
            self._count(before, -1)

    def learn(self, namespace: Namespace) -> None:
        """Take in all of a namespace's bundles."""
        self._list(namespace)
        self._count_all(namespace, 1)

    def replace(self, old: Iterable[Namespace], new: Iterable[Namespace]) -> None:
        """Let go of all bundles of some namespaces and take in those of others, which may be the same ones."""
        for namespace in old:
            for entry in namespace.entries:
                if entry.state in self._in_flight:
                    del self._in_flight[entry.state][entry.bundle]
        for namespace in new:
            self.learn(namespace)
        for namespace in old:  # last: another thread must not find a holder with nothing
            self._count_all(namespace, -1)

    def check(self, recounted: Indices) -> None:
        """Raise InvariantError unless both say the same."""
        if (self._held, self._totals) != (recounted._held, recounted._totals):
            raise InvariantError("the index by holder is wrong")
        if (self.states, self._in_flight) != (recounted.states, recounted._in_flight):
            raise InvariantError("the index by state is wrong")

    def _enter(self, entry: Ownership) -> None:
        self.states[entry.state] += 1
        if entry.state in self._in_flight:
            self._in_flight[entry.state][entry.bundle] = None

    def _leave(self, entry: Ownership) -> None:
        self.states[entry.state] -= 1
        if entry.state in self._in_flight:
            del self._in_flight[entry.state][entry.bundle]

    def _count(self, entry: Ownership, change: int) -> None:
        if entry.holder is not None:
            self._add(entry.holder, entry.bundle.namespace, change)

    def _list(self, namespace: Namespace) -> None:
        for entry in namespace.entries:
            if entry.state in self._in_flight:
                self._in_flight[entry.state][entry.bundle] = None

    def _count_all(self, namespace: Namespace, sign: int) -> None:
        entries = namespace.entries
        for holder, count in Counter(entry.holder for entry in entries).items():
            if holder is not None:
                self._add(holder, namespace.name, sign * count)
        for state, count in Counter(entry.state for entry in entries).items():
            self.states[state] += sign * count

    def _add(self, holder: Broker, namespace: str, change: int) -> None:
        total = self._totals[holder] = self._totals.get(holder, 0) + change
        if not total:
            del self._totals[holder]
        held = self._held.setdefault(holder, {})
        count = held.get(namespace, 0) + change
        if count:
            held[namespace] = count
            return
        held.pop(namespace, None)
        if not held:
            del self._held[holder]
