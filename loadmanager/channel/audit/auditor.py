"""Checks every entry of a channel beyond what replay itself refuses. Pure.

It detects a hole in the log: an author that saw a revision that no record here made has read a log with more entries.
"""

from __future__ import annotations

from collections import Counter

from statechannel.errors import InvariantError
from statechannel.law.record import Record
from statechannel.law.verdict import Change, Reason, Refusal, Transition, check_entry
from statechannel.runtime.replay import Folded

PROBLEMS_KEPT = 10


class LawCheck:
    """Give it every entry of a partition, in order."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        """The first problems found; each names its offset."""
        self.gaps: list[tuple[int, int]] = []
        """Offsets without an entry, as `[from, to)`: allowed, but rare in our logs."""
        self._expected: int | None = None

    def take(self, folded: Folded) -> None:
        """Check the next entry."""
        offset, verdict = folded.entry.offset, folded.applied.verdict
        if self._expected is not None and offset > self._expected and len(self.gaps) < PROBLEMS_KEPT:
            self.gaps.append((self._expected, offset))
        self._expected = offset + 1
        if isinstance(verdict, Change):
            self.counts["accepted"] += 1
            for transition in verdict.transitions:
                self._check_step(offset, transition)
            self._check_refusals(offset, verdict.record, verdict.refused)
        elif isinstance(verdict, Refusal):
            self.counts["refused"] += 1
            if folded.applied.record is not None:
                self._check_refusals(offset, folded.applied.record, (verdict, *verdict.others))
        else:
            self.counts["skipped"] += 1

    def _check_step(self, offset: int, transition: Transition) -> None:
        before, after = transition.before, transition.after
        if after is None:
            return
        try:
            check_entry(after)
        except InvariantError as error:
            self._problem(offset, str(error))
        if after.revision != offset:
            self._problem(offset, f"{after.bundle} has revision {after.revision}")
        if before is not None and after.token < before.token:
            self._problem(offset, f"the token of {after.bundle} goes back from {before.token} to {after.token}")

    def _check_refusals(self, offset: int, record: Record, refusals: tuple[Refusal, ...]) -> None:
        for refusal in refusals:
            winner = refusal.winner
            if refusal.reason is not Reason.STALE or winner is None:
                continue
            seen = next((s.seen for s in record.subjects if s.bundle == winner.bundle), None)
            if seen is not None and winner.revision < seen < offset:
                self._problem(
                    offset,
                    f"{record.actor} had seen revision {seen} of {winner.bundle}, and the log has made none after "
                    f"{winner.revision}: entries were lost",
                )

    def _problem(self, offset: int, text: str) -> None:
        self.counts["problems"] += 1
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(f"offset {offset}: {text}")
