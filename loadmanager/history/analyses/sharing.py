"""Shared parts of several analyses, planned and computed once for all of them.

Plans are shared too: Spark analyses a whole plan again with each step on it, up to half a second for a composed one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from contextlib import ExitStack, contextmanager
from functools import wraps
from threading import Lock
from typing import TypeVarTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from loadmanager.history.analyses.analysis import Tables

Args = TypeVarTuple("Args")


class Shared:
    """Tables, with results cached for functions that are marked `shareable`; calls `keep` for each when it is made.

    Thread-safe: of two calls for the same result, one waits for the other.
    """

    def __init__(self, tables: Tables, keep: Callable[[DataFrame], None]) -> None:
        self._tables = tables
        self._keep = keep
        self._made: dict[tuple[Hashable, ...], DataFrame] = {}
        self._turns: dict[tuple[Hashable, ...], Lock] = {}

    def __call__(self, name: str) -> DataFrame:
        """The table."""
        return self._get((name,), lambda: self._tables(name))

    def of(self, make: Callable[[Tables, *Args], DataFrame], *args: *Args) -> DataFrame:
        """What `make` makes of these tables, from the cache if it was made before."""
        return self._get((make, *args), lambda: self._kept(make(self, *args)))

    def _get(self, what: tuple[Hashable, ...], make: Callable[[], DataFrame]) -> DataFrame:
        with self._turns.setdefault(what, Lock()):
            if what not in self._made:
                self._made[what] = make()
            return self._made[what]

    def _kept(self, rows: DataFrame) -> DataFrame:
        self._keep(rows)
        return rows


def shareable(make: Callable[[Tables, *Args], DataFrame]) -> Callable[[Tables, *Args], DataFrame]:
    """Marks a function that builds a DataFrame from tables: with `Shared`, it runs once for the same arguments.

    Arguments must be hashable. Shareable functions that it calls are cached before it.
    """

    @wraps(make)
    def made(tables: Tables, *args: *Args) -> DataFrame:
        return tables.of(make, *args) if isinstance(tables, Shared) else make(tables, *args)

    return made


@contextmanager
def shared(tables: Tables) -> Generator[Tables]:
    """The tables to give to analyses in this context: `shareable` results are computed once and persisted until its
    end."""
    with ExitStack() as kept:

        def keep(rows: DataFrame) -> None:
            rows.persist(StorageLevel.MEMORY_AND_DISK)
            kept.callback(rows.unpersist)

        yield Shared(tables, keep)
