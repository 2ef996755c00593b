"""Keeps and counts decisions on splits and merges, for people: what happened, and why the rest did not."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from enum import StrEnum

import msgspec

from loadmanager.strategies.splitting.merging import MergeDecision
from loadmanager.strategies.splitting.splits import SplitDecision

EVENTS_KEPT = 200


class What(StrEnum):
    """What happened."""

    SPLIT = "split"
    NOT_SPLIT = "not split"
    MERGED = "merged"
    NOT_MERGED = "not merged"
    SPREAD = "spread"
    KEPT = "kept"
    """A child of a split stays with its owner."""
    QUARANTINED = "quarantined"
    TRIED = "given out alone"
    """A locked bundle is tried again."""
    LET_GO = "let go"
    """Its lock has ended: it harms nobody any more."""


class Event(msgspec.Struct, frozen=True):
    """One event: its time by the wall clock, the bundle, and why in words."""

    at_ms: int
    what: What
    bundle: str
    why: str


class Journal:
    """The journal of one incarnation. `splits` counts by label and reason, as Pulsar's `SplitCounter` does."""

    def __init__(self, wall_ms: Callable[[], int], note: Callable[[str], None]) -> None:
        self.events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self.splits: Counter[tuple[str, str]] = Counter()
        self.counts: Counter[What] = Counter()
        self.looks = 0
        self.looked_ms = 0
        self.idle = "nobody has looked yet"
        """Why the last look decided nothing; empty if it did decide."""
        self.split_decision: SplitDecision | None = None
        self.merge_decision: MergeDecision | None = None
        self._wall_ms = wall_ms
        self._note = note

    def looked(self, splits: SplitDecision, merges: MergeDecision) -> None:
        """Keep the decisions of a look at all bundles."""
        self.looks += 1
        self.looked_ms = self._wall_ms()
        self.idle = ""
        self.split_decision, self.merge_decision = splits, merges

    def did_not_look(self, why: str) -> None:
        """A look was due, but could not decide anything."""
        self.looked_ms = self._wall_ms()
        self.idle = why
        self.split_decision = self.merge_decision = None

    def happened(self, what: What, bundle: object, why: str, *, quietly: bool = False) -> None:
        """Keep an event; unless `quietly`, also note it at once."""
        self.counts[what] += 1
        self.events.append(Event(self._wall_ms(), what, str(bundle), why))
        if not quietly:
            self._note(f"{bundle} {what}: {why}")
