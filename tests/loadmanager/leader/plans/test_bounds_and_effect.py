"""The bounds of advice and how its effect is judged: pure, over everything that can be asked."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.errors import Invalid
from loadmanager.leader.advice.core import LEAST, Sample, effect, period, told
from loadmanager.leader.advice.follower import ruler_of
from loadmanager.leader.plans.advice import (
    FROM_ZERO,
    NAMES,
    NUMBERS,
    Advice,
    ChangeSettings,
    Expected,
    Measure,
    SettingChange,
    check_seal,
    check_steps,
    sealed,
    step_towards,
)
from loadmanager.settings import Settings, descriptions
from tests.loadmanager.leader.advice.advice_world import advice, tolerance

BASE = Settings.model_construct(None)
PROMISE = Expected(Measure.SPREAD, 0.5, 0.3, 0.1, 0.3)


def test_settings_that_advice_may_change_are_live_and_their_steps_bounded() -> None:
    for name in NUMBERS | NAMES:
        assert descriptions()[name].live
    for name in ("balancing", "balancing_review", "advice_apply", "drain_timeout_s", "log"):
        assert name not in NUMBERS | NAMES


@given(st.sampled_from(sorted(NUMBERS)), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1.01, 10))
def test_a_step_never_goes_beyond_the_factor_nor_past_what_is_wanted(
    name: str, present: float, wanted: float, factor: float
) -> None:
    to = step_towards(name, present, wanted, factor)
    if present > 0:
        assert present / factor <= to * (1 + 1e-9)
        assert to <= present * factor * (1 + 1e-9)
        assert min(present, wanted) <= to * (1 + 1e-9)
        assert to <= max(present, wanted) * (1 + 1e-9)
    else:
        assert 0 <= to <= max(FROM_ZERO.values())


@pytest.mark.parametrize(
    ("name", "to", "says"),
    [
        ("balancing_tolerance", 0.2, ""),
        ("balancing_tolerance", 0.201, "to 0.2, not"),
        ("balancing_tolerance", "loose", "to 0.2, not"),
        ("balancing_tolerance", math.nan, "not a number"),
        ("weight_bandwidth", 2.0, ""),
        ("weight_bandwidth", 2.1, "to 2, not"),
        ("balancing_moves_per_round", 150, ""),
        ("balancing_moves_per_round", 150.5, "valid integer"),
        ("overloaded_percent", 101, "less than or equal to 100"),
        ("balancing_strategy", "transfer", ""),
        ("balancing_strategy", "nonsense", "not installed"),
    ],
)
def test_bounds_are_the_settings_own_and_the_steps(name: str, to: object, says: str) -> None:
    change = ChangeSettings((SettingChange(name, None, to),))  # type: ignore[arg-type]
    if not says:
        return check_steps(change, BASE)
    with pytest.raises(Invalid, match=says):
        check_steps(change, BASE)
    return None


def samples(level: float, begin: int, count: int, noise: float = 0.0, seed: int = 1) -> list[Sample]:
    dice = random.Random(seed)
    return [Sample(begin + 1000 * number, level + dice.gauss(0, noise)) for number in range(count)]


def judged(before: list[Sample], after: list[Sample], percent: float = 10.0) -> bool:
    one, other = period(before, 0, 60_000, 0.1), period(after, 60_000, 120_000, 0.1)
    return effect(PROMISE, one, other, percent, ahead=False).harm


def test_harm_is_worse_by_more_than_chance_and_the_bound() -> None:
    calm = samples(0.3, 0, 60, 0.01)
    assert judged(calm, samples(0.4, 60_000, 60, 0.01))
    assert not judged(calm, samples(0.2, 60_000, 60, 0.01))
    assert not judged(calm, samples(0.32, 60_000, 60, 0.01))  # within 10 %
    assert judged(calm, samples(0.32, 60_000, 60, 0.01), percent=1)
    assert not judged(samples(0.3, 0, 60, 0.5), samples(0.4, 60_000, 60, 0.5, 2))  # within noise
    assert not judged(samples(0.0, 0, 60), samples(LEAST, 60_000, 60))
    assert judged(samples(0.0, 0, 60), samples(0.05, 60_000, 60))


def test_rounds_that_resemble_each_other_count_as_fewer() -> None:
    drifting = [Sample(1000 * number, 0.3 + 0.1 * math.sin(number / 10)) for number in range(60)]
    dealt = random.Random(1).sample(drifting, len(drifting))
    shuffled = [Sample(one.at_ms, other.spread) for one, other in zip(drifting, dealt, strict=True)]
    assert period(drifting, 0, 60_000, 0.1).spread_error > 2 * period(shuffled, 0, 60_000, 0.1).spread_error


def test_a_round_counts_until_the_next_one_but_a_gap_is_nobodys() -> None:
    uneven = [Sample(0, 0.0), Sample(10_000, 1.0), Sample(20_000, 1.0), Sample(30_000, 0.0)]
    found = period(uneven, 0, 40_000, 0.5)
    assert (found.spread, found.above_tolerance, found.rounds) == (0.5, 0.5, 4)
    gap = [*samples(0.2, 0, 5), Sample(5_000, 0.9), *samples(0.2, 55_000, 5)]
    assert period(gap, 0, 60_000, 0.1).spread < 0.45
    assert period([], 0, 1, 0.1).rounds == 0


def test_ahead_of_a_peak_the_prediction_is_what_counts() -> None:
    quiet, peak = period(samples(0.1, 0, 60, 0.01), 0, 60_000, 0.1), samples(0.35, 60_000, 60, 0.01)
    later = period(peak, 60_000, 120_000, 0.1)
    assert not effect(PROMISE, quiet, later, 10.0, ahead=True).harm
    assert effect(PROMISE, quiet, later, 10.0, ahead=False).harm
    assert "better" in told(effect(PROMISE, quiet, later, 10.0, ahead=True))


def test_the_ruler_has_the_advised_weights_and_the_tolerance_of_before() -> None:
    both = ChangeSettings((SettingChange("weight_cpu", 1.0, 2.0), SettingChange("balancing_tolerance", "default", 0.2)))
    assert (ruler_of(BASE, both).weight_cpu, ruler_of(BASE, both).tolerance) == (2.0, 0.1)
    assert ruler_of(BASE, tolerance("default", 0.2)).weight_cpu == 1.0


def test_advice_is_its_own_name() -> None:
    one = advice(tolerance("default", 0.2))
    assert msgspec.json.decode(msgspec.json.encode(one), type=Advice) == one
    assert sealed(one).id == one.id == advice(tolerance("default", 0.2)).id != advice(tolerance("default", 0.15)).id
    forged = msgspec.json.decode(msgspec.json.encode(one).replace(b'"to":0.2', b'"to":0.9'), type=Advice)
    with pytest.raises(Invalid, match="the digest of what it says"):
        check_seal(forged)
    with pytest.raises(Invalid, match="at most 65,536"):
        check_seal(sealed(msgspec.structs.replace(one, reason="x" * 70_000)))
