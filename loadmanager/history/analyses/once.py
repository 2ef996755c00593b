"""DataFrames that several analyses are made of, built once: Spark looks at the whole plan again with each step of it,
and takes up to half a second for one that is made of others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import TypeVarTuple

from pyspark.sql import DataFrame

from loadmanager.history.analyses.analysis import Tables

Args = TypeVarTuple("Args")


class Once:
    """Tables, with what was made of them by functions that are marked `once`. Takes calls of several threads."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._made: dict[tuple[Hashable, ...], DataFrame] = {}

    def __call__(self, name: str) -> DataFrame:
        """The table."""
        return self.get(name, make=lambda: self._tables(name))

    def get(self, *what: Hashable, make: Callable[[], DataFrame]) -> DataFrame:
        """What is known by these words; made now if this is the first time."""
        if what not in self._made:
            self._made.setdefault(what, make())  # of two threads at the same time the first one counts
        return self._made[what]


def once(make: Callable[[Tables, *Args], DataFrame]) -> Callable[[Tables, *Args], DataFrame]:
    """A function that builds a DataFrame of tables: of those of `Once` a single time for the same arguments."""

    @wraps(make)
    def made(tables: Tables, *args: *Args) -> DataFrame:
        if not isinstance(tables, Once):
            return make(tables, *args)
        return tables.get(make, *args, make=lambda: make(tables, *args))

    return made
