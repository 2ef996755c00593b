"""What one consumer has of each of its partitions: records in progress, what may be committed, what is to be given up.

No thread of its own; the caller holds a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from loadmanager.consumers.backlog.in_flight import InFlight
from loadmanager.consumers.coordinator.records import Partition


class Place(NamedTuple):
    """Where the group goes on in a partition, and the first offset that was not taken."""

    commit: int
    pull: int


NOT_KNOWN = Place(-1, -1)


class Progress:
    """Records are taken, done, and committed; none is taken of a partition that leaves, until it is drained."""

    def __init__(self) -> None:
        self._in_flight: dict[Partition, InFlight | None] = {}
        """None until the first record tells where the partition begins."""
        self._committed: dict[Partition, Place] = {}
        self._leaving: set[Partition] = set()

    @property
    def leaving(self) -> frozenset[Partition]:
        return frozenset(self._leaving)

    def __contains__(self, partition: Partition) -> bool:
        """Whether records of the partition may be taken."""
        return partition in self._in_flight and partition not in self._leaving

    def begin(self, partitions: Iterable[Partition]) -> None:
        """These are ours from now on."""
        self._in_flight.update(dict.fromkeys(partitions))

    def end(self, partitions: Iterable[Partition]) -> None:
        """These are to be given up: no more of their records is taken."""
        self._leaving.update(each for each in partitions if each in self._in_flight)

    def forget(self, partitions: Iterable[Partition]) -> None:
        """These are not ours any more, whatever is in progress."""
        for partition in partitions:
            self._in_flight.pop(partition, None)
            self._committed.pop(partition, None)
            self._leaving.discard(partition)

    def take(self, partition: Partition, offset: int) -> bool:
        """Record that a record goes to the service. Returns True if it may."""
        if partition not in self:
            return False
        in_flight = self._in_flight[partition]
        if in_flight is None or offset < in_flight.pull:  # the second after a seek
            in_flight = self._in_flight[partition] = InFlight(offset)
            self._committed.setdefault(partition, Place(offset, offset))
        in_flight.pulled((offset,))
        return True

    def reached(self, partition: Partition, end: int) -> None:
        """No more records come before this offset: the last ones mark transactions, or were aborted."""
        if partition in self:
            in_flight = self._in_flight[partition]
            if in_flight is None:
                in_flight = self._in_flight[partition] = InFlight(end)
                self._committed.setdefault(partition, NOT_KNOWN)
            in_flight.pulled((), end)

    def done(self, partition: Partition, offset: int) -> None:
        """The service is done with a record."""
        in_flight = self._in_flight.get(partition)
        if in_flight is not None:
            in_flight.consumed(offset)

    def drained(self) -> frozenset[Partition]:
        """Partitions to be given up, of which nothing is in progress any more."""
        return frozenset(each for each in self._leaving if not self._in_flight[each])

    def to_commit(self) -> dict[Partition, Place]:
        """The places in those partitions for which Kafka does not know them yet."""
        found: dict[Partition, Place] = {}
        for partition, in_flight in self._in_flight.items():
            if in_flight is not None:
                place = Place(in_flight.commit, in_flight.pull)
                if place != self._committed[partition]:
                    found[partition] = place
        return found

    def committed(self, places: Mapping[Partition, Place]) -> None:
        """Kafka has these."""
        self._committed.update((each, place) for each, place in places.items() if each in self._in_flight)
