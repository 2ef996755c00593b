"""The names that a setting may have: split algorithms, and strategies, built in or from installed packages.

A package provides a strategy with `[project.entry-points."GROUP"]` in its `pyproject.toml` and a line `its-name =
"package.module:Class"`; the class is called without arguments. Built-in names take precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from importlib.metadata import entry_points
from typing import Generic, TypeVar, cast


class Algorithm(StrEnum):
    """The algorithms that choose cuts."""

    RANGE = "range_equally_divide"
    TOPIC_COUNT = "topic_count_equally_divide"
    SPECIFIED = "specified_positions_divide"
    FLOW_OR_QPS = "flow_or_qps_equally_divide"
    LOAD = "load_equally_divide"
    HOT_KEY = "hot_key_divide"


BY_KEYS = frozenset({Algorithm.TOPIC_COUNT, Algorithm.FLOW_OR_QPS, Algorithm.LOAD, Algorithm.HOT_KEY})
"""Algorithms that only the owner can run: its service knows the positions and loads of keys."""

AUTOMATIC = tuple(each.value for each in Algorithm if each is not Algorithm.SPECIFIED)
"""Algorithms that need no given positions."""


T = TypeVar("T")


class Names:
    """The names that a setting may have: the built-in strategies, and those of an entry point group."""

    def __init__(self, setting: str, group: str, *built_in: str) -> None:
        self.setting = setting
        self.group = group
        self.built_in = frozenset(built_in)

    def all(self) -> list[str]:
        """Every available name, sorted."""
        return sorted({*self.built_in, *entry_points(group=self.group).names})


PLACEMENT_NAMES = Names(
    "placement", "loadmanager.placements", "least-loaded", "least-resource-usage", "power-of-two", "rendezvous"
)
BALANCING_NAMES = Names(
    "balancing_strategy", "loadmanager.strategies", "plan", "transfer", "threshold", "uniform", "overload", "avg"
)


class Plugins(Generic[T]):
    """The strategies behind these names. Raises ValueError if `built_in` differs from the built-in names."""

    def __init__(self, names: Names, built_in: Mapping[str, Callable[[], T]]) -> None:
        if names.built_in != frozenset(built_in):
            raise ValueError(f"{names.setting}: {sorted(names.built_in)} are named, {sorted(built_in)} are there")
        self.names = names.all
        self._names = names
        self._built_in = built_in

    def make(self, name: str) -> T:
        """A new strategy of this name. Raises ValueError with the available names, and what its package raises."""
        built_in = self._built_in.get(name)
        if built_in is not None:
            return built_in()
        for entry in entry_points(group=self._names.group, name=name):
            return cast("Callable[[], T]", entry.load())()
        raise ValueError(f"{name!r} is not a known {self._names.setting}; set it to one of: {', '.join(self.names())}")
