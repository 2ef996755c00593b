"""Arrow batches of the tables' schemas from numpy columns: what is not given is null."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema

from loadmanager.history.schemas import TABLES

Batch = Any
"""A pyarrow.RecordBatch; pyarrow ships no types."""
Ints = NDArray[np.int64]
DAY_MS = 86_400_000


@cache
def schema_of(table: str) -> Any:
    """The Arrow schema of a table."""
    return to_arrow_schema(TABLES[table])


def batch(table: str, rows: int, columns: Mapping[str, Any]) -> Batch:
    """One batch. Columns are numpy arrays, Arrow arrays, or one value for all rows."""
    schema = schema_of(table)
    arrays = [_column(columns.get(field.name), field.type, rows) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def times(at_ms: Ints) -> Any:
    """Timestamps."""
    return pa.array(at_ms * 1000).cast(pa.timestamp("us", "UTC"))


def dates(at_ms: Ints) -> Any:
    """Their UTC dates."""
    return pa.array((at_ms // DAY_MS).astype(np.int32)).cast(pa.date32())


def picked(names: Sequence[str | None], rows: Ints) -> Any:
    """The names in these rows; null for -1."""
    return pa.array([*names, None], pa.string()).take(pa.array(np.where(rows < 0, len(names), rows)))


def partition_of(names: Sequence[str], partitions: int) -> Ints:
    """The partition of each name, by its CRC-32."""
    return np.array([zlib.crc32(name.encode()) % partitions for name in names], np.int64)


def _column(value: Any, kind: Any, rows: int) -> Any:
    if value is None:
        return pa.nulls(rows, kind)
    if isinstance(value, (str, int, float, bool)):
        return pa.repeat(pa.scalar(value, kind), rows)
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return value.cast(kind) if value.type != kind else value
    return pa.array(value, kind, from_pandas=True)
