"""What several analyses are made of, planned and worked out once for all of them.

Plans too: Spark looks at the whole of one again with each step of it, and takes up to half a second for one that is
made of others.
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
    """Tables, with what was made of them by functions that are marked `shareable`; `keep` is called for each of these
    when it is made. Takes calls of several threads: of two that want the same, one waits for the other."""

    def __init__(self, tables: Tables, keep: Callable[[DataFrame], None]) -> None:
        self._tables = tables
        self._keep = keep
        self._made: dict[tuple[Hashable, ...], DataFrame] = {}
        self._turns: dict[tuple[Hashable, ...], Lock] = {}

    def __call__(self, name: str) -> DataFrame:
        """The table."""
        return self._get((name,), lambda: self._tables(name))

    def of(self, make: Callable[[Tables, *Args], DataFrame], *args: *Args) -> DataFrame:
        """What `make` makes of these tables, or has made of them before."""
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
    """A function that builds a DataFrame of tables: of those of `Shared` a single time for the same arguments, which
    have to be hashable. What it is made of itself is made and kept before it."""

    @wraps(make)
    def made(tables: Tables, *args: *Args) -> DataFrame:
        return tables.of(make, *args) if isinstance(tables, Shared) else make(tables, *args)

    return made


@contextmanager
def shared(tables: Tables) -> Generator[Tables]:
    """The tables to give to analyses within it: what is marked `shareable` is worked out for the first that needs it,
    and kept for the others. Spark knows by itself which part of a plan it keeps."""
    with ExitStack() as kept:

        def keep(rows: DataFrame) -> None:
            rows.persist(StorageLevel.MEMORY_AND_DISK)
            kept.callback(rows.unpersist)

        yield Shared(tables, keep)
