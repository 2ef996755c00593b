"""The judge of a replayed partition: checks every entry for what was promised of it, whatever the law said. Pure.

A lost entry shows in two ways: its offset is missing, or an author had seen a revision that no record here made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from loadmanager.channel.audit.differences import difference
from loadmanager.channel.audit.invariants import Broken, Invariant
from loadmanager.channel.audit.promises import Promises
from statechannel.law.partition import PartitionState
from statechannel.law.record import Record
from statechannel.law.verdict import Reason, Refusal
from statechannel.runtime.core import Applied


class Auditor:
    """Judges one partition. Call `begin` with what the replay begins with, then `take` with every entry in order."""

    def __init__(self, partition: int, partitions: int) -> None:
        self.counts: Counter[str] = Counter()
        """How many entries were `accepted`, `refused` or `corrupt`."""
        self.refusals: Counter[str] = Counter()
        """How many records were refused, by reason."""
        self._promises = Promises(partition, partitions)
        self._expected = 0

    def begin(self, offset: int, state: PartitionState | None = None) -> None:
        """Go on at an offset, from the state below it."""
        self._expected = offset
        if state is not None:
            self._promises.begin(state)

    def missing(self, offset: int) -> range:
        """The offsets below this one that had no entry."""
        return range(self._expected, offset)

    def take(self, applied: Applied) -> list[Broken]:
        """The invariants that the next entry breaks."""
        record, verdict, self._expected = applied.record, applied.verdict, applied.offset + 1
        if record is None or verdict is None:
            self.counts["corrupt"] += 1
            return []
        if isinstance(verdict, Refusal):
            self.counts["refused"] += 1
            self.refusals[verdict.reason] += 1
            return list(_lost(applied.offset, record, (verdict, *verdict.others)))
        self.counts["accepted"] += 1
        return [*self._promises.see(verdict), *_lost(applied.offset, record, verdict.refused)]

    def check(self, state: PartitionState) -> list[Broken]:
        """The same for the replay's own state: only the changes that were taken may have led to it."""
        differs = self._promises.differs(state)
        return [Broken(Invariant.OWNER, differs)] if differs else []


def compared(who: str, ours: PartitionState, theirs: PartitionState) -> list[Broken]:
    """The same for the state of somebody else, a snapshot or a replica, at the same offset as the replay's."""
    if ours.digest() == theirs.digest():
        return []
    return [Broken(Invariant.SNAPSHOT, f"{who}: {difference(ours, theirs) or 'its digest differs'}")]


def _lost(offset: int, record: Record, refusals: Iterable[Refusal]) -> Iterator[Broken]:
    """Entries that the record's author had seen, and that this log does not have."""
    for refusal in refusals:
        winner = refusal.winner
        if refusal.reason is not Reason.STALE or winner is None:
            continue
        seen = next((subject.seen for subject in record.subjects if subject.bundle == winner.bundle), None)
        if seen is not None and winner.revision < seen < offset:
            detail = f"the log has made none after {winner.revision}: entries were lost"
            yield Broken(Invariant.ENTRY, f"{record.actor} had seen revision {seen} of {winner.bundle}, and {detail}")
