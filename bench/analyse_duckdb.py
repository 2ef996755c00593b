"""The same questions in DuckDB, on the same Parquet: what a single-machine engine needs for them.

Each takes a connection with one view a table, and answers as the analysis of that name does, with the defaults and
without a window: the same columns, the same rows, guards included. Where the analysis ends in numpy (seasons,
forecasts, the regression), so does this. `groups` is not among them: histories that are generated have none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from bench.analyse_duckdb_loads import BENEFIT, BUNDLE_COUNT, CAPACITY, HOT_BUNDLES, HOURS, IMBALANCE, SKEW
from loadmanager.history.analyses.analysis import DEFAULTS
from loadmanager.history.analyses.capacity import ARROW, costs_of
from loadmanager.history.analyses.forecast import forecast_of
from loadmanager.history.analyses.forecast_error import errors_of
from loadmanager.history.analyses.hours import Series
from loadmanager.history.analyses.seasonality import found
from loadmanager.history.analyses.texts import TEXTS, prepare_duckdb
from loadmanager.history.lake import ALWAYS

Table = Any
"""A pyarrow.Table; pyarrow ships no types."""
Answer = Callable[[duckdb.DuckDBPyConnection], Table]
RELATIVE, ABSOLUTE = 1e-6, 1e-9
"""How far figures may be apart: sums in another order; the second as a part of the column's largest."""


def of_sql(sql: str) -> Answer:
    """Runs it, and takes the whole answer as Arrow."""

    def run(db: duckdb.DuckDBPyConnection) -> Table:
        return db.sql(sql).to_arrow_table()

    return run


def of_text(name: str) -> Answer:
    """Runs the analysis's own text."""

    def run(db: duckdb.DuckDBPyConnection) -> Table:
        prepare_duckdb(db, name, ALWAYS, DEFAULTS)
        return db.sql(f"SELECT * FROM {name}").to_arrow_table()

    return run


def by_series(sql: str, work: Callable[[Series], Table]) -> Answer:
    """Numpy on the hourly series of all bundles."""

    def run(db: duckdb.DuckDBPyConnection) -> Table:
        table = db.sql(sql).to_arrow_table()
        names, at = np.unique(table.column("bundle").to_numpy(), return_inverse=True)
        first, last = table.column("first")[0].as_py(), table.column("last")[0].as_py()
        values = np.full((len(names), last - first + 1), np.nan)
        values[at, table.column("hour").to_numpy() - first] = table.column("load").to_numpy()
        return work(Series(names.tolist(), first, values))

    return run


def capacity(db: duckdb.DuckDBPyConnection) -> Table:
    """The normal equations in SQL, and the same regression."""
    kinds = db.sql(CAPACITY).to_arrow_table().to_pylist()
    return pa.Table.from_pylist([row for kind in kinds for row in costs_of(kind)], schema=ARROW)


ANSWERS: dict[str, Answer] = {
    "imbalance": of_sql(IMBALANCE),
    "hot_bundles": of_sql(HOT_BUNDLES),
    "skew": of_sql(SKEW),
    "seasonality": by_series(HOURS.format(rest=""), found),
    "forecast": by_series(
        HOURS.format(rest="WHERE bundle NOT IN (FROM gone)"), lambda series: forecast_of(series, DEFAULTS.horizon_h)
    ),
    "forecast_error": by_series(HOURS.format(rest="WHERE bundle NOT IN (FROM gone)"), errors_of),
    "benefit": of_sql(BENEFIT),
    "capacity": capacity,
    "bundle_count": of_sql(BUNDLE_COUNT),
} | {name: of_text(name) for name, text in TEXTS.items() if text.order}


def difference(ours: Table, theirs: Table, order: tuple[str, ...]) -> str:
    """What is not equal, in words; empty where all is."""
    if ours.num_rows != theirs.num_rows:
        return f"{ours.num_rows} rows and {theirs.num_rows}"
    if set(ours.column_names) != set(theirs.column_names):
        return f"columns {sorted(set(ours.column_names) ^ set(theirs.column_names))}"
    ours, theirs = (_sorted(table, order) for table in (ours, theirs))
    wrong = [
        text for name in ours.column_names if (text := _run_blocking(name, ours.column(name), theirs.column(name)))
    ]
    return "; ".join(wrong)


def _sorted(table: Table, order: tuple[str, ...]) -> Table:
    exact = [name for name in table.column_names if name not in order and _is_exact(table.column(name).type)]
    return table.sort_by([(name, "ascending") for name in (*order, *sorted(exact))])


def _is_exact(kind: Any) -> bool:
    return not (pa.types.is_floating(kind) or pa.types.is_nested(kind))


def _run_blocking(name: str, ours: Any, theirs: Any) -> str:
    if pa.types.is_nested(ours.type):
        ours, theirs = (pa.chunked_array([each.combine_chunks().flatten()]) for each in (ours, theirs))
    if pa.types.is_floating(ours.type):
        one, other = (each.cast(pa.float64()).to_numpy() for each in (ours, theirs))
        if len(one) != len(other):
            return f"{name}: {len(one)} values and {len(other)}"
        scale = np.nanmax(np.abs(other), initial=0.0)
        same = np.isclose(one, other, RELATIVE, ABSOLUTE * scale, equal_nan=True)
    else:
        one, other = (np.array(_plain(each).to_pylist(), object) for each in (ours, theirs))
        same = one == other
    if same.all():
        return ""
    at = int(np.flatnonzero(~same)[0])
    return f"{name}: {int((~same).sum())} differ, as {one[at]} and {other[at]}"


def _plain(column: Any) -> Any:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return column.cast(pa.int64()) if pa.types.is_integer(column.type) else column
