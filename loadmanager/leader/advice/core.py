"""Decides what the leader does now about plans with advice: which end, which is under way, which may begin.

Pure. Appliers add what they find: bounds, and changes by others.

The effect of advice is the spread in the leaders' rounds before and after, by one ruler. A round counts until the next
one. Consecutive rounds are alike, so the standard error counts fewer of them than there are (first-order
autocorrelation). Harm is a mean that is worse by more than chance explains, and by more than `HARM_PERCENT`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from statistics import median

import msgspec

from loadmanager.leader.plans.advice import CLOCKS_APART_MS, Advice, Effect, Expected, Measure, MoveBundles, Period
from loadmanager.leader.plans.plan import Plan, PlanState
from loadmanager.leader.plans.table import OVER, UNDECIDED, UNDER_WAY, PlanAction

KEPT_MS = 30 * 86_400_000
"""How long a finished plan with advice is kept: longer than advice lives, so the same advice cannot come again."""
HARM_PERCENT = 10.0
"""Advice that makes its measure worse by more is withdrawn: smaller differences are usually noise."""
GIVEN_UP = OVER - {PlanState.DONE, PlanState.VERIFIED}


class Ending(msgspec.Struct, frozen=True):
    """A plan that ends without an operator, how, and why."""

    plan: Plan
    action: PlanAction
    reason: str


class Turn(msgspec.Struct, frozen=True):
    """What to do, in this order: write the endings, continue what is under way; else begin one of `next`."""

    endings: tuple[Ending, ...]
    under_way: tuple[Plan, ...]
    """One plan, or more if another leader began one at the same moment; the next plan waits for all of them."""
    next: tuple[Plan, ...]
    """Plans that may run, by approval and time; the most urgent first."""
    forgotten: tuple[Plan, ...]
    """Plans that ended so long ago that they can be deleted."""


def turn(plans: Sequence[Plan], now_ms: int, *, enabled: bool, review: bool = False) -> Turn:
    """The turn for these plans. `enabled`: advice needs no approval; `review`: except for moves."""
    advised = [plan for plan in plans if plan.advice is not None]
    endings = [ending for plan in advised if (ending := _ending(plan, advised, now_ms)) is not None]
    ended = {ending.plan.id for ending in endings}
    may = [
        plan
        for plan in advised
        if plan.id not in ended
        and plan.state in UNDECIDED
        and not waits_for(plan, now_ms, enabled=enabled, review=review)
    ]
    return Turn(
        tuple(endings),
        tuple(plan for plan in advised if plan.state in UNDER_WAY),
        tuple(sorted(may, key=lambda plan: (plan.until_ms, plan.id))),
        tuple(plan for plan in advised if _is_forgotten(plan, now_ms)),
    )


def advice_of(plan: Plan) -> Advice:
    """The advice of a plan that has some."""
    assert plan.advice is not None, f"plan {plan.id} has no advice"
    return plan.advice


def waits_for(plan: Plan, now_ms: int, *, enabled: bool, review: bool = False) -> str:
    """Which approval or time an undecided plan waits for; empty if none."""
    change = advice_of(plan).change
    if plan.state is PlanState.PROPOSED and not (enabled and not (review and isinstance(change, MoveBundles))):
        return "it waits for approval"
    if isinstance(change, MoveBundles) and now_ms < change.not_before_ms:
        return f"it may be applied in {(change.not_before_ms - now_ms) / 1000:.0f} s at the earliest"
    return ""


def _ending(plan: Plan, plans: Sequence[Plan], now_ms: int) -> Ending | None:
    if plan.state not in UNDECIDED:
        return None
    if now_ms >= plan.until_ms:
        return Ending(plan, PlanAction.EXPIRE, "its time is over, and it was not applied")
    newer = next((other for other in plans if _replaces(other, plan, now_ms)), None)
    if newer is not None:
        return Ending(plan, PlanAction.SUPERSEDE, f"advice {newer.id} has newer data on the same subject")
    return None


def _replaces(other: Plan, plan: Plan, now_ms: int) -> bool:
    mine, its = advice_of(plan), advice_of(other)
    newer = mine.provenance.data_to_ms < its.provenance.data_to_ms <= now_ms + CLOCKS_APART_MS
    return newer and other.state not in GIVEN_UP and bool(its.targets & mine.targets)


def _is_forgotten(plan: Plan, now_ms: int) -> bool:
    if plan.state not in OVER:
        return False
    done_ms = plan.steps[-1].at_ms if plan.steps else plan.proposed_ms
    return now_ms - max(done_ms, advice_of(plan).expires_ms) > KEPT_MS


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
