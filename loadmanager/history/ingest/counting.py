"""Counts what decoded records or a replay say, in one job before anything is written.

The counts say which tables get rows, and where partitions stand: an empty commit costs as much as any other. The same
job decodes or replays; what is persisted of it is there afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from loadmanager.history import decoding
from loadmanager.history.folding import Folded, Position
from loadmanager.history.folding.rows import KINDS

UNREADABLE = "unreadable"
"""Counted beside the tables: records that no decoder could read."""


class Count(msgspec.Struct, frozen=True):
    """Rows by table; the new position of each partition that moved on."""

    rows: Mapping[str, int]
    positions: Mapping[int, Position] = {}

    def any(self, name: str) -> bool:
        """Whether there are rows of a table."""
        return self.rows.get(name, 0) > 0


def count_decoded(decoded: DataFrame) -> Count:
    """Count decoded records, without looking for repeats."""
    sizes = decoding.sizes() | {UNREADABLE: f.col("kind").isNotNull().cast("int")}
    [(rows,)] = decoded.agg(_each(sizes, f.sum)).collect()
    return Count(_known(rows))


def count_folded(folded: Folded) -> Count:
    """Count the rows of a fold, by their kind."""
    heads = f.filter("state", lambda row: row.chunk == 0)
    states = f.transform(heads, lambda row: f.struct(row.partition, row.batch, row.next_offset, row.held))
    lengths = {kind: f.size(f.col(kind)) for kind in KINDS}
    there = {name: f.when(length > 0, length) for name, length in lengths.items()}
    [(rows, moved)] = folded.lists.agg(_each(there, f.sum), f.flatten(f.collect_list(states))).collect()
    return Count(_known(rows), positions={partition: Position(*position) for partition, *position in moved})


def _known(rows: Mapping[str, int | None]) -> Mapping[str, int]:
    return {name: number or 0 for name, number in rows.items()}


def _each(columns: Mapping[str, Column], aggregate: object) -> Column:
    """One aggregate of each column, by name."""
    pairs = [part for name, column in columns.items() for part in (f.lit(name), aggregate(column).cast("long"))]  # type: ignore[operator]
    return (f.create_map(*pairs) if pairs else f.create_map()).cast("map<string,bigint>")
