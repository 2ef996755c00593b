"""A histogram of durations: counts by bucket, and the sum. Prometheus' classic histograms are made of these."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

QUICK_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds for what takes milliseconds in a healthy cluster and seconds in a sick one."""


class Durations:
    """Counts durations by upper bound, inclusive. Belongs to one thread; others may read it.

    `bounds_s` ascend; a last bucket takes everything above.
    """

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: Sequence[float] = QUICK_S) -> None:
        self.bounds_s = tuple(bounds_s)
        self.counts = [0] * (len(self.bounds_s) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration; a negative one, between two clocks, counts as 0."""
        seconds = max(0.0, seconds)
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each bound, the last one infinite, with the number of durations up to it."""
        total = 0
        for bound_s, count in zip((*self.bounds_s, float("inf")), self.counts, strict=True):
            total += count
            yield bound_s, total
