"""How much of a backlog passes a consumer's filter, from a sample of it. Pure.

Lag is a difference of offsets, so it counts what a filter will drop. The share of a sample that matches, times the
backlog, estimates what is left. The error bound is Wilson's interval with the correction for a finite backlog: it holds
for records drawn at random. Records next to each other are often alike, so look at several places (`places`), not at
the first 20,000 only, as RocketMQ does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from math import sqrt
from statistics import NormalDist
from typing import Generic, TypeVar

import msgspec

GOLDEN = (sqrt(5) - 1) / 2
"""Multiples of it, without their whole parts, are spread evenly however many there are."""

T = TypeVar("T")


class Limits(msgspec.Struct, frozen=True):
    """After how many records to stop: looked at, or matching. RocketMQ's defaults."""

    scanned: int = 20_000
    matched: int = 5_000


class Sample(msgspec.Struct, frozen=True):
    """What was looked at."""

    scanned: int
    matched: int


class Estimate(msgspec.Struct, frozen=True):
    """Records of a backlog that match: between `low` and `high` with the given confidence; exact if all were seen."""

    messages: int
    low: int
    high: int
    sample: Sample
    exact: bool


class Scan(Generic[T]):
    """Counts records as they are looked at, up to the limits."""

    def __init__(self, matches: Callable[[T], bool], limits: Limits) -> None:
        self._matches = matches
        self._limits = limits
        self._scanned = self._matched = 0

    @property
    def sample(self) -> Sample:
        """What was looked at so far."""
        return Sample(self._scanned, self._matched)

    def see(self, record: T) -> bool:
        """Look at one record; says whether to go on."""
        self._scanned += 1
        self._matched += bool(self._matches(record))
        return self._scanned < self._limits.scanned and self._matched < self._limits.matched


def scan(records: Iterable[T], matches: Callable[[T], bool], limits: Limits) -> Sample:
    """Look at the records in turn until they end or a limit is reached."""
    looking = Scan(matches, limits)
    for record in records:
        if not looking.see(record):
            break
    return looking.sample


def estimate(sample: Sample, backlog: int, confidence: float = 0.95) -> Estimate:
    """The estimate for a backlog of `backlog` records, of which the sample is a part.

    Raises ValueError unless 0 <= matched <= scanned <= backlog and 0 < confidence < 1.
    """
    scanned, matched = sample.scanned, sample.matched
    if not 0 <= matched <= scanned <= backlog or not 0 < confidence < 1:
        raise ValueError(
            f"{matched} matching of {scanned} records cannot be a sample of {backlog} (confidence {confidence}): "
            "count what was looked at within the backlog alone, with a confidence between 0 and 1"
        )
    if scanned == backlog:
        return Estimate(matched, matched, matched, sample, exact=True)
    at_least, at_most = matched, backlog - (scanned - matched)
    if scanned == 0:
        return Estimate(0, 0, backlog, sample, exact=False)
    low, high = wilson(matched / scanned, _effective(scanned, backlog), confidence)
    return Estimate(
        round(matched * backlog / scanned),
        max(at_least, int(low * backlog)),
        min(at_most, int(high * backlog) + 1),
        sample,
        exact=False,
    )


def wilson(share: float, size: float, confidence: float) -> tuple[float, float]:
    """Wilson's score interval of a share seen in `size` independent draws (Wilson 1927)."""
    z2 = NormalDist().inv_cdf((1 + confidence) / 2) ** 2
    middle = (share + z2 / (2 * size)) / (1 + z2 / size)
    half = sqrt(z2 * (share * (1 - share) / size + z2 / (4 * size * size))) / (1 + z2 / size)
    return max(0.0, middle - half), min(1.0, middle + half)


def places(first: int, end: int, pieces: int, limits: Limits) -> Sequence[tuple[int, int]]:
    """Ranges of offsets to look at: `pieces` evenly spaced ones, together `limits.scanned` long; all of it if short."""
    length = end - first
    if length <= limits.scanned:
        return [(first, end)] if length > 0 else []
    pieces = max(1, min(pieces, limits.scanned))
    each = limits.scanned // pieces
    return [
        (at, at + each) for at in (first + (length - each) * piece // max(1, pieces - 1) for piece in range(pieces))
    ]


def places_of(queues: Sequence[tuple[int, int]], pieces: int, limits: Limits) -> Sequence[tuple[int, int, int]]:
    """As `places`, over the backlogs of several queues laid end to end: index of the queue, first offset, end.

    The places come in a scattered order, so that those looked at before a limit is reached lie all over the backlog.
    """
    starts = [0, *accumulate(end - first for first, end in queues)]
    found: list[tuple[int, int, int]] = []
    for at, till in places(0, starts[-1], pieces, limits):
        index = bisect_right(starts, at) - 1
        while at < till:
            stop = min(till, starts[index + 1])
            if at < stop:
                offset = queues[index][0] - starts[index]
                found.append((index, at + offset, stop + offset))
            at, index = stop, index + 1
    order = sorted(range(len(found)), key=lambda number: number * GOLDEN % 1)
    return [found[number] for number in order]


def _effective(scanned: int, backlog: int) -> float:
    """How many draws with replacement say as much as `scanned` of `backlog` records without."""
    return scanned * (backlog - 1) / (backlog - scanned)
