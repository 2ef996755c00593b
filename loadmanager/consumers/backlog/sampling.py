"""How much of a backlog passes a consumer's filter, from a sample of it. Pure.

Lag is a difference of offsets, so it counts what a filter will drop. The share of a sample that matches, times the
backlog, estimates what is left. The error bound is Wilson's interval with the correction for a finite backlog: it holds
for records drawn at random. Records next to each other are often alike, so look at several places (`places`), not at
the first 20,000 only, as RocketMQ does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf, sqrt
from statistics import NormalDist
from typing import TypeVar

import msgspec

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


def scan(records: Iterable[T], matches: Callable[[T], bool], limits: Limits) -> Sample:
    """Look at the records in turn until they end or a limit is reached."""
    scanned = matched = 0
    for record in records:
        scanned += 1
        matched += bool(matches(record))
        if scanned >= limits.scanned or matched >= limits.matched:
            break
    return Sample(scanned, matched)


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
    if size == inf:
        return share, share
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


def _effective(scanned: int, backlog: int) -> float:
    """How many draws with replacement say as much as `scanned` of `backlog` records without."""
    return scanned * (backlog - 1) / (backlog - scanned)
