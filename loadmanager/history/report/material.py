"""The material of a report: values whose size is bounded, whatever the lake's size. No Spark."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from loadmanager.history.published import Published

BUCKETS = 240
"""The most times in a picture."""
BROKERS = 40
"""The most brokers in the heat map."""
BUNDLES = 4
"""Bundles whose forecast is drawn."""
CANDIDATES = 20
"""Hottest bundles that are tried for a forecast: one that was split since has none."""
FAILOVERS = 20
KINDS = 4
"""Kinds of brokers whose capacity model is drawn: those that were seen the longest."""
ROWS = 500
"""Rows of any other table."""

Rows = list[dict[str, Any]]

LENGTHS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
HOUR_S, DAY_S = 3_600, 86_400


def bucket_s(begin: datetime, end: datetime) -> int:
    """How long a bucket is, so that there are at most BUCKETS from begin to end."""
    span_s = (end - begin).total_seconds()
    for length in LENGTHS_S:
        if span_s / length <= BUCKETS:
            return length
    return DAY_S * -(-int(span_s) // (DAY_S * BUCKETS))


class Span(msgspec.Struct, frozen=True):
    """The time that the report is about: the window, as far as there are reports.

    UTC; `bucket_s` is a picture's step.
    """

    begin: datetime
    end: datetime
    bucket_s: int

    @property
    def seconds(self) -> float:
        return (self.end - self.begin).total_seconds()


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What other jobs published; None where they did not run yet."""

    replay: Published | None = None
    audit: Published | None = None
    advice: Published | None = None


class Material(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is drawn or said. Rows are plain dicts, with the columns that each line names."""

    span: Span
    tolerance: float
    brokers: int
    """How many reported at all."""
    cells: Rows
    """at, broker, usage: of the BROKERS with the highest peaks, time-weighted means."""
    levels: Rows
    """at, mean, max, std, broker (the fullest): over all brokers that took part."""
    rounds: Rows
    """at, rounds, moves, strategy: of the leader's rounds that began moves, by bucket."""
    moves: Rows
    """at, how, moves: by bucket."""
    gap_shares: Rows
    """how, low_s, high_s, moves: a histogram of gaps on a logarithmic scale."""
    gaps: Rows
    """As the analysis `gaps`."""
    failovers: Rows
    """As the analysis `failovers`, the latest first, FAILOVERS at most."""
    lost: int
    """How many rows `failovers` would have without a limit."""
    history: Rows
    """bundle, at, load: by hour, of the bundles in `forecast`."""
    forecast: Rows
    """As the analysis `forecast`, of the BUNDLES hottest that have one, the hottest first."""
    measure: str
    capacity: Rows
    """As the analysis `capacity`, of KINDS kinds, the one that was seen the longest first."""
    kinds: int
    """How many kinds there are."""
    found: Found
