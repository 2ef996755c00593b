"""The queries of an ownership table: who owns what, what is in flight, how far replay has come.

Queries change nothing. `get`, `locate` and `held_by` may be called from other threads: they see each bundle as it was
before or after a record, never between. Of a record of many bundles `held_by` may see some changed, others not yet.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator
from zlib import crc32

from statechannel.law.agreement import Agreed
from statechannel.law.bundle import Bundle, Key
from statechannel.law.indices import Flight, Indices
from statechannel.law.moves import Move
from statechannel.law.namespace import Namespace
from statechannel.law.partition import ClusterIdentity, Lead, Partition
from statechannel.law.record import BrokerId, Token
from statechannel.law.transitions import IN_FLIGHT, State
from statechannel.law.verdict import Ownership

WALKED_AT_ONCE = 4_096


class Ownerships:
    """Who owns what, by the records replayed so far. `partitions` is fixed for the life of the log."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.cluster_identity: ClusterIdentity | None = None
        self._partitions = [Partition() for _ in range(partitions)]
        self._namespaces: dict[str, Namespace] = {}
        self._indices = Indices()
        self._brokers: dict[BrokerId, BrokerId] = {}

    def get(self, bundle: Bundle) -> Ownership | None:
        """The entry of a bundle, None if there is no such bundle (any more)."""
        namespace = self._namespaces.get(bundle.namespace)
        return namespace.get(bundle) if namespace is not None else None

    def namespace(self, name: str) -> Namespace | None:
        """The namespace, also if it was deleted; None if it never was."""
        return self._namespaces.get(name)

    def namespaces(self, tenant: str | None = None) -> list[str]:
        """Names of the existing namespaces, sorted; of one tenant if given."""
        prefix = "" if tenant is None else f"{tenant}/"
        return sorted(n.name for n in list(self._namespaces.values()) if n.exists and n.name.startswith(prefix))

    def locate(self, topic: Key) -> Ownership | None:
        """The entry of the bundle that a key falls into; None if its namespace does not exist."""
        namespace = self._namespaces.get(topic.namespace)
        return namespace.entry_at(topic.position) if namespace is not None and namespace.exists else None

    def held_by(self, broker: BrokerId, partitions: Collection[int] | None = None) -> tuple[Bundle, ...]:
        """Bundles whose holder is this incarnation, in any state; of the given partitions only, if given.

        Walks the namespaces in which it holds any: slow on a large table, see `walk`.
        """
        names = self._indices.namespaces_of(broker)
        chosen = [name for name in names if partitions is None or self.partition_of(name) in partitions]
        return tuple(entry.bundle for _, some in self.walk(chosen, {broker}) for entry in some)

    def namespaces_of(self, broker: BrokerId) -> tuple[str, ...]:
        """The namespaces in which this incarnation holds something; without walking the bundles."""
        return self._indices.namespaces_of(broker)

    def is_held(self, namespace: str) -> bool:
        """Whether any of its bundles has a holder (is not unassigned); without walking them."""
        return self._indices.is_held(namespace)

    def walk(self, names: Iterable[str], holders: Container[BrokerId]) -> Iterator[tuple[int, list[Ownership]]]:
        """What these holders have in some namespaces, in steps of at most WALKED_AT_ONCE bundles.

        Each step gives how many entries it looked at, and those that it found.
        """
        for name in names:
            namespace = self._namespaces.get(name)
            for begin in range(0, 0 if namespace is None else namespace.count, WALKED_AT_ONCE):
                assert namespace is not None
                some = namespace.touched(begin, begin + WALKED_AT_ONCE)
                yield len(some), [e for e in some if e.holder is not None and e.holder in holders]

    def count_held_in(self, namespace: str) -> int:
        """How many bundles of the namespace have a holder; without walking them."""
        return self._indices.count_held_in(namespace)

    def count_held_by(self, broker: BrokerId) -> int:
        return self._indices.count_of(broker)

    def count_held_soon(self, broker: BrokerId) -> int:
        """How many bundles it holds once all moves under way are done."""
        indices = self._indices
        return indices.count_of(broker) + indices.coming.get(broker, 0) - indices.leaving.get(broker, 0)

    def partitions_held_by(self, broker: BrokerId) -> set[int]:
        """The partitions in which this incarnation holds something; without walking the bundles."""
        return {self.partition_of(name) for name in self._indices.namespaces_of(broker)}

    def holders(self) -> tuple[BrokerId, ...]:
        """Every incarnation that holds something."""
        return self._indices.holders()

    def in_state(self, state: State) -> tuple[Bundle, ...]:
        """Bundles in one state. Assigned and unassigned ones are not indexed: for them this walks all bundles."""
        if state in IN_FLIGHT:
            return self._indices.in_state(state)
        return tuple(entry.bundle for entry in self if entry.state is state)

    def count_by_state(self) -> dict[State, int]:
        """How many bundles are in each state; without walking the bundles."""
        return dict(self._indices.states)

    def in_flight(self) -> Iterator[Ownership]:
        """Everything that somebody has to move on."""
        for flight in self.flights():
            entries = (self.get(bundle) for bundle in self.on(flight))
            yield from (entry for entry in entries if entry is not None and entry.state is flight.state)

    def flights(self) -> tuple[Flight, ...]:
        """Bundles in flight, grouped: one record that sent many bundles on their way makes few flights."""
        return self._indices.flights()

    def on(self, flight: Flight) -> tuple[Bundle, ...]:
        """The bundles still on a flight."""
        return self._indices.on(flight)

    def count_on(self, flight: Flight) -> int:
        """How many bundles are still on a flight."""
        return self._indices.count_on(flight)

    def __len__(self) -> int:
        return sum(self._indices.states.values())

    def __iter__(self) -> Iterator[Ownership]:
        for namespace in list(self._namespaces.values()):
            yield from namespace.entries

    def partition_of(self, namespace: str) -> int:
        """The partition that has all records of a namespace."""
        return crc32(namespace.encode()) % self.partitions

    def token(self, entry: Ownership) -> Token:
        """The fencing token of an ownership."""
        return self.token_at(entry.bundle, entry.token)

    def token_at(self, bundle: Bundle, offset: int) -> Token:
        """The fencing token of an ownership of this bundle that began at this offset."""
        generation = self.cluster_identity.generation if self.cluster_identity else 0
        return Token(generation, self.partition_of(bundle.namespace), offset)

    def next_offset(self, partition: int) -> int:
        """Everything below it has been replayed."""
        return self._partitions[partition].next_offset

    def lead(self, partition: int) -> Lead:
        """The partition's present epoch and leader."""
        return self._partitions[partition].lead

    def retired(self, partition: int) -> str | None:
        """Where the log goes on if this partition was closed for good, else None."""
        return self._partitions[partition].retired

    def agreed(self, partition: int) -> Agreed:
        """The partition's agreement."""
        return self._partitions[partition].agreed

    def highest_incarnation(self, name: str) -> int:
        """The highest number of this broker name that any record showed, 0 if none did."""
        return max(partition.incarnations.get(name, 0) for partition in self._partitions)

    def moves(self, bundle: Bundle) -> tuple[Move, ...]:
        """The bundle's planned moves as far as they are kept, newest last."""
        return self._partitions[self.partition_of(bundle.namespace)].moves.of(bundle)
