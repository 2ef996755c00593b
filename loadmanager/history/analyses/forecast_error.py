"""How wrong each forecasting method was for each bundle, in a backtest over its last days: why one was chosen."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from loadmanager.history.analyses.analysis import Analysis, Options, Tables
from loadmanager.history.analyses.forecast import alive
from loadmanager.history.analyses.forecasting import HORIZON, WAYS, forecast
from loadmanager.history.analyses.hours import NEEDS, Series, Table, answer_of, by_series, hourly
from loadmanager.history.analyses.serving import there
from loadmanager.history.lake import Window

COLUMNS = pa.schema(
    [
        *((name, pa.string()) for name in ("bundle", "way")),
        ("chosen", pa.bool_()),
        *((name, pa.float64()) for name in ("mape", "mae")),
    ]
)


def run(tables: Tables, window: Window, options: Options) -> DataFrame:
    """One row per bundle of `forecast` and method (`way`): whether it was `chosen`, and its errors in the backtest.

    `mape`: mean of |error| / actual as a fraction; `mae`: mean |error| in the unit of `options.measure`; null where the
    history is too short for the method.
    """
    rows = there(hourly(tables, window, options), tables("transition"), window)
    return by_series(rows, from_arrow_schema(COLUMNS), errors_of)


def errors_of(series: Series) -> Table:
    """The answer's rows for a group of bundles."""
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
        COLUMNS,
    )


ANALYSIS = Analysis("forecast_error", "Errors of the forecast", (*NEEDS, "transition"), run, ("bundle", "way"))
