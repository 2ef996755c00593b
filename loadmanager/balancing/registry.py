"""Balancing strategies by name: the built-in ones, and those that installed packages bring by entry point.

A package brings one with, in its `pyproject.toml`, `[project.entry-points."loadmanager.strategies"]` and a line
`its-name = "package.module:Class"`; the class is called without arguments. A built-in name can't be taken.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import cast

from loadmanager.balancing.difference import Difference
from loadmanager.balancing.strategy import Strategy

GROUP = "loadmanager.strategies"
_BUILT_IN: dict[str, Callable[[], Strategy]] = {Difference.name: Difference}


def strategy_names() -> list[str]:
    """Every name that `strategy` knows, sorted."""
    return sorted({*_BUILT_IN, *entry_points(group=GROUP).names})


def strategy(name: str) -> Strategy:
    """The strategy of this name. Raises ValueError with the names there are; whatever a foreign package raises."""
    built_in = _BUILT_IN.get(name)
    if built_in is not None:
        return built_in()
    for entry in entry_points(group=GROUP, name=name):
        return cast("Callable[[], Strategy]", entry.load())()
    known = ", ".join(strategy_names())
    raise ValueError(f"there is no balancing strategy {name!r}; set `balancing_strategy` to one of: {known}")
