"""Strategies of a package that is installed for one test, with entry points as any other package has them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

MODULE = "strategies_of_a_test"


def install(
    monkeypatch: pytest.MonkeyPatch,
    directory: Path,
    strategies: Mapping[str, Callable[[], object]],
    group: str = "loadmanager.strategies",
) -> None:
    """Install a package in `directory` that provides these strategies, by name, until the test ends."""
    names = {name: f"made_{number}" for number, name in enumerate(strategies)}
    module = ModuleType(MODULE)
    for name, attribute in names.items():
        module.__dict__[attribute] = strategies[name]
    monkeypatch.setitem(sys.modules, MODULE, module)
    package = directory / "strategies_of_a_test-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: strategies-of-a-test\nVersion: 1.0\n")
    lines = [f"{name} = {MODULE}:{attribute}" for name, attribute in names.items()]
    (package / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    monkeypatch.syspath_prepend(directory)
