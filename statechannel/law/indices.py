"""Counts that the ownership table keeps while it replays, so that no query has to walk a million bundles.

Small on purpose: bundles at rest are only counted. Bundles in flight are few, and are listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from operator import attrgetter

import msgspec

from statechannel.errors import InvariantError
from statechannel.law.bundle import Bundle
from statechannel.law.namespace import Namespace
from statechannel.law.record import BrokerId
from statechannel.law.transitions import IN_FLIGHT, State
from statechannel.law.verdict import Ownership

_HOLDER, _STATE = attrgetter("holder"), attrgetter("state")

Indexed = dict[Bundle, None]
"""An ordered set: its order follows the records replayed, never the hash seed."""


MOVING = frozenset({State.TRANSFERRING, State.RELEASING, State.REVOKING})
"""The states in which a bundle already counts for its target and no longer for its holder."""


class Flight(msgspec.Struct, frozen=True, gc=False):
    """What bundles that one record sent on their way have in common. They are watched together."""

    partition: int
    revision: int
    state: State
    holder: BrokerId | None
    target: BrokerId | None


class Indices:
    """Counts by holder and namespace, and by state; the bundles in flight, by flight."""

    def __init__(self) -> None:
        self.states: dict[State, int] = dict.fromkeys(State, 0)
        self._held: dict[BrokerId, dict[str, int]] = {}
        self._own: set[BrokerId] = set()
        """The holders whose dictionary in `_held` no copy shares."""
        self._totals: dict[BrokerId, int] = {}
        self._in_flight: dict[Flight, Indexed] = {}
        self.coming: dict[BrokerId, int] = {}
        """How many bundles are on their way from another holder to each broker."""
        self.leaving: dict[BrokerId, int] = {}
        """How many bundles of each broker are on their way to another broker, or to none."""

    def copy(self) -> Indices:
        """An independent copy. A holder's counts are shared until one of the two changes them: it copies them first."""
        copy = Indices()
        copy.states = dict(self.states)
        copy._held, copy._totals = dict(self._held), dict(self._totals)
        self._own.clear()
        copy.coming, copy.leaving = dict(self.coming), dict(self.leaving)
        copy._in_flight = {flight: dict(bundles) for flight, bundles in self._in_flight.items()}
        return copy

    def count_of(self, broker: BrokerId) -> int:
        """How many bundles this incarnation holds."""
        return self._totals.get(broker, 0)

    def namespaces_of(self, broker: BrokerId) -> tuple[str, ...]:
        """The namespaces in which this incarnation holds something."""
        return tuple(self._held.get(broker, ()))

    def is_held(self, namespace: str) -> bool:
        """Whether any of its bundles has a holder."""
        return any(namespace in held for held in self._held.values())

    def count_held_in(self, namespace: str) -> int:
        """How many of its bundles have a holder."""
        return sum(held.get(namespace, 0) for held in tuple(self._held.values()))

    def holders(self) -> tuple[BrokerId, ...]:
        """Every incarnation that holds something."""
        return tuple(self._held)

    def in_state(self, state: State) -> tuple[Bundle, ...]:
        """Bundles in one of the states in flight."""
        return tuple(bundle for flight in self.flights() if flight.state is state for bundle in self.on(flight))

    def flights(self) -> tuple[Flight, ...]:
        """All flights, the oldest first."""
        return tuple(self._in_flight)

    def on(self, flight: Flight) -> tuple[Bundle, ...]:
        """The bundles still on a flight."""
        return tuple(self._in_flight.get(flight, ()))

    def count_on(self, flight: Flight) -> int:
        """How many bundles are still on a flight."""
        return len(self._in_flight.get(flight, ()))

    def move(self, before: Ownership | None, after: Ownership | None, partition: int) -> None:
        """Replace a bundle's entry by another; None where the bundle did not or does not exist."""
        if before is not None:
            self._leave(before, partition)
        if after is not None:
            self._enter(after, partition)
        if before is not None and after is not None and before.holder == after.holder:
            return  # the usual case; `before` and `after` are of the same bundle
        if after is not None:
            self._count(after, 1)  # before the -1: another thread must not find a holder with nothing
        if before is not None:
            self._count(before, -1)

    def rest(self, more: int) -> None:
        """Count `more` bundles more without a holder; may be negative."""
        self.states[State.UNASSIGNED] += more

    def learn(self, namespace: Namespace, partition: int) -> None:
        """Take in all of a namespace's bundles."""
        if self._count_all(namespace, 1):
            for entry in namespace.touched():
                if entry.state in IN_FLIGHT:
                    self._take_off(entry, partition)

    def replacing(self, old: Iterable[Namespace], new: Iterable[Namespace], partition: int) -> Iterator[None]:
        """Replace all bundles of `old` by those of `new`, in steps; the two may overlap.

        Between two steps the counts are wrong.
        """
        for holder in tuple(self._held):
            self._owned(holder)
            yield
        for namespace in old:
            for entry in namespace.touched():
                if entry.state in IN_FLIGHT:
                    self._land(entry, partition)
            self._count_all(namespace, -1)
            yield
        for namespace in new:
            self.learn(namespace, partition)
            yield

    def check(self, recounted: Indices) -> None:
        """Raise InvariantError unless both are equal."""
        if (self._held, self._totals) != (recounted._held, recounted._totals):
            raise InvariantError("the index by holder is wrong")
        if (self.states, self._in_flight) != (recounted.states, recounted._in_flight):
            raise InvariantError("the index by state is wrong")
        if (self.coming, self.leaving) != (recounted.coming, recounted.leaving):
            raise InvariantError("the index of what comes and leaves is wrong")

    def _enter(self, entry: Ownership, partition: int) -> None:
        self.states[entry.state] += 1
        if entry.state in IN_FLIGHT:
            self._take_off(entry, partition)

    def _leave(self, entry: Ownership, partition: int) -> None:
        self.states[entry.state] -= 1
        if entry.state in IN_FLIGHT:
            self._land(entry, partition)

    def _take_off(self, entry: Ownership, partition: int) -> None:
        flight = Flight(partition, entry.revision, entry.state, entry.holder, entry.target)
        bundles = self._in_flight.get(flight)
        if bundles is None:
            bundles = self._in_flight[flight] = {}
        bundles[entry.bundle] = None
        self._moves(entry, 1)

    def _land(self, entry: Ownership, partition: int) -> None:
        flight = Flight(partition, entry.revision, entry.state, entry.holder, entry.target)
        bundles = self._in_flight[flight]
        del bundles[entry.bundle]
        if not bundles:
            del self._in_flight[flight]
        self._moves(entry, -1)

    def _moves(self, entry: Ownership, change: int) -> None:
        if entry.state in MOVING:
            _add_to(self.coming, entry.target, change)
            _add_to(self.leaving, entry.holder, change)

    def _owned(self, holder: BrokerId) -> dict[str, int]:
        """The holder's counts, in a dictionary that no copy shares."""
        held = self._held.get(holder, {})
        if holder not in self._own:
            held = self._held[holder] = dict(held)
            self._own.add(holder)
        return held

    def _count(self, entry: Ownership, change: int) -> None:
        if entry.holder is not None:
            self._add(entry.holder, entry.bundle.namespace, change)

    def _count_all(self, namespace: Namespace, sign: int) -> bool:
        """Count all bundles of a namespace; returns whether any of them is in flight."""
        entries = namespace.touched()
        for holder, count in Counter(map(_HOLDER, entries)).items():
            if holder is not None:
                self._add(holder, namespace.name, sign * count)
        states = Counter(map(_STATE, entries))
        for state, count in states.items():
            self.states[state] += sign * count
        self.rest(sign * (namespace.count - len(entries)))
        return not IN_FLIGHT.isdisjoint(states)

    def _add(self, holder: BrokerId, namespace: str, change: int) -> None:
        total = self._totals[holder] = self._totals.get(holder, 0) + change
        if not total:
            del self._totals[holder]
        held = self._owned(holder)
        count = held.get(namespace, 0) + change
        if count:
            held[namespace] = count
            return
        held.pop(namespace, None)
        if not held:
            del self._held[holder]
            self._own.discard(holder)


def _add_to(counts: dict[BrokerId, int], broker: BrokerId | None, change: int) -> None:
    if broker is not None:
        count = counts.get(broker, 0) + change
        if count:
            counts[broker] = count
        else:
            del counts[broker]
