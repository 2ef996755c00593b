"""Runs several analyses of one window: some at a time, and what they have in common once."""

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
"""An analysis of little data is mostly planning, which takes one thread: others may have the cores meanwhile."""


def answers(
    chosen: Sequence[Analysis],
    tables: Tables,
    window: Window,
    options: Options,
    take: Callable[[DataFrame], T],
    at_once: int = AT_ONCE,
) -> Generator[T]:
    """What `take` makes of each answer, in the order of `chosen`. It is called in threads, and must not keep a plan.

    What it raises is raised when its turn has come; what has not begun is given up then.
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
