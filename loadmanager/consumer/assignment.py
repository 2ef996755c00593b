"""Decides for one member of a group what it may read, and until when. Pure: all times come in.

Times are milliseconds on one clock or on several, always the same ones in the same order. A lease is over when it is
over on one of them, because a suspended machine stops some clocks, and others can be set.

The lease counts from before an answered heartbeat was sent. The member drains partitions that it lost: it stops
reading, ends what is in progress, commits, and says so (`given_up`). Only then its heartbeats acknowledge the revision,
and the partition goes to another member. When the lease ends, or the coordinator no longer knows the member, all
partitions are lost at once, and nothing can be committed.

`Progress` is what the member has of each of its partitions: records in progress, what may be committed, what is to be
given up. It has no thread of its own; the caller holds a lock.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from loadmanager.consumers.backlog.in_flight import InFlight
from loadmanager.consumers.coordinator.messages import Answer, Beat, Refusal, Why
from loadmanager.consumers.coordinator.records import Partition, Subscription
from loadmanager.consumers.coordinator.targets import claims_of
from loadmanager.errors import Invalid


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


class Change(NamedTuple):
    """What an answer changed. `lost`: not to be read any more, and too late to commit."""

    assigned: frozenset[Partition] = frozenset()
    revoked: frozenset[Partition] = frozenset()
    lost: frozenset[Partition] = frozenset()


class Membership:
    """One member, from its first heartbeat until it leaves or is refused."""

    def __init__(self, member: str, subscription: Subscription) -> None:
        self.member = member
        self.process = uuid.uuid4().hex
        """Tells this process from another one with the same id, which the coordinator refuses."""
        self.subscription = subscription
        self.epoch = 0
        self.revision = 0
        self.generation = 0
        self.claims: tuple[Partition, ...] | None = None
        """What the coordinator is to be told that it should read, where members divide the partitions."""
        self._sent_claims: tuple[Partition, ...] | None = None
        self._claimed = 0
        """The first heartbeat with them."""
        self.over = False
        """It was refused: to continue, join under another id."""
        self._acked = 0
        self._sequence = 0
        self._answered = 0
        self._sent_ms: dict[int, tuple[float, ...]] = {}
        self._until_ms: tuple[float, ...] = ()
        self._assigned: frozenset[Partition] = frozenset()
        self._draining: set[Partition] = set()

    def beat(self, *now_ms: float) -> Beat:
        """The next heartbeat, to be sent now."""
        self._sequence += 1
        self._sent_ms[self._sequence] = now_ms
        if self.claims is not self._sent_claims:
            self._sent_claims, self._claimed = self.claims, self._sequence
        return Beat(
            self.subscription, self.epoch, self._acked, self._sequence, self.generation, self.claims, self.process
        )

    def answered(self, sequence: int, answer: Answer | Refusal, claims: tuple[Partition, ...] | None = None) -> Change:
        """An answer to the heartbeat of this sequence. One that comes late, or again, changes nothing.

        `claims`: those by the answer's view; without them they are computed here. Raises Invalid if the coordinator
        does not speak our version of the protocol.
        """
        sent_ms = self._sent_ms.pop(sequence, None)
        if sent_ms is None or sequence <= self._answered or self.over:
            return Change()
        self._answered = sequence
        self._sent_ms = {each: at_ms for each, at_ms in self._sent_ms.items() if each > sequence}
        if isinstance(answer, Refusal):
            if answer.why is Why.UNSUPPORTED_VERSION:
                raise Invalid(answer.detail)
            if answer.why is Why.ID_IN_USE:
                return Change()  # it is not a member yet, or this is a late answer to one of its first heartbeats
            return self.lose()
        if self.epoch and answer.epoch != self.epoch:
            return self.lose()
        if answer.revision < self.revision:
            return Change()  # its heartbeat overtook an earlier one: what was given up since may be another member's
        self.epoch = answer.epoch
        if answer.lease_ms:
            self._until_ms = tuple(at_ms + answer.lease_ms for at_ms in sent_ms)
        if answer.view is not None:
            self.claims = claims_of(self.member, answer.view) if claims is None else claims
        elif answer.generation != self.generation or sequence >= self._claimed:
            self.claims = None  # the coordinator has them, or does not ask for any
        self.generation = answer.generation
        return self._apply(answer)

    def given_up(self, partitions: Iterable[Partition]) -> None:
        """These revoked partitions are not read any more, and what was done is committed."""
        self._draining.difference_update(partitions)
        if not self._draining:
            self._acked = self.revision

    def lose(self) -> Change:
        """It is over: nothing is read any more, and it is too late to commit."""
        self.over = True
        lost = self._assigned | self._draining
        self._assigned, self._draining = frozenset(), set()
        return Change(lost=lost)

    def until_ms(self) -> float:
        """What may be read may be read before this time, on the first clock."""
        return self._until_ms[0] if self._until_ms else float("-inf")

    def may_read(self, *now_ms: float) -> bool:
        """Whether the lease is not over."""
        until_ms = self._until_ms
        return bool(until_ms) and all(now < until for now, until in zip(now_ms, until_ms, strict=True))

    def reads(self, *now_ms: float) -> frozenset[Partition]:
        """What may be read now."""
        return self._assigned if not self.over and self.may_read(*now_ms) else frozenset()

    def holds(self, *now_ms: float) -> frozenset[Partition]:
        """What may be in progress now: it may be finished and committed."""
        return self._assigned | self._draining if not self.over and self.may_read(*now_ms) else frozenset()

    def _apply(self, answer: Answer) -> Change:
        assigned = frozenset((topic, number) for topic, its in answer.partitions.items() for number in its)
        new, gone = assigned - self._assigned, self._assigned - assigned
        self.revision, self._assigned = answer.revision, assigned
        self._draining |= gone
        self.given_up(())
        return Change(new, gone)
