"""Runs several analyses of one window in parallel, and computes once what they share."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from pyspark.sql import DataFrame

from loadmanager.history.analyses.analysis import Analysis, Options, Tables
from loadmanager.history.analyses.sharing import shared
from loadmanager.history.lake import Window

T = TypeVar("T")
AT_ONCE = 4
"""Analyses at the same time: one over little data is mostly planning, which takes one thread and leaves cores free."""


def answers(
    chosen: Sequence[Analysis],
    tables: Tables,
    window: Window,
    options: Options,
    take: Callable[[DataFrame], T],
    at_once: int = AT_ONCE,
) -> Generator[T]:
    """What `take` makes of each answer, in the order of `chosen`.

    `take` is called in threads, and must not keep a plan. An error of `take` is raised when its turn comes; what has
    not begun then is cancelled.
    """
    with shared(tables) as common, ThreadPoolExecutor(at_once) as pool:
        pending = [pool.submit(partial(_answer, each, common, window, options, take)) for each in chosen]
        try:
            for future in pending:
                yield future.result()
        finally:
            for future in pending:
                future.cancel()


def _answer(analysis: Analysis, tables: Tables, window: Window, options: Options, take: Callable[[DataFrame], T]) -> T:
    return take(analysis.ordered(tables, window, options))
