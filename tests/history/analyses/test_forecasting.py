"""Forecasts and their errors against a plain backtest, hour by hour."""

from __future__ import annotations

import math

import numpy as np
import pytest

from loadmanager.history.analyses.forecast import WAYS, ahead, forecast, forecast_of
from loadmanager.history.analyses.series import Floats, Series

NAMES = list(WAYS)
NAN = float("nan")


def wave(hours: int, period: int = 24) -> Floats:
    return 10 + 3 * np.sin(2 * np.pi * np.arange(hours) / period)


def plain_backtest(series: Floats, way: str) -> tuple[float, float, float]:
    """MAPE, MAE, RMSE."""
    hours = len(series)
    origins = [origin for origin in range(hours - 120, hours, 24) if origin > 24]
    errors, parts = [], []
    for origin in origins:
        history = [float(value) for value in series[:origin]]
        for step in range(24):
            if way == "naive":
                said = history[-1]
            elif way == "daily":
                said = history[-24 + step]
            elif way == "weekly":
                said = history[-168 + step]
            else:
                days = min(len(history) // 24, 7)
                said = sum(history[-24 * day + step] for day in range(1, days + 1)) / days
            actual = float(series[origin + step])
            errors.append(abs(said - actual))
            if actual > 0:
                parts.append(abs(said - actual) / actual)
    return (
        sum(parts) / len(parts),
        sum(errors) / len(errors),
        math.sqrt(sum(error**2 for error in errors) / len(errors)),
    )


@pytest.mark.parametrize("hours", [100, 24 * 8, 24 * 21, 500])
def test_errors_are_those_of_a_plain_backtest(hours: int) -> None:
    rng = np.random.default_rng(hours)
    values = np.maximum(0, np.stack([wave(hours) + rng.normal(0, 1, hours), rng.normal(5, 3, hours)]))
    made = forecast(values, 24)
    needs = {"naive": 1, "daily": 24, "profile": 48, "weekly": 168}
    ways = [way for way, least in needs.items() if least <= max(hours - 120, 28)]
    for bundle in range(2):
        for way in ways:
            mape, mae, _ = plain_backtest(values[bundle], way)
            at = bundle, NAMES.index(way)
            assert (made.mape[at], made.mae[at]) == pytest.approx((mape, mae)), way
        least = min((w for w in NAMES if not math.isnan(made.mae[bundle, NAMES.index(w)])),
                    key=lambda w: made.mae[bundle, NAMES.index(w)])  # fmt: skip
        assert NAMES[made.chosen[bundle]] == least
        if least in ways:
            assert made.deviation[bundle] == pytest.approx(plain_backtest(values[bundle], least)[2])


def test_a_clean_day_is_forecast_as_it_will_be() -> None:
    made = forecast(wave(24 * 9 + 5)[None, :], 30)
    assert made.predicted[0] == pytest.approx(wave(24 * 9 + 35)[-30:], abs=1e-6)
    assert NAMES[made.chosen[0]] == "daily"
    assert made.mape[0, made.chosen[0]] == pytest.approx(0.0, abs=1e-12)


def test_harmonics_find_a_wave_through_noise_better_than_yesterday() -> None:
    rng = np.random.default_rng(7)
    values = (wave(24 * 28) + rng.normal(0, 1.5, 24 * 28))[None, :]
    made = forecast(values, 24)
    assert NAMES[made.chosen[0]] in ("fourier", "profile")
    assert made.predicted[0] == pytest.approx(wave(24), abs=0.8)


def test_a_random_walk_is_best_left_where_it_is() -> None:
    rng = np.random.default_rng(8)
    values = 200 + rng.normal(0, 1, (12, 24 * 30)).cumsum(axis=1)
    made = forecast(values, 24)
    assert (made.chosen == NAMES.index("naive")).mean() > 0.7


@pytest.mark.parametrize("hours", [1, 5, 24, 48])
def test_too_short_a_history_gives_the_last_value_and_no_error(hours: int) -> None:
    made = forecast(np.arange(1.0, hours + 1)[None, :], 3)
    if hours <= 48:
        assert NAMES[made.chosen[0]] == "naive"
        assert made.predicted[0].tolist() == [hours] * 3
    assert np.isnan(made.mae[0]).all() or hours == 48


def test_what_was_not_seen_is_no_error() -> None:
    values = np.stack([wave(24 * 10)] * 2)
    values[1, -50:-40] = NAN
    made = forecast(values, 24)
    # the gap is closed on a line for those who look back, but nobody is judged by it
    assert made.mae[1, NAMES.index("naive")] != made.mae[0, NAMES.index("naive")]
    assert np.isfinite(made.predicted).all()


def test_a_backtest_does_not_bridge_a_gap_to_what_came_after_it() -> None:
    # known as 10 up to hour 65, as 100 from hour 80 on; origins are 72, 96, 120, 144, 168
    values = np.full((1, 24 * 8), 100.0)
    values[0, :65], values[0, 65:80] = 10.0, NAN
    made = forecast(values, 24)
    # at 72 all that was known is 10: 16 known hours are 90 off; later nothing is
    assert made.mape[0, NAMES.index("naive")] == pytest.approx(16 * 0.9 / (16 + 4 * 24))


def test_a_bundle_is_not_judged_by_origins_before_it_was_there() -> None:
    # 50 from hour 100 on, 80 from hour 120 on: of the origins 72, 96, 120, 144, 168 three knew of it
    values = np.full((1, 24 * 8), 80.0)
    values[0, :100], values[0, 100:120] = NAN, 50.0
    made = forecast(values, 24)
    assert made.mape[0, NAMES.index("naive")] == pytest.approx(24 * (30 / 80) / (3 * 24))
    assert made.deviation[0] == pytest.approx((24 * 30**2 / (3 * 24)) ** 0.5)


def test_without_a_backtest_the_range_is_that_of_what_is_known() -> None:
    values = np.array([[2.0, 4.0], [NAN, 5.0]])
    assert forecast(values, 1).deviation.tolist() == pytest.approx([2**0.5, 5.0])
    table = forecast_of(Series(["t/n/a", "t/n/b"], 0, values), 1).to_pydict()
    # 1.645 deviations either way, and never below nothing
    assert table["low"] == pytest.approx([4 - 1.645 * 2**0.5, 0.0])
    assert table["high"] == pytest.approx([4 + 1.645 * 2**0.5, 5 + 1.645 * 5])


def test_after_a_gap_the_last_known_value_goes_on() -> None:
    values = np.full((1, 24 * 9), 4.0)
    values[0, -3:] = values[0, 50:60] = NAN
    assert forecast(values, 2).predicted[0].tolist() == [4.0, 4.0]


def test_loads_are_never_forecast_below_zero() -> None:
    values = np.maximum(0.0, 3 * np.sin(2 * np.pi * np.arange(24 * 9) / 24))
    assert (ahead("fourier", values[None, :], 48) >= 0).all()


def test_a_constant_is_forecast_without_error() -> None:
    made = forecast(np.full((1, 24 * 9), 4.0), 24)
    assert made.mae[0, made.chosen[0]] == 0
    assert made.predicted[0].tolist() == [4.0] * 24
    assert NAMES[made.chosen[0]] == "naive"
