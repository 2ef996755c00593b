"""Forecasts of hourly loads, and how wrong each forecasting method was. Pure numpy, many bundles at once.

Methods ("ways"), the simplest first:

* `naive`: the last value;
* `daily`: the same hour yesterday;
* `weekly`: the same hour a week ago;
* `profile`: the mean of that hour over a week;
* `fourier`: daily and weekly harmonics by least squares over four weeks.

A backtest compares each method with the last days. There are up to FOLDS origins, HORIZON apart. From each origin every
method forecasts what followed, and uses only what was known before. Gaps are filled again for each origin, so that no
later value leaks in. Each bundle gets the method with the least mean absolute error, of equals the simplest.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loadmanager.history.analyses.analysis import Table
from loadmanager.history.analyses.series import DAY, WEEK, Floats, Series, answer_of, filled, of_series

HOUR_US = 3_600_000_000
FOLDS = 5
HORIZON = DAY
"""Of the backtest, in hours."""
HISTORY = 4 * WEEK
"""Hours that the regression looks back."""
HARMONICS = {DAY: 3, WEEK: 2}
WAYS: dict[str, int] = {"naive": 1, "daily": DAY, "weekly": WEEK, "profile": 2 * DAY, "fourier": 3 * DAY}
"""The methods, and how many hours of history each needs."""
NINETY_PERCENT = 1.645
"""Standard deviations of a normal distribution, either way."""


class Forecast(msgspec.Struct, frozen=True, eq=False):
    """Forecasts of b bundles, and errors of w methods (rows of WAYS); an error is NaN where the series is too short."""

    predicted: Floats
    """(b, horizon): by the chosen method."""
    deviation: Floats
    """(b,): the root mean square error of the chosen method. Without a backtest, the standard deviation of the known
    hours; of a single hour its value."""
    chosen: NDArray[np.int64]
    """(b,), index into WAYS."""
    mape: Floats
    """(b, w): mean of |error| / actual, as a fraction, over hours with a load."""
    mae: Floats
    """(b, w): mean of |error|, in the series' unit: what the methods are chosen by."""


def forecast(values: Floats, horizon: int) -> Forecast:
    """The next `horizon` hours of series (b, T), and the errors of the backtest. NaN stands for unknown."""
    whole = filled(values)
    origins = _origins(whole.shape[1])
    absolute, relative, squares = _backtest(values, origins)
    # treat rounding errors as zero, so that of equals the simplest wins
    rounding = 1e-9 * np.abs(whole).mean(axis=1, keepdims=True)
    absolute = np.where(absolute <= rounding, 0.0, absolute)
    chosen = np.where(np.isnan(absolute), np.inf, absolute).argmin(axis=1)
    picked = np.arange(len(whole)), chosen
    predicted = np.empty((len(whole), horizon))
    for number, way in enumerate(WAYS):
        mine = chosen == number
        if mine.any():
            predicted[mine] = ahead(way, whole[mine], horizon)
    return Forecast(
        predicted=predicted,
        deviation=np.where(np.isnan(squares[picked]), _spread(values), np.sqrt(squares[picked])),
        chosen=chosen,
        mape=relative,
        mae=absolute,
    )


def ahead(way: str, history: Floats, horizon: int) -> Floats:
    """(b, horizon): the continuation of a gapless history by one method. Never below 0. Raises KeyError."""
    steps = np.arange(horizon)
    hours = history.shape[1]
    if way == "fourier":
        return _harmonics(history, horizon)
    if way == "profile":
        days = min(hours // DAY, WEEK // DAY)
        recent = history[:, hours - days * DAY :].reshape(len(history), days, DAY)
        return recent.mean(axis=1)[:, steps % DAY]
    period = {"naive": 1, "daily": DAY, "weekly": WEEK}[way]
    return history[:, hours - period + steps % period]


def _origins(hours: int) -> list[int]:
    """The origins of the backtest as hours, the earliest first; each has more than a day of history before it."""
    return [hours - fold * HORIZON for fold in range(FOLDS, 0, -1) if hours - fold * HORIZON > DAY]


def _backtest(values: Floats, origins: list[int]) -> tuple[Floats, Floats, Floats]:
    """(b, w) each: mean absolute, relative and square error over the hours of all origins; NaN where there are none.

    All methods are judged by the same origins, so the history before the first one decides which methods take part. A
    bundle that was not seen before an origin is not judged by that origin.
    """
    shape = (len(values), len(WAYS))
    sums = {kind: np.zeros(shape) for kind in ("absolute", "relative", "squares", "count", "some")}
    able = [number for number, least in enumerate(WAYS.values()) if origins and least <= origins[0]]
    for origin in origins:
        history, actual = values[:, :origin], values[:, origin : origin + HORIZON]
        seen = ~np.isnan(history).all(axis=1, keepdims=True)
        known, positive = seen & ~np.isnan(actual), seen & (np.nan_to_num(actual) > 0)
        past = filled(history)
        for number in able:
            error = np.abs(ahead(list(WAYS)[number], past, HORIZON) - np.nan_to_num(actual))
            error = np.where(known, error, 0.0)
            sums["absolute"][:, number] += error.sum(axis=1)
            sums["squares"][:, number] += (error**2).sum(axis=1)
            sums["count"][:, number] += known.sum(axis=1)
            part = np.divide(error, actual, out=np.zeros_like(error), where=positive)
            sums["relative"][:, number] += part.sum(axis=1)
            sums["some"][:, number] += positive.sum(axis=1)
    return (
        _ratio(sums["absolute"], sums["count"]),
        _ratio(sums["relative"], sums["some"]),
        _ratio(sums["squares"], sums["count"]),
    )


def _spread(values: Floats) -> Floats:
    """(b,): the standard deviation of the known hours; of a single hour its value, of none 0."""
    known = ~np.isnan(values)
    count = known.sum(axis=1)
    level = np.where(known, values, 0.0).sum(axis=1) / np.maximum(count, 1)
    squares = np.where(known, (values - level[:, None]) ** 2, 0.0).sum(axis=1)
    return np.where(count > 1, np.sqrt(squares / np.maximum(count - 1, 1)), level)


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)


def _harmonics(history: Floats, horizon: int) -> Floats:
    recent = history[:, -HISTORY:]
    hours = recent.shape[1]
    periods = [period for period in HARMONICS if hours >= 2 * period]
    angles = [
        2 * np.pi * np.arange(hours + horizon) * harmonic / period
        for period in periods
        for harmonic in range(1, HARMONICS[period] + 1)
    ]
    waves = [wave for angle in angles for wave in (np.cos(angle), np.sin(angle))]
    design = np.column_stack([np.ones(hours + horizon), *waves])
    weights, *_ = np.linalg.lstsq(design[:hours], recent.T, rcond=None)
    result: Floats = np.maximum(0.0, (design[hours:] @ weights).T)
    return result


FORECAST_COLUMNS = pa.schema(
    [
        *((name, pa.string()) for name in ("bundle", "namespace")),
        ("at", pa.timestamp("us", "UTC")),
        *((name, pa.float64()) for name in ("predicted", "low", "high")),
        ("way", pa.string()),
        *((name, pa.float64()) for name in ("mape", "mae")),
    ]
)


def forecast_of(series: Series, horizon: int) -> Table:
    """`horizon` rows per bundle that exists and was seen in the window's last day, from the next hour on.

    `at`, the hour's begin; `predicted`, the mean of `options.measure` in its natural unit; `low` and `high`, the range
    in which nine of ten should fall; the chosen method (`way`) and its errors `mape` and `mae`, null where the history
    is too short: then the range is that of the known hours.
    """
    series = alive(series)
    made = forecast(series.values, horizon)
    rows = np.repeat(np.arange(len(series.bundles)), horizon)
    hours = series.first + series.values.shape[1] + np.tile(np.arange(horizon), len(series.bundles))
    namespaces = [bundle.rpartition("/")[0] for bundle in series.bundles]
    predicted = made.predicted.ravel()
    apart = np.nan_to_num(NINETY_PERCENT * made.deviation)[rows]
    picked = np.arange(len(made.chosen)), made.chosen
    return answer_of(
        [
            pa.array(series.bundles, pa.string()).take(pa.array(rows)),
            pa.array(namespaces, pa.string()).take(pa.array(rows)),
            pa.array(hours * (HOUR_US)).cast(pa.timestamp("us", "UTC")),
            *(predicted, np.maximum(0.0, predicted - apart), predicted + apart),
            pa.array(list(WAYS)).take(pa.array(made.chosen[rows])),
            *(errors[picked][rows] for errors in (made.mape, made.mae)),
        ],
        FORECAST_COLUMNS,
    )


def alive(series: Series) -> Series:
    """The bundles that were seen in the last day: the others have no forecast."""
    rows = np.flatnonzero(~np.isnan(series.values[:, -DAY:]).all(axis=1))
    return Series([series.bundles[row] for row in rows], series.first, series.values[rows])


FORECAST = of_series(
    *("forecast", "Forecast of bundles", "hourly_there", FORECAST_COLUMNS),
    lambda series, options: forecast_of(series, options.horizon_h),
    ("bundle", "at"),
)


ERROR_COLUMNS = pa.schema(
    [
        *((name, pa.string()) for name in ("bundle", "way")),
        ("chosen", pa.bool_()),
        *((name, pa.float64()) for name in ("mape", "mae")),
    ]
)


def errors_of(series: Series) -> Table:
    """One row per bundle of `forecast` and method (`way`): whether it was `chosen`, and its errors in the backtest.

    `mape`: mean of |error| / actual as a fraction; `mae`: mean |error| in the unit of `options.measure`; null where the
    history is too short for the method.
    """
    series = alive(series)
    made = forecast(series.values, HORIZON)
    count, ways = len(series.bundles), len(WAYS)
    return answer_of(
        [
            pa.array(series.bundles, pa.string()).take(pa.array(np.repeat(np.arange(count), ways))),
            list(WAYS) * count,
            (made.chosen[:, None] == np.arange(ways)).ravel(),
            *(errors.ravel() for errors in (made.mape, made.mae)),
        ],
        ERROR_COLUMNS,
    )


FORECAST_ERROR = of_series(
    *("forecast_error", "Errors of the forecast", "hourly_there", ERROR_COLUMNS),
    lambda series, _: errors_of(series),
    ("bundle", "way"),
)
