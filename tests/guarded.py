"""Tests that take minutes are run where the code that they guard changed since they last passed.

`pytest.mark.guards("history")` puts a test under a name of `GUARDED`: it guards that package, all modules that it
imports directly or not, the tests of that name, and the folder of that name, if there is one; with None instead of a
package, only its tests and `FOLDERS`. `tests/guarded.txt` holds, by name, the digest of that code as it was when all
tests under the name passed; comments and docstrings do not count. `make test` runs those whose code has another digest
by now, and writes the digests of those that passed; `make test-guarded` runs all of them, and nothing else.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType

import grimp
import pytest

GUARDED = {
    "helm": "loadmanager.settings",
    "kubernetes": None,
    "history": "loadmanager.history",
    "simulation": "loadmanager.simulation",
    "integration": "loadmanager_api",
    "pulsar": "loadmanager_api",
    "dashboard": "loadmanager_api",
    "observability": "loadmanager_api",
    "clients": "loadmanager_api",
    "fuzz": "loadmanager_api",
    "sidecar": "loadmanager_api.sidecar",
}
FOLDERS = {
    "history": ("bench/generating", "examples/history"),
    "kubernetes": ("helm", "stack/kubernetes"),
    "sidecar": ("examples/sidecar",),
}
"""Further folders. What the chart promises of a cluster is tried when the chart changes: the programs for it take
eleven minutes to build on a new machine."""
JOBS = "loadmanager_api.cli.load_history"
WITHOUT_JOBS = frozenset({"integration", "pulsar", "observability", "clients", "fuzz"})
"""No test under these names runs a command of `loadmanager history`, so they guard neither those nor what only those
import."""
ROOT = Path(__file__).parents[1]
PASSED = ROOT / "tests" / "guarded.txt"
_PASSED_HERE = set[str]()
"""Folders in which a test passed in this run: where all were skipped, for lack of a program, nothing was tried."""
CHOICES = ("none", "changed", "only", "all")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--guarded", choices=CHOICES, default="none", help="which tests marked `guards` to run as well")


@pytest.hookimpl(trylast=True)  # others give the marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen, which = set[str](), config.getoption("--guarded")
    if which != "none":
        chosen = changed() if which == "changed" else set(GUARDED)
    names = {item: _names(item) for item in items}
    kept = [item for item in items if (which != "only" if not names[item] else names[item] & chosen)]
    chosen_items = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen_items])
    items[:] = kept


def _names(item: pytest.Item) -> set[str]:
    """What the test guards; nothing for a slow one, which is run by hand only."""
    return set() if item.get_closest_marker("slow") else {marker.args[0] for marker in item.iter_markers("guards")}


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config, option = session.config, session.config.option
    some = (
        option.collectonly
        or option.keyword
        or option.markexpr != "not slow"
        or option.deselect
        or getattr(option, "lf", False)
        or config.args != ["tests"]
    )
    if option.guarded != "none" and not some and exitstatus == 0 and not hasattr(config, "workerinput"):
        passed = _written() | {name: digest(files_of(name)) for name in GUARDED if name in _PASSED_HERE}
        PASSED.write_text("".join(f"{name} {found}\n" for name, found in sorted(passed.items())))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed:
        _PASSED_HERE.add(report.nodeid.removeprefix("tests/").partition("/")[0])


def changed() -> set[str]:
    """The names whose code is not what it was when their tests passed."""
    passed = _written()
    return {name for name in GUARDED if passed.get(name) != digest(files_of(name))}


def _written() -> dict[str, str]:
    return dict(line.split() for line in PASSED.read_text().splitlines()) if PASSED.exists() else {}


def files_of(name: str) -> list[Path]:
    """What the tests under a name guard; the versions of dependencies too."""
    package = GUARDED[name]
    folders = [ROOT / "tests" / name, ROOT / name, *(ROOT / each for each in FOLDERS.get(name, ()))]
    if package is None:
        return _files_in(folders)
    imported = _graph(jobs=name not in WITHOUT_JOBS).find_upstream_modules(package, as_package=True)
    places = [_place(each) for each in imported]
    modules = [place / "__init__.py" if place.is_dir() else place.with_suffix(".py") for place in places]
    found = [*modules, *_files_in([_place(package), *folders]), ROOT / "requirements" / "dev.lock"]
    return found if name not in WITHOUT_JOBS else [file for file in found if _place(JOBS) not in file.parents]


def _files_in(folders: Iterable[Path]) -> list[Path]:
    found = (file for folder in folders for file in folder.rglob("*") if "node_modules" not in file.parts)
    return [file for file in found if file.is_file() and file.suffix != ".pyc"]


@cache
def _graph(*, jobs: bool) -> grimp.ImportGraph:
    packages = ("loadmanager", "statechannel", "loadmanager_api")
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=True, cache_dir=None)
    for package in graph.find_modules_that_directly_import("loadmanager.on_demand") - {"loadmanager"}:
        for module in graph.find_children(package):  # a package that imports them when their names are used
            graph.add_import(importer=package, imported=module)
    if not jobs:
        for module in {JOBS, *graph.find_descendants(JOBS)}:
            graph.remove_module(module)
    return graph


def _place(module: str) -> Path:
    path = module.replace(".", "/")
    return ROOT / "api" / path if module.startswith("loadmanager_api") else ROOT / path


def digest(files: Iterable[Path]) -> str:
    """Of these files, with their names."""
    found = hashlib.sha256()
    for file in sorted(files):
        found.update(f"{file.relative_to(ROOT)}\n".encode())
        found.update(_code_of(file.read_text()) if file.suffix == ".py" else file.read_bytes())
    return found.hexdigest()


@cache
def _code_of(text: str) -> bytes:
    """The digest of a file's code, without comments and docstrings."""
    tree = ast.parse(text)
    _strip(tree)
    return hashlib.sha256("".join(_told(compile(tree, "", "exec"))).encode()).digest()


def _strip(block: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """Take docstrings away."""
    nothing: list[ast.stmt] = [ast.Pass(lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)]
    block.body = [each for each in block.body if not _is_text(each)] or nothing
    for each in block.body:
        if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            _strip(each)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _told(code: CodeType) -> Iterator[str]:
    """What the compiler makes of it, but for line numbers."""
    yield repr((code.co_name, code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_flags))
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _told(each)
        else:
            yield repr(sorted(map(repr, each)) if isinstance(each, frozenset) else each)
