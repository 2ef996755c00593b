"""Strategies by name: the built-in ones, and those that installed packages bring by entry point.

A package brings one with, in its `pyproject.toml`, `[project.entry-points."GROUP"]` and a line
`its-name = "package.module:Class"`; the class is called without arguments. A built-in name can't be taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Generic, TypeVar, cast

T = TypeVar("T")


class Plugins(Generic[T]):
    """One kind of strategy: the setting that names it, its entry point group, and the built-in ones."""

    def __init__(self, setting: str, group: str, built_in: Mapping[str, Callable[[], T]]) -> None:
        self._setting = setting
        self._group = group
        self._built_in = built_in

    def names(self) -> list[str]:
        """Every name there is, sorted."""
        return sorted({*self._built_in, *entry_points(group=self._group).names})

    def make(self, name: str) -> T:
        """The strategy of this name. Raises ValueError with the names there are; whatever a foreign package raises."""
        built_in = self._built_in.get(name)
        if built_in is not None:
            return built_in()
        for entry in entry_points(group=self._group, name=name):
            return cast("Callable[[], T]", entry.load())()
        raise ValueError(f"{name!r} is no {self._setting}; set it to one of: {', '.join(self.names())}")
