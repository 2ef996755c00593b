"""The effect of advice: the spread in the leaders' rounds before and after, by one ruler. Pure.

A round counts until the next one. Consecutive rounds are alike, so the standard error counts fewer of them than there
are (first-order autocorrelation). Harm is a mean that is worse by more than chance explains, and by more than
`advice_harm_percent`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from statistics import median

import msgspec

from loadmanager.leader.plans.advice import Effect, Expected, Measure, Period

MIN_ROUNDS = 5
"""Fewer rounds say nothing about noise."""
DEVIATIONS = 2.0
"""How many standard errors of the difference count as chance."""
LEAST = 0.01
"""Differences up to a percentage point are never harm."""
MOST_ALIKE = 0.95
GAP = 3.0
"""A round weighs at most as much as this many median rounds."""
SETTLING = 0.1
"""The fraction of the measured time in which, after the change, rounds do not count yet."""


class Sample(msgspec.Struct, frozen=True):
    """One round: its time, and its spread by the ruler."""

    at_ms: int
    spread: float


def settling_ms(measure_ms: int) -> int:
    """The time between the change and the measured period."""
    return round(SETTLING * measure_ms)


def period(samples: Sequence[Sample], begin_ms: int, end_ms: int, tolerance: float) -> Period:
    """Summarise the rounds of a period; `samples` are in order of time."""
    inside = [sample for sample in samples if begin_ms <= sample.at_ms < end_ms]
    weights = _weights(inside, end_ms)
    spreads = [sample.spread for sample in inside]
    above = [float(spread > tolerance) for spread in spreads]
    return Period(begin_ms, end_ms, len(inside), *_mean(spreads, weights), *_mean(above, weights))


def measured(found: Period) -> bool:
    """Whether the period has enough rounds."""
    return found.rounds >= MIN_ROUNDS


def effect(expected: Expected, before: Period, after: Period, harm_percent: float, *, ahead: bool) -> Effect:
    """The effect by the promised measure; `ahead`: compare with the predicted peak, not with the time before."""
    measure = expected.measure
    earlier, earlier_error = (expected.before, 0.0) if ahead else before.mean(measure)
    later, later_error = after.mean(measure)
    noise = DEVIATIONS * sqrt(earlier_error**2 + later_error**2)
    if ahead:
        noise = max(noise, (expected.high - expected.low) / 2)
    bound = max(noise, harm_percent / 100 * earlier, LEAST)
    change = later - earlier
    return Effect(measure, earlier, later, change, bound, change > bound, after)


def told(found: Effect) -> str:
    """The effect in a sentence."""
    name = "spread" if found.measure is Measure.SPREAD else "time above tolerance"
    way = "worse" if found.change > 0 else "better"
    more = f"{name} {found.before:.1%} → {found.after:.1%} over {found.period.rounds} rounds"
    verdict = "harm" if found.harm else "no harm"
    return f"{more}: {abs(found.change):.1%} {way}, bound {found.bound:.1%}, {verdict}"


def _weights(samples: Sequence[Sample], end_ms: int) -> list[float]:
    """How long each sample counts: until the next one, but a gap (no leader) counts for at most `GAP` median rounds."""
    if not samples:
        return []
    times = [*(sample.at_ms for sample in samples), end_ms]
    lengths = [max(1.0, float(later - earlier)) for earlier, later in pairwise(times)]
    most = GAP * median(lengths)
    return [min(most, length) for length in lengths]


def _mean(values: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    """The weighted mean and its standard error; both 0 without values."""
    total = sum(weights)
    if not total:
        return 0.0, 0.0
    mean = sum(v * w for v, w in zip(values, weights, strict=True)) / total
    away = [value - mean for value in values]
    variance = sum(w * a * a for a, w in zip(away, weights, strict=True)) / total
    count = total**2 / sum(w * w for w in weights)
    alike = _alike(away)
    independent = max(1.0, count * (1 - alike) / (1 + alike))
    return mean, sqrt(variance / max(1.0, independent - 1))


def _alike(away: Sequence[float]) -> float:
    """The correlation of neighbours, from 0 to MOST_ALIKE."""
    own = sum(a * a for a in away)
    if own <= 0:
        return 0.0
    return min(MOST_ALIKE, max(0.0, sum(a * b for a, b in pairwise(away)) / own))
