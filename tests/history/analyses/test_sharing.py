"""What analyses share is made once for the same arguments, whoever asks, and kept from then on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest

from loadmanager.history.analyses.analysis import Shared

ASKING = 8
A_WHILE_S = 0.3


class Made:
    """Counts what is built; any value does for a DataFrame."""

    def __init__(self) -> None:
        self.tables: list[str] = []
        self.sums: list[int] = []
        self.kept: list[object] = []

        def sums(tables: Any, hours: int) -> Any:
            self.sums.append(hours)
            return (tables("minutes"), hours)

        def means(tables: Any, hours: int) -> Any:
            return ("mean", self.sum(tables, hours))

        self.sum: Callable[[Shared, int], Any] = lambda tables, hours: tables.of(sums, hours)
        self.mean: Callable[[Shared, int], Any] = lambda tables, hours: tables.of(means, hours)

    def table(self, name: str) -> Any:
        self.tables.append(name)
        return name

    def shared(self) -> Shared:
        return Shared(self.table, self.kept.append)


def test_the_same_is_made_once_and_other_arguments_make_another() -> None:
    made = Made()
    tables = made.shared()
    assert made.mean(tables, 1) == made.mean(tables, 1) == ("mean", ("minutes", 1))
    assert made.sum(tables, 2) == ("minutes", 2)
    assert (made.tables, made.sums) == (["minutes"], [1, 2])


def test_what_something_is_made_of_is_kept_before_it() -> None:
    made = Made()
    made.mean(made.shared(), 1)
    assert made.kept == [("minutes", 1), ("mean", ("minutes", 1))]


def test_of_threads_that_want_the_same_one_makes_it() -> None:
    made, together, another = Made(), Barrier(ASKING), Barrier(2)

    def slowly(name: str) -> Any:
        with suppress(BrokenBarrierError):
            another.wait(A_WHILE_S)  # it is there long enough for a second one that nothing holds back
        return made.table(name)

    tables = Shared(slowly, made.kept.append)

    def ask(_: int) -> Any:
        together.wait()
        return made.mean(tables, 1)

    with ThreadPoolExecutor(ASKING) as pool:
        assert set(pool.map(ask, range(ASKING))) == {("mean", ("minutes", 1))}
    assert (made.tables, made.sums, len(made.kept)) == (["minutes"], [1], 2)


def test_what_fails_to_be_made_is_tried_again() -> None:
    failures = [OSError("away")]

    def table(name: str) -> Any:
        if failures:
            raise failures.pop()
        return name

    made, tables = Made(), Shared(table, lambda _: None)
    with pytest.raises(OSError, match="away"):
        made.sum(tables, 1)
    assert made.sum(tables, 1) == ("minutes", 1)
