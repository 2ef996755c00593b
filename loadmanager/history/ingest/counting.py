"""Counts what decoded records or a replay say, in one job before anything is written.

The counts say which tables get rows: an empty commit costs as much as any other. The same job decodes or replays; what
is persisted of it is there afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from loadmanager.history import decoding
from loadmanager.history.folding import Folded
from loadmanager.history.folding.rows import KINDS

UNREADABLE = "unreadable"
"""Counted beside the tables: records that no decoder could read."""


Count = Mapping[str, int]
"""Rows by table, of those that have any."""


def count_decoded(decoded: DataFrame) -> Count:
    """Count decoded records, without looking for repeats."""
    sizes = decoding.sizes() | {UNREADABLE: f.col("kind").isNotNull().cast("int")}
    [(rows,)] = decoded.agg(_each(sizes, f.sum)).collect()
    return _some(rows)


def count_folded(folded: Folded) -> Count:
    """Count the rows of a fold, by their kind."""
    lengths = {kind: f.size(f.col(kind)) for kind in KINDS}
    there = {name: f.when(length > 0, length) for name, length in lengths.items()}
    [(rows,)] = folded.lists.agg(_each(there, f.sum)).collect()
    return _some(rows)


def _some(rows: Mapping[str, int | None]) -> Count:
    return {name: number for name, number in rows.items() if number}


def _each(columns: Mapping[str, Column], aggregate: object) -> Column:
    """One aggregate of each column, by name."""
    pairs = [part for name, column in columns.items() for part in (f.lit(name), aggregate(column).cast("long"))]  # type: ignore[operator]
    return (f.create_map(*pairs) if pairs else f.create_map()).cast("map<string,bigint>")
