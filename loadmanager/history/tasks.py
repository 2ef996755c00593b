"""What Python tasks of Spark share: rows on their way to Arrow, keys dealt out evenly, and no search for cycles.

Rows of several tables go from Python to Spark in one stream, each kind in a column of lists; absent kinds are free. A
row is a plain tuple in the order of its schema; times are whole microseconds since 1970, days whole days, which Arrow
takes without conversion. Some thousand rows at once become columns.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
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


_WORD = 0xFFFFFFFF
_SEED = 42


def spread(rows: DataFrame, key: Column, tasks: int) -> DataFrame:
    """The rows in `tasks` tasks: equal `key`s (whole numbers from 0) together, neighbouring keys in different tasks."""
    numbers = f.array(*(f.lit(number) for number in numbers_of(tasks)))
    return rows.repartition(tasks, f.element_at(numbers, (key % tasks + 1).cast("int")))


@lru_cache(maxsize=16)
def numbers_of(tasks: int) -> tuple[int, ...]:
    """For every task the lowest number that Spark's hash puts there."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < tasks:
        found.setdefault(_murmur3(number) % tasks, number)
        number += 1
    return tuple(found[task] for task in range(tasks))


def _murmur3(number: int) -> int:
    """Spark's `hash` of a 32-bit number: signed; its remainder is taken as Python does."""
    mixed = _rotated(number * 0xCC9E2D51 & _WORD, 15) * 0x1B873593 & _WORD
    hashed = _rotated(_SEED ^ mixed, 13) * 5 + 0xE6546B64 & _WORD
    hashed ^= 4
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & _WORD
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & _WORD
    hashed ^= hashed >> 16
    return hashed - (1 << 32) if hashed >> 31 else hashed


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _WORD


@contextmanager
def unsearched() -> Generator[None]:
    """No cycle collection in this context; reference counts still free objects."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
