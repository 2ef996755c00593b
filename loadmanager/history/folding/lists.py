"""Rows of several tables in one stream from Python to Spark, each kind in a column of lists; absent kinds are free.

A row is a plain tuple in the order of its schema; times are whole microseconds since 1970, days whole days, which Arrow
takes without conversion. Some thousand rows at once become columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, BinaryType, StructField, StructType

ROWS_AT_ONCE = 8_192
"""At most about so many rows are kept in Python before they become Arrow."""

ROWS_A_LIST = 1_024
"""Rows in one list; but 1 where rows have bytes in them, which may be many."""

Row = tuple[object, ...]

ArrowBatch = Any
"""A `pyarrow.RecordBatch`: pyarrow says nothing about its types."""


def lists_of(kinds: Mapping[str, StructType]) -> StructType:
    """The schema of the stream; `f.inline` of a column gives that kind's rows."""
    return StructType([StructField(kind, ArrayType(schema)) for kind, schema in kinds.items()])


class Rows:
    """Rows of all kinds on their way to Arrow: append to `rows[kind]`."""

    def __init__(self, kinds: Mapping[str, StructType]) -> None:
        self._kinds = kinds
        self._rows: dict[str, list[Row]] = {kind: [] for kind in kinds}

    def __getitem__(self, kind: str) -> list[Row]:
        return self._rows[kind]

    @property
    def full(self) -> bool:
        """Whether they should be drained before more come."""
        return sum(map(len, self._rows.values())) >= ROWS_AT_ONCE

    def drain(self) -> Iterator[ArrowBatch]:
        """All rows, one batch per kind; empties this object."""
        for kind, rows in self._rows.items():
            if rows:
                has_bytes = any(isinstance(field.dataType, BinaryType) for field in self._kinds[kind].fields)
                yield self._listed(kind, rows, 1 if has_bytes else ROWS_A_LIST)
                rows.clear()

    def _listed(self, kind: str, rows: Sequence[Row], a_list: int) -> ArrowBatch:
        edges = pa.array([*range(0, len(rows), a_list), len(rows)], pa.int32())
        lists = pa.ListArray.from_arrays(edges, structs(self._kinds[kind], rows))
        columns = [
            lists if name == kind else pa.nulls(len(lists), pa.list_(to_arrow_type(schema)))
            for name, schema in self._kinds.items()
        ]
        return pa.RecordBatch.from_arrays(columns, names=list(self._kinds))


def structs(schema: StructType, rows: Sequence[Row]) -> Any:
    """Rows as one Arrow array of the schema."""
    fields = list(to_arrow_type(schema))
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields)
