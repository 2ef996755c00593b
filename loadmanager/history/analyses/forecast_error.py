"""How wrong each forecasting method was for each bundle, in a backtest over its last days: why one was chosen."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from loadmanager.history.analyses.analysis import Table
from loadmanager.history.analyses.forecast import alive
from loadmanager.history.analyses.forecasting import HORIZON, WAYS, forecast
from loadmanager.history.analyses.hours import Series, answer_of, of_series

COLUMNS = pa.schema(
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
        COLUMNS,
    )


ANALYSIS = of_series(
    *("forecast_error", "Errors of the forecast", "hourly_there", COLUMNS),
    lambda series, _: errors_of(series),
    ("bundle", "way"),
)
