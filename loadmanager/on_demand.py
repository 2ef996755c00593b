"""Names of a package that are imported when they are first used, so that unused names cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_demand(package: str, home_of: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package, given the module of each name."""

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home_of[name]), name)

    return load
