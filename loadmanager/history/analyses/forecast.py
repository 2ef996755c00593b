"""What each bundle's load will be in the next hours, by the method that was best for it in a backtest."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from loadmanager.history.analyses.analysis import Table
from loadmanager.history.analyses.figures import HOUR_S
from loadmanager.history.analyses.forecasting import NINETY_PERCENT, WAYS, forecast
from loadmanager.history.analyses.hours import Series, answer_of, of_series
from loadmanager.history.analyses.seasons import DAY

COLUMNS = pa.schema(
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
            pa.array(hours * (HOUR_S * 1_000_000)).cast(pa.timestamp("us", "UTC")),
            *(predicted, np.maximum(0.0, predicted - apart), predicted + apart),
            pa.array(list(WAYS)).take(pa.array(made.chosen[rows])),
            *(errors[picked][rows] for errors in (made.mape, made.mae)),
        ],
        COLUMNS,
    )


def alive(series: Series) -> Series:
    """The bundles that were seen in the last day: the others have no forecast."""
    rows = np.flatnonzero(~np.isnan(series.values[:, -DAY:]).all(axis=1))
    return Series([series.bundles[row] for row in rows], series.first, series.values[rows])


ANALYSIS = of_series(
    *("forecast", "Forecast of bundles", "hourly_there", COLUMNS),
    lambda series, options: forecast_of(series, options.horizon_h),
    ("bundle", "at"),
)
