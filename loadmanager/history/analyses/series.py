"""Hourly series of bundles as matrices, and their seasons: how strong daily and weekly ones are, and when peaks come.

With Spark, bundles are dealt into groups by hash; each group is one Arrow table and one matrix (bundles, hours). numpy
works on many bundles at once, and a group stays small: 10,000 bundles of 60 days are 115 MB over all, 2 MB a group.

A linear trend is removed first. A season of period p counts if the rest correlates with itself p hours later, and the
mean profile over the period explains its variance, both by CLEAR at least. The explained part is adjusted for the
profile's degrees of freedom: noise explains nothing, and neither does a slow drift.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from loadmanager.history.analyses.analysis import Analysis, Options, Table, Tables, needs, relation
from loadmanager.history.lake import Window

Floats = NDArray[np.float64]
GROUPS = 16


class Series(msgspec.Struct, frozen=True, eq=False):
    """`values` (bundles, hours), NaN where nothing is known; the first column is the hour `first` since 1970."""

    bundles: list[str]
    first: int
    values: Floats


def of_series(
    name: str, title: str, text: str, columns: Any, work: Callable[[Series, Options], Table], order: tuple[str, ...]
) -> Analysis:
    """The analysis that is `work` on the series in the rows of a text (`hourly.sql`): all of them, or some."""

    def run(tables: Tables, window: Window, options: Options) -> DataFrame:
        groups = f.pmod(f.hash("bundle"), f.lit(GROUPS)).alias("group")

        def finished(table: Table) -> Table:
            return finish(table, options)

        rows = relation(tables, text, window, options).groupBy(groups)
        return rows.applyInArrow(finished, from_arrow_schema(columns))

    def finish(table: Table, options: Options) -> Table:
        return work(series_of(table), options) if table.num_rows else columns.empty_table()

    return Analysis(name, title, needs(text), run, order, text, finish)


def series_of(table: Table) -> Series:
    """The matrix of rows of `hourly.sql`; at least one."""
    bundles = table.column("bundle").combine_chunks().dictionary_encode()
    hours = table.column("hour").to_numpy()
    first, last = table.column("first")[0].as_py(), table.column("last")[0].as_py()
    values = np.full((len(bundles.dictionary), last - first + 1), np.nan)
    values[bundles.indices.to_numpy(), hours - first] = table.column("load").to_numpy()
    return Series(bundles.dictionary.to_pylist(), first, values)


def answer_of(columns: Sequence[Any], schema: Any) -> Table:
    """The table of these columns; NaN becomes null."""
    arrays = [
        each.cast(field.type) if isinstance(each, pa.Array) else pa.array(each, field.type, from_pandas=True)
        for each, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def filled(values: Floats) -> Floats:
    """Gaps filled linearly between their neighbours, and flat at the ends; zeros where nothing is known."""
    known = ~np.isnan(values)
    columns = np.arange(values.shape[1])
    before = np.maximum.accumulate(np.where(known, columns, -1), axis=1)
    after = np.minimum.accumulate(np.where(known, columns, values.shape[1])[:, ::-1], axis=1)[:, ::-1]
    left = np.where(before < 0, after, before)
    right = np.where(after >= values.shape[1], before, after)
    empty = ~known.any(axis=1)
    left[empty] = right[empty] = 0
    low, high = np.take_along_axis(values, left, 1), np.take_along_axis(values, right, 1)
    part = np.divide(columns - left, right - left, out=np.zeros(values.shape), where=right > left)
    result: Floats = low + (high - low) * part
    result[empty] = 0.0
    return result


DAY, WEEK = 24, 168
CLEAR = 0.3
MORE = 0.05
"""A weekly profile must explain more than a daily one by this much."""

Ints = NDArray[np.int64]


class Season(msgspec.Struct, frozen=True, eq=False):
    """Seasons of b bundles; each field is (b,) unless it says otherwise."""

    hours: Ints
    """How many hours have a value."""
    mean: Floats
    correlation_day: Floats
    """Autocorrelation at a day's lag, -1 to 1; NaN where the series is too short or does not vary."""
    correlation_week: Floats
    strength_day: Floats
    """The part of the variance that the profile over the day explains; NaN as above."""
    strength_week: Floats
    period_h: Ints
    """24, 168, or 0 for none."""
    fourier_h: Floats
    """The period of the strongest Fourier coefficient; NaN where nothing varies."""
    profile: Floats
    """(b, 24): means of the hours of the day (UTC), NaN where an hour was never seen."""


def seasons(values: Floats, first: int) -> Season:
    """The seasons of series (b, T) whose first hour is `first` since 1970."""
    known = ~np.isnan(values)
    count = known.sum(axis=1)
    mean = np.where(known, values, 0.0).sum(axis=1) / np.maximum(count, 1)
    rest = without_trend(values)
    hours = first + np.arange(values.shape[1])
    day, week = hours % DAY, hours % WEEK
    correlation_day, correlation_week = correlation(rest, DAY), correlation(rest, WEEK)
    strength_day, strength_week = strength(rest, day, DAY), strength(rest, week, WEEK)
    daily = (correlation_day >= CLEAR) & (strength_day >= CLEAR)
    weekly = (correlation_week >= CLEAR) & (strength_week >= CLEAR)
    better = ~daily | (strength_week > strength_day + MORE)
    period = np.where(weekly & better, WEEK, np.where(daily, DAY, 0)).astype(np.int64)
    return Season(
        hours=count,
        mean=np.where(count > 0, mean, np.nan),
        correlation_day=correlation_day,
        correlation_week=correlation_week,
        strength_day=strength_day,
        strength_week=strength_week,
        period_h=period,
        fourier_h=strongest(rest),
        profile=profile(values, day, DAY),
    )


def without_trend(values: Floats) -> Floats:
    """The series minus its least-squares line; NaN stays NaN. Rounding errors become 0."""
    known = ~np.isnan(values)
    count = np.maximum(known.sum(axis=1, keepdims=True), 1)
    time = np.where(known, np.arange(values.shape[1], dtype=np.float64), 0.0)
    level = np.where(known, values, 0.0)
    middle, mean = time.sum(axis=1, keepdims=True) / count, level.sum(axis=1, keepdims=True) / count
    apart, off = np.where(known, time - middle, 0.0), np.where(known, level - mean, 0.0)
    spread = (apart * apart).sum(axis=1, keepdims=True)
    slope = np.divide((apart * off).sum(axis=1, keepdims=True), spread, out=np.zeros_like(spread), where=spread > 0)
    rest = off - slope * apart
    rest[np.abs(rest) < 1e-9 * np.abs(mean)] = 0.0
    return np.where(known, rest, np.nan)


def correlation(rest: Floats, lag: int) -> Floats:
    """(b,): the autocorrelation at a lag, over pairs with both values known; NaN with less than a day of pairs."""
    if rest.shape[1] <= lag:
        return np.full(len(rest), np.nan)
    early, late = rest[:, :-lag], rest[:, lag:]
    both = ~np.isnan(early) & ~np.isnan(late)
    early, late = np.where(both, early, 0.0), np.where(both, late, 0.0)
    norm = np.sqrt((early**2).sum(axis=1) * (late**2).sum(axis=1))
    usable = (norm > 0) & (both.sum(axis=1) >= min(lag, DAY))
    return np.divide((early * late).sum(axis=1), norm, out=np.full(len(rest), np.nan), where=usable)


def profile(values: Floats, phase: Ints, period: int) -> Floats:
    """(b, period): the mean of each hour of the period."""
    sums, counts = _folded(values, phase, period)
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


def strength(rest: Floats, phase: Ints, period: int) -> Floats:
    """(b,): 1 - (unexplained variance) / (variance), both per degree of freedom; NaN below two whole periods."""
    count = (~np.isnan(rest)).sum(axis=1)
    sums, counts = _folded(rest, phase, period)
    means = np.divide(sums, counts, out=np.zeros(sums.shape), where=counts > 0)
    left = np.where(np.isnan(rest), 0.0, rest - means[:, phase])
    whole, freedom = np.nansum(rest**2, axis=1), count - (counts > 0).sum(axis=1)
    usable = (whole > 0) & (freedom > 0) & (count >= 2 * period * 0.9)
    unexplained = np.divide((left**2).sum(axis=1), freedom, out=np.zeros(len(rest)), where=freedom > 0)
    variance = whole / np.maximum(count - 1, 1)
    return 1 - np.divide(unexplained, variance, out=np.full(len(rest), np.nan), where=usable)


def strongest(rest: Floats) -> Floats:
    """(b,): the period in hours of the strongest Fourier coefficient of at least two periods; gaps are filled in."""
    hours = rest.shape[1]
    if hours < 4:
        return np.full(len(rest), np.nan)
    power = np.abs(np.fft.rfft(filled(rest), axis=1)) ** 2
    power[:, :2] = 0.0
    best = power.argmax(axis=1)
    found: Floats = np.where(power.max(axis=1) > 0, hours / np.maximum(best, 1), np.nan)
    return found


def _folded(values: Floats, phase: Ints, period: int) -> tuple[Floats, Floats]:
    fold = np.zeros((values.shape[1], period))
    fold[np.arange(values.shape[1]), phase] = 1.0
    known = ~np.isnan(values)
    return np.where(known, values, 0.0) @ fold, known.astype(np.float64) @ fold


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


def seasonality_of(series: Series) -> Table:
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


SEASONALITY = of_series(
    "seasonality", "Seasonality of bundles", "hourly", COLUMNS, lambda series, _: seasonality_of(series), ("bundle",)
)
