"""Which bundles have a daily or weekly season, how strong it is, and when their peak comes. See `seasons.py`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from loadmanager.history.analyses.analysis import Table
from loadmanager.history.analyses.hours import Series, answer_of, of_series
from loadmanager.history.analyses.seasons import DAY, seasons

COLUMNS = pa.schema(
    [
        *((name, pa.string()) for name in ("bundle", "namespace")),
        ("hours", pa.int64()),
        *((name, pa.float64()) for name in ("coverage", "mean", "correlation_day", "correlation_week")),
        *((name, pa.float64()) for name in ("strength_day", "strength_week")),
        ("period_h", pa.int64()),
        ("fourier_h", pa.float64()),
        *((name, pa.int64()) for name in ("peak_hour", "trough_hour")),
        ("swing", pa.float64()),
        ("profile", pa.list_(pa.float64())),
    ]
)


def found(series: Series) -> Table:
    """One row per bundle, of `options.measure` by the hour.

    `hours` that are known and their part (`coverage`) of the time, `mean`, autocorrelations at a day's and a week's
    lag, `strength_…` of both seasons, `period_h` (24, 168, or 0 for none), `fourier_h`, the period of the strongest
    Fourier coefficient; of the profile over the day (`profile`, UTC): `peak_hour`, `trough_hour`, `swing` = (peak -
    trough) / mean.
    """
    season = seasons(series.values, series.first)
    seen = ~np.isnan(season.profile).all(axis=1)
    some = np.where(np.isnan(season.profile), season.mean[:, None], season.profile)
    swing = np.divide(np.ptp(some, axis=1), season.mean, out=np.zeros(len(some)), where=season.mean > 0)
    return answer_of(
        [
            series.bundles,
            [bundle.rpartition("/")[0] for bundle in series.bundles],
            season.hours,
            season.hours / series.values.shape[1],
            *(season.mean, season.correlation_day, season.correlation_week, season.strength_day, season.strength_week),
            season.period_h,
            season.fourier_h,
            pa.array(some.argmax(axis=1), mask=~seen),
            pa.array(some.argmin(axis=1), mask=~seen),
            swing,
            pa.ListArray.from_arrays(
                np.arange(len(some) + 1) * DAY, pa.array(season.profile.ravel(), from_pandas=True)
            ),
        ],
        COLUMNS,
    )


ANALYSIS = of_series(
    "seasonality", "Seasonality of bundles", "hourly", COLUMNS, lambda series, _: found(series), ("bundle",)
)
