"""Hourly series of bundles: from a DataFrame to numpy matrices and back, many bundles at a time.

Bundles are dealt into groups by hash; each group is one Arrow table and one matrix (bundles, hours). numpy then works
on many bundles at once, and a group stays small: 10,000 bundles of 60 days are 115 MB over all, 2 MB a group.
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
from pyspark.sql.types import StructType

from loadmanager.history.analyses.analysis import Options, Tables
from loadmanager.history.analyses.cluster import bundle_hours, cluster, with_cpu
from loadmanager.history.analyses.figures import CPU
from loadmanager.history.analyses.sharing import shareable
from loadmanager.history.lake import Window
from loadmanager.model.load import RESOURCES

Floats = NDArray[np.float64]
Table = Any
"""A pyarrow.Table; pyarrow ships no types."""
GROUPS = 16
MOST_HOURS = 24 * 7 * 60
"""The most hours of a series, the last ones: a clock that is years wrong must not make matrices of centuries."""
NEEDS = ("bundle_minute", "broker_minute", "bundle_total")


class Series(msgspec.Struct, frozen=True, eq=False):
    """`values` (bundles, hours), NaN where nothing is known; the first column is the hour `first` since 1970."""

    bundles: list[str]
    first: int
    values: Floats


@shareable
def hourly(tables: Tables, window: Window, options: Options) -> DataFrame:
    """`bundle`, `hour` (since 1970, UTC), `load`: the mean of the measured resource over the time that was covered.

    `first` and `last` are those of all bundles, on every row, so that all series line up. Hours more than MOST_HOURS
    before the last are left out.
    """
    number = RESOURCES.index(options.measure)
    loads = bundle_hours(tables, window)
    ends = loads.agg(f.min("hour").alias("from"), f.max("hour").alias("last"))
    ends = ends.select(f.greatest("from", f.col("last") - (MOST_HOURS - 1)).alias("first"), "last")
    if number == CPU:
        loads = with_cpu(loads, cluster(tables, window, options))
    loads = loads.select("bundle", "hour", (f.col(f"load_{number}") / f.col("covered_s")).alias("load"))
    return loads.crossJoin(f.broadcast(ends)).where(f.col("hour") >= f.col("first"))


def by_series(rows: DataFrame, answer: StructType, work: Callable[[Series], Table]) -> DataFrame:
    """`work` on the series of each group of bundles of `hourly`."""

    def worked(table: Table) -> Table:
        return work(series_of(table))

    groups = f.pmod(f.hash("bundle"), f.lit(GROUPS)).alias("group")
    return rows.groupBy(groups).applyInArrow(worked, answer)


def series_of(table: Table) -> Series:
    """The matrix of the rows of a group."""
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
