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
from pyspark.sql.pandas.types import from_arrow_schema

from loadmanager.history.analyses.analysis import Analysis, Options, Table, Tables
from loadmanager.history.analyses.texts import needs, relation
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
