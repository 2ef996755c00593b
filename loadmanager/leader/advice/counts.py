"""What one broker has done with advice since its incarnation began."""

from __future__ import annotations


class AdviceCounts:
    """As a leader; the others count nothing."""

    def __init__(self) -> None:
        self.applied = 0
        self.kept = 0
        self.withdrawn = 0
        self.harmed = 0
        self.failures = 0
