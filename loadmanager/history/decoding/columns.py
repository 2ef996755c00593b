"""Values of records as Arrow columns, all records of a batch at once. Independent of any format.

A `Shape` says what a record becomes: named columns, each a function of the records. A value that its column cannot hold
(a number beyond 64 bits) makes its record unreadable, and no other. `plausible` has checked times before.
"""

# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false
# (pyarrow ships no types)
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

TIME = pa.timestamp("us", "UTC")

Column = Callable[[Sequence[Any]], pa.Array]
Value = Callable[[Any], Any]
"""A record's value for one column."""


class Shape(msgspec.Struct, frozen=True):
    """What records become: a struct of columns."""

    columns: Mapping[str, Column]

    def of(self, records: Sequence[Any]) -> pa.StructArray:
        """One row per record. Raises OverflowError, TypeError, ValueError for a value that its column cannot hold."""
        arrays = [column(records) for column in self.columns.values()]
        return pa.StructArray.from_arrays(arrays, names=list(self.columns))

    def refusal(self, record: Any) -> str | None:
        """Why this record cannot be a row, None if it can."""
        for name, column in self.columns.items():
            try:
                column([record])
            except (OverflowError, TypeError, ValueError) as error:
                return f"{name} cannot be held by its column: {error}"
        return None


def plain(kind: pa.DataType, value: Value) -> Column:
    """Values as they are."""
    return lambda records: pa.array(list(map(value, records)), kind)


number, small = partial(plain, pa.int64()), partial(plain, pa.int32())
decimal, text, flag = partial(plain, pa.float64()), partial(plain, pa.string()), partial(plain, pa.bool_())


def attributes(column: Callable[[Value], Column], *names: str) -> dict[str, Column]:
    """Columns of one kind, each of the attribute of its name."""
    return {name: column(attrgetter(name)) for name in names}


def time(value_ms: Value) -> Column:
    """Milliseconds since 1970."""
    return lambda records: pa.array([value_ms(record) * 1000 for record in records], pa.int64()).cast(TIME)


def mapping(value: Value) -> Column:
    """Names with numbers."""
    kind = pa.map_(pa.string(), pa.float64())
    return lambda records: pa.array([list(value(record).items()) for record in records], kind)


def inside(value: Value, shape: Shape) -> Column:
    """A struct within the struct."""
    return lambda records: shape.of(list(map(value, records)))


def listed(values: Value, shape: Shape, numbered: str = "") -> Column:
    """A list of structs; `numbered` names an additional first column that counts from 0."""

    def column(records: Sequence[Any]) -> pa.Array:
        found = list(map(values, records))
        ends = np.zeros(len(found) + 1, np.int32)
        np.cumsum(list(map(len, found)), out=ends[1:])
        flat = shape.of(list(chain.from_iterable(found)))
        if numbered:
            numbers = np.arange(ends[-1], dtype=np.int32) - np.repeat(ends[:-1], np.diff(ends))
            flat = pa.StructArray.from_arrays([pa.array(numbers), *flat.flatten()], [numbered, *shape.columns])
        return pa.ListArray.from_arrays(pa.array(ends), flat)

    return column


class Texts(dict[Any, str]):
    """Cached texts of hashable things; empties itself at `most` entries."""

    def __init__(self, made: Callable[[Any], str], most: int = 65_536) -> None:
        super().__init__()
        self._made = made
        self._most = most

    def __missing__(self, thing: Any) -> str:
        if len(self) >= self._most:
            self.clear()
        self[thing] = made = self._made(thing)
        return made


def repeated(made: Callable[[Any], str], of: Value) -> Column:
    """Texts of values that recur, such as names: each is made once."""
    texts = Texts(made)
    return lambda records: pa.array(list(map(texts.__getitem__, map(of, records))), pa.string())
