"""Placement strategies by name: the built-in ones, and those that installed packages bring by entry point.

A package brings one with, in its `pyproject.toml`, `[project.entry-points."loadmanager.placements"]` and a line
`its-name = "package.module:Class"`; the class is called without arguments. A built-in name can't be taken.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import cast

from loadmanager.assignment.least_loaded import LeastLoaded
from loadmanager.assignment.placement import Placement

GROUP = "loadmanager.placements"
_BUILT_IN: dict[str, Callable[[], Placement]] = {LeastLoaded.name: LeastLoaded}


def placement_names() -> list[str]:
    """Every name that `placement` knows, sorted."""
    return sorted({*_BUILT_IN, *entry_points(group=GROUP).names})


def placement(name: str) -> Placement:
    """The strategy of this name. Raises ValueError with the names there are; whatever a foreign package raises."""
    built_in = _BUILT_IN.get(name)
    if built_in is not None:
        return built_in()
    for entry in entry_points(group=GROUP, name=name):
        return cast("Callable[[], Placement]", entry.load())()
    known = ", ".join(placement_names())
    raise ValueError(f"there is no placement strategy {name!r}; set `placement` to one of: {known}")
