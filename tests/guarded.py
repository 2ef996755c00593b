"""Tests that take minutes are run where the code that they guard changed since they last passed.

`pytest.mark.guards("history")` puts a test under a name of `GUARDED`. `tests/guarded.txt` holds, by name, the digest of
that code as it was when all tests under the name passed; comments and docstrings do not count. `make test` runs those
whose code has another digest by now. `make test-guarded` runs all of them, and writes the digests if they pass.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from pathlib import Path

import pytest

GUARDED = {
    "history": ("loadmanager/history", "statechannel/law", "tests/history", "requirements/dev.lock"),
    "simulation": (
        *(f"loadmanager/{room}" for room in ("broker", "channel", "cluster", "leader", "model", "simulation")),
        "loadmanager/strategies/placement",
        "statechannel/law",
        "statechannel/runtime",
        "tests/simulation",
    ),
}
ROOT = Path(__file__).parents[1]
PASSED = ROOT / "tests" / "guarded.txt"
CHOICES = ("none", "changed", "only", "all")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--guarded", choices=CHOICES, default="none", help="which tests marked `guards` to run as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen, which = set[str](), config.getoption("--guarded")
    if which != "none":
        chosen = changed() if which == "changed" else set(GUARDED)
    names = {item: _names(item) for item in items}
    kept = [item for item in items if (which != "only" if not names[item] else names[item] & chosen)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def _names(item: pytest.Item) -> set[str]:
    """What the test guards; nothing for a slow one, which is run by hand only."""
    return set() if item.get_closest_marker("slow") else {marker.args[0] for marker in item.iter_markers("guards")}


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    whole = config.getoption("--guarded") == "only" and not config.option.keyword and config.args == ["tests"]
    if whole and exitstatus == 0 and not hasattr(config, "workerinput"):
        PASSED.write_text("".join(f"{name} {digest(paths)}\n" for name, paths in sorted(GUARDED.items())))


def changed() -> set[str]:
    """The names whose code is not what it was when their tests passed."""
    passed = dict(line.split() for line in PASSED.read_text().splitlines()) if PASSED.exists() else {}
    return {name for name, paths in GUARDED.items() if passed.get(name) != digest(paths)}


def digest(paths: Iterable[str]) -> str:
    """Of all files under these paths, with their names."""
    found = hashlib.sha256()
    for path in paths:
        files = [ROOT / path] if (ROOT / path).is_file() else (ROOT / path).rglob("*")
        for file in sorted(each for each in files if each.is_file() and "__pycache__" not in each.parts):
            found.update(f"{file.relative_to(ROOT)}\n".encode())
            found.update(_code(file.read_text()).encode() if file.suffix == ".py" else file.read_bytes())
    return found.hexdigest()


def _code(text: str) -> str:
    """The code without its comments and docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
