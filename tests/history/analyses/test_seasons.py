"""Seasons are found where there are some, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from loadmanager.history.analyses.series import Floats, correlation, filled, seasons, strength, without_trend

MONDAY_NOON = 490_896 - 490_896 % 24 + 12
NAN = float("nan")


def waves(hours: int, period: float, shift: float = 0.0, first: int = 0) -> Floats:
    return 10 + 3 * np.cos(2 * np.pi * (first + np.arange(hours) - shift) / period)


def test_a_daily_wave_is_found_with_its_peak() -> None:
    for first in (0, 7, MONDAY_NOON):
        found = seasons(np.stack([waves(24 * 6, 24, 15, first), waves(24 * 6, 24, 3, first)]), first)
        assert found.period_h.tolist() == [24, 24]
        assert found.fourier_h.tolist() == [24.0, 24.0]
        assert found.profile.argmax(axis=1).tolist() == [15, 3]
        assert (found.strength_day > 0.98).all()
        assert (found.correlation_day > 0.98).all()


def test_a_daily_wave_is_found_on_a_trend_in_noise_and_with_gaps() -> None:
    rng = np.random.default_rng(1)
    hours = 24 * 14
    values = np.stack([waves(hours, 24, 15)] * 3) + np.linspace(0, 20, hours) + rng.normal(0, 0.5, (3, hours))
    values[rng.random(values.shape) < 0.3] = NAN
    assert seasons(values, 0).period_h.tolist() == [24] * 3


def test_two_peaks_a_day_are_a_daily_season_too() -> None:
    found = seasons(waves(24 * 8, 12)[None, :], 0)
    assert (found.period_h.tolist(), found.fourier_h.tolist()) == ([24], [12.0])


def test_a_week_is_more_than_its_days() -> None:
    first = (490_896 // 168) * 168 + 96
    hours = np.arange(first, first + 5 * 168)
    weekday = ((hours - 72) // 24) % 7
    values = (10 + 3 * np.cos(2 * np.pi * hours / 24)) * np.where(weekday < 5, 1.0, 0.4)
    found = seasons(values[None, :], first)
    assert found.period_h.tolist() == [168]
    assert found.strength_week[0] > found.strength_day[0] + 0.05


def test_weeks_of_equal_days_are_a_daily_season() -> None:
    assert seasons(waves(24 * 28, 24)[None, :], 0).period_h.tolist() == [24]


def test_what_comes_only_once_in_the_window_is_no_period() -> None:
    values = waves(240, 24) + 5 * np.cos(2 * np.pi * np.arange(240) / 240)
    assert seasons(values[None, :], 0).fourier_h.tolist() == [24.0]


def test_the_strength_is_what_the_profile_explains_by_degree_of_freedom() -> None:
    rng = np.random.default_rng(11)
    rest = without_trend(waves(24 * 5, 24)[None, :] + rng.normal(0, 2, (1, 24 * 5)))[0]
    profile = [rest[hour::24].mean() for hour in range(24)]
    left = sum((value - profile[hour % 24]) ** 2 for hour, value in enumerate(rest))
    whole = sum(value**2 for value in rest)
    expected = 1 - (left / (120 - 24)) / (whole / (120 - 1))
    assert strength(rest[None, :], np.arange(120) % 24, 24) == pytest.approx([expected])


def test_noise_lines_constants_and_random_walks_have_no_season() -> None:
    rng = np.random.default_rng(2)
    hours = 24 * 21
    values = np.concatenate(
        [
            rng.normal(10, 1, (20, hours)),
            np.linspace(1, 9, hours)[None, :],
            np.full((1, hours), 4.2),
            np.zeros((1, hours)),
            100 + rng.normal(0, 1, (20, hours)).cumsum(axis=1),
        ]
    )
    assert seasons(values, 0).period_h.tolist() == [0] * len(values)


@pytest.mark.parametrize("hours", [1, 2, 24, 47])
def test_what_is_too_short_has_none(hours: int) -> None:
    found = seasons(waves(hours, 24)[None, :], 0)
    assert found.period_h.tolist() == [0]


def test_nothing_known_at_all() -> None:
    found = seasons(np.full((1, 100), NAN), 0)
    assert found.period_h.tolist() == [0]
    assert found.hours.tolist() == [0]
    assert np.isnan(found.mean[0])


def test_the_correlation_is_that_of_the_textbook() -> None:
    rng = np.random.default_rng(4)
    values = without_trend(rng.normal(0, 1, (1, 200)))
    early, late = values[0, :-24], values[0, 24:]
    expected = early @ late / np.sqrt((early @ early) * (late @ late))
    assert correlation(values, 24) == pytest.approx([expected])


def test_a_trend_is_taken_out_as_by_polyfit() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(0, 1, 60) + np.linspace(0, 9, 60)
    values[10:14] = NAN
    known = ~np.isnan(values)
    line = np.polyval(np.polyfit(np.arange(60)[known], values[known], 1), np.arange(60))
    assert without_trend(values[None, :])[0] == pytest.approx(values - line, nan_ok=True, abs=1e-9)


def test_gaps_are_closed_on_straight_lines() -> None:
    values = np.array([[NAN, 2, NAN, NAN, 8, NAN], [NAN] * 6, [1, 2, 3, 4, 5, 6], [NAN, NAN, 7, NAN, NAN, NAN]])
    assert filled(values).tolist() == [[2, 2, 4, 6, 8, 8], [0] * 6, [1, 2, 3, 4, 5, 6], [7] * 6]
