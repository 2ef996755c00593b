"""Decides for one member of a group what it may read, and until when. Pure: all times come in.

The lease counts from before a heartbeat was sent that was answered. What it does not have any more it drains: it stops
reading, ends what is in progress, commits, and says so (`given_up`); only then its heartbeats acknowledge the revision,
and the partition goes to somebody else. When the lease ends, or the coordinator does not know the member any more,
everything is lost at once, and nothing can be committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from loadmanager.consumers.coordinator.messages import Answer, Beat, Refusal, Why
from loadmanager.consumers.coordinator.records import Partition, Subscription
from loadmanager.errors import Invalid

NEVER = float("-inf")


class Change(NamedTuple):
    """What an answer changed. `lost`: not to be read any more, and too late to commit."""

    assigned: frozenset[Partition] = frozenset()
    revoked: frozenset[Partition] = frozenset()
    lost: frozenset[Partition] = frozenset()


class Membership:
    """One member, from its first heartbeat until it leaves or is refused. Times in milliseconds of any steady clock."""

    def __init__(self, member: str, subscription: Subscription) -> None:
        self.member = member
        self.subscription = subscription
        self.epoch = 0
        self.revision = 0
        self.generation = 0
        self.claims: tuple[Partition, ...] | None = None
        self.over = False
        """It was refused: who goes on joins under another id."""
        self._acked = 0
        self._sequence = 0
        self._answered = 0
        self._sent_ms: dict[int, float] = {}
        self._until_ms = NEVER
        self._assigned: frozenset[Partition] = frozenset()
        self._draining: set[Partition] = set()

    def beat(self, now_ms: float) -> Beat:
        """The next heartbeat, to be sent now."""
        self._sequence += 1
        self._sent_ms[self._sequence] = now_ms
        return Beat(self.subscription, self.epoch, self._acked, self._sequence, self.generation, self.claims)

    def answered(self, sequence: int, answer: Answer | Refusal) -> Change:
        """An answer to the heartbeat of this sequence. One that comes late, or again, changes nothing.

        Raises Invalid if the coordinator does not speak our version of the protocol.
        """
        sent_ms = self._sent_ms.pop(sequence, None)
        if sent_ms is None or sequence <= self._answered or self.over:
            return Change()
        self._answered = sequence
        self._sent_ms = {each: at_ms for each, at_ms in self._sent_ms.items() if each > sequence}
        if isinstance(answer, Refusal):
            if answer.why is Why.UNSUPPORTED_VERSION:
                raise Invalid(answer.detail)
            return self.lose()
        if self.epoch and answer.epoch != self.epoch:
            return self.lose()
        self.epoch = answer.epoch
        if answer.lease_ms:
            self._until_ms = max(self._until_ms, sent_ms + answer.lease_ms)
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
        """What may be read may be read before this time."""
        return self._until_ms

    def reads(self, now_ms: float) -> frozenset[Partition]:
        """What may be read now."""
        return frozenset() if self.over or now_ms >= self._until_ms else self._assigned

    def holds(self, now_ms: float) -> frozenset[Partition]:
        """What may be in progress now: it may be finished and committed."""
        return frozenset() if self.over or now_ms >= self._until_ms else self._assigned | self._draining

    def _apply(self, answer: Answer) -> Change:
        assigned = frozenset((topic, number) for topic, its in answer.partitions.items() for number in its)
        new, gone = assigned - self._assigned, self._assigned - assigned
        self.revision, self._assigned = answer.revision, assigned
        self._draining |= gone
        self.given_up(())
        return Change(new, gone)
