"""The written style, kept true by a test. Each failure names the file and says what to do instead.

Every module is parsed once for all of these tests, which run on one worker.
"""

from __future__ import annotations

import ast
import re
import subprocess
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.xdist_group("style")

ROOT = Path(__file__).parents[1]
PACKAGES = ("statechannel", "loadmanager", "api", "tests/simulator")

NAMELESS = {"utils", "util", "helpers", "helper", "common", "misc"}

PURE = (
    "statechannel/law/*.py",
    *(f"statechannel/runtime/{name}.py" for name in ("batching", "core", "proofs", "view_fold")),
    "loadmanager/cluster/membership.py",
    "loadmanager/broker/agent_core.py",
    "loadmanager/leader/core.py",
    "loadmanager/leader/quarantine/evidence.py",
    "loadmanager/consumers/allocation/*.py",
    "loadmanager/strategies/placement/**/*.py",
    "loadmanager/strategies/rebalancing/**/*.py",
    "loadmanager/strategies/registry.py",
    "loadmanager/strategies/splitting/*.py",
    "loadmanager/model/policies/**/*.py",
    "loadmanager/model/load.py",
    "loadmanager/model/load_report.py",
    "loadmanager/model/boundaries.py",
    "loadmanager/leader/advice/core.py",
    *(f"loadmanager/leader/plans/{name}.py" for name in ("advice", "plan", "proposals", "store", "table")),
    *(f"loadmanager/decisions/{name}.py" for name in ("codec", "record")),
    *(f"loadmanager/decisions/explaining/{name}.py" for name in (
        "broker", "bundle", "edits", "situation", "what_if", "whereabouts",
    )),
    *(f"loadmanager/consumers/backlog/{name}.py" for name in (
        "figures", "forecast", "in_flight", "metrics", "sampling",
    )),
    *(f"loadmanager/leader/rebalancing/{name}.py" for name in (
        "limits", "plan_runner",
    )),
    "loadmanager/documents/fold.py",
    *(f"loadmanager/settings/{name}.py" for name in ("names", "overlay")),
    *(f"loadmanager/channel/audit/{name}.py" for name in ("auditor", "digests")),
    "loadmanager/channel/revision.py",
    *(f"loadmanager/channel/owner/{name}.py" for name in ("election", "retention", "reading_back")),
)  # fmt: skip
AMBIENT_MODULES = {"asyncio", "socket", "threading", "random", "time", "datetime", "secrets", "uuid"}
PASSED_IN = {("random", "Random"), ("datetime", "timedelta"), ("datetime", "datetime")}
"""Types of values that come in as arguments; what makes one out of thin air is looked for in the calls."""
AMBIENT_CALL = re.compile(r"(time|random|secrets|uuid)\.\w+|(\w+\.)*(now|utcnow|today)|Random|os\.urandom|open")

COMMANDS = "api/loadmanager_api/cli/"
WRITERS = {"echo", "secho", "echo_via_pager"}

MACHINE_PATH = re.compile(r"/(?<![\w.:/-]/)(?:home|root|work|Users|mnt)/[a-z0-9_.-]+", re.IGNORECASE)
REGISTRY_HOST = re.compile(
    r"\b(?:pypi|test\.pypi|pythonhosted|golang|npmjs|crates|repo1\.maven|repo\.maven|ghcr|quay|gcr)"
    r"(?:\.[a-z]+)*\.(?:org|io|com)\b(?=[/\"'\s:]|$)|\bproxy\.[a-z]+\.(?:org|io)\b",
    re.IGNORECASE,
)
TOP_LEVEL = re.compile(r"\.(?:org|io|com)\b", re.IGNORECASE)
"""Every name of a registry has one: quick to look for."""
TEXT = {".py", ".md", ".txt", ".toml", ".yaml", ".yml", ".xml", ".cfg", ".ini", ".sh", ".log", ".json", ".html", ""}


def tracked() -> list[Path]:
    """Files under version control, and new ones that are not ignored."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def modules(*globs: str) -> list[Path]:
    return sorted({path for pattern in globs for path in ROOT.glob(pattern)})


def sources() -> list[Path]:
    return modules(*(f"{package}/**/*.py" for package in PACKAGES))


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


class Module(NamedTuple):
    """What these tests ask about one module."""

    documented: bool
    ambient: list[tuple[int, str]]
    """Of a core: where it reaches for clocks, chance, sockets or files."""
    writes: bool
    """It writes to the terminal by itself."""


@cache
def parsed() -> dict[Path, Module]:
    return {path: parse(path.read_text(encoding="utf-8"), short(path)) for path in sources()}


@pytest.fixture(scope="module", autouse=True)
def _parsed_before_the_first_test() -> None:
    parsed()


def parse(source: str, name: str) -> Module:
    tree = ast.parse(source, name)
    return Module(
        documented=not source or ast.get_docstring(tree) is not None,
        ambient=list(ambient(tree)) if ROOT / name in cores() else [],
        writes=any(isinstance(node, ast.Attribute) and node.attr in WRITERS for node in ast.walk(tree))
        if name.startswith(COMMANDS)
        else False,
    )


@cache
def cores() -> set[Path]:
    return set(modules(*PURE))


def ambient(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Where a module reaches for clocks, chance, sockets or files."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, a.name) for a in names if a.name.split(".")[0] in AMBIENT_MODULES)
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] in AMBIENT_MODULES:
                yield from ((node.lineno, f"{module}.{a.name}") for a in names if (module, a.name) not in PASSED_IN)
            case ast.Call(func=func) if AMBIENT_CALL.fullmatch(ast.unparse(func)):
                yield node.lineno, f"{ast.unparse(func)}()"
            case _:
                pass


def test_no_module_has_a_name_that_says_nothing():
    bad = [short(path) for path in sources() if NAMELESS & set(path.relative_to(ROOT).with_suffix("").parts)]
    assert not bad, "name these after what they decide or do"


def test_every_module_opens_with_a_docstring():
    bad = [short(path) for path, module in parsed().items() if not module.documented]
    assert not bad, "open these with what they decide or do, and what not"


def test_nothing_is_mocked_and_no_default_of_a_function_is_patched():
    """A test may set a constant, count calls that it passes on, or put a fault where no port can have it."""
    mock = re.compile(r"unittest[.]mock|import (?:\w+, )*mock\b|(?:Magic|Async)Mock\(|__defaults[_]_")
    found = [
        f"{short(path)}:{line_of(match)}: {match[0]}"
        for path in modules("tests/**/*.py")
        for match in mock.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found, "use the real thing or a simulated port; pass the argument"


def test_the_pure_modules_are_there():
    missing = [pattern for pattern in PURE if not modules(pattern)]
    assert not missing, "a core was renamed: follow it in PURE"


def test_commands_write_to_the_terminal_in_one_place():
    """Else what comes from outside would be obeyed by it: `loadmanager_api.cli.printing.echo` shows it."""
    assert {short(path) for path, module in parsed().items() if module.writes} == {
        "api/loadmanager_api/cli/printing.py"
    }


def test_a_core_reads_no_clock_throws_no_dice_and_opens_no_socket():
    found = [
        f"{short(path)}:{line} uses {what}: take it as an argument"
        for path in sorted(cores())
        for line, what in parsed()[path].ambient
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio",
        "import socket",
        "import random",
        "import os.path, time",
        "from time import monotonic",
        "from random import choice",
        "from asyncio import Task",
        "def f(): return datetime.now()",
        "def f(): return dt.datetime.utcnow()",
        "def f(): return time.time()",
        "def f(): return open('x')",
        "def f(): return Random()",
    ],
)
def test_what_a_core_may_not_do_is_seen(source: str):
    assert list(ambient(ast.parse(source)))


def test_what_a_core_may_do_is_let_through():
    source = (
        "from random import Random\ndef f(rng: Random, now_ms: int): return rng.random() + now_ms + len('time.time')"
    )
    assert not list(ambient(ast.parse(source)))


def texts() -> Iterator[tuple[Path, str]]:
    for path in tracked():
        if path.suffix in TEXT:
            yield path, path.read_text(encoding="utf-8", errors="replace")


def line_of(match: re.Match[str]) -> int:
    return match.string.count("\n", 0, match.start()) + 1


def test_no_file_names_a_path_of_somebodys_machine_or_a_package_registry():
    found = [
        f"{short(path)}:{line_of(match)}: {match[0]}"
        for path, text in texts()
        for pattern in (MACHINE_PATH, REGISTRY_HOST)
        if pattern is MACHINE_PATH or TOP_LEVEL.search(text)
        for match in pattern.finditer(text)
    ]
    assert not found, "use a relative path, or a setting that the environment gives"


@pytest.mark.parametrize(
    "parts", [("/ho", "me/ann/x"), ("see /wo", "rk/main"), ("'/ro", "ot/.venv'"), ("=/Us", "ers/ann")]
)
def test_a_path_of_somebodys_machine_is_seen(parts: tuple[str, str]):
    assert MACHINE_PATH.search("".join(parts))


@pytest.mark.parametrize(
    "parts",
    [
        ("https://py", "pi.org/simple"),
        ("https://files.python", "hosted.org/packages/x"),
        ("repo1.ma", "ven.org/maven2"),
        ("repo.ma", "ven.apache.org/maven2"),
        ("proxy.go", "lang.org"),
        ("registry.np", "mjs.org"),
        ("gh", "cr.io/owner/image"),
    ],
)
def test_a_package_registry_is_seen(parts: tuple[str, str]):
    assert REGISTRY_HOST.search("".join(parts))


def test_schemas_and_kinds_of_paths_are_let_through():
    for text in ("http://maven.apache.org/POM/4.0.0", "zookeeper://host:2181/work/root", "tests/work/x", "api.org.io"):
        assert not MACHINE_PATH.search(text)
        assert not REGISTRY_HOST.search(text)


# --- prose

PROSE_COLUMNS = 120
PROSE = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "docs/**/*.md")


def test_no_file_has_both_sides_of_a_merge():
    marks = re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE)
    assert not [f"{short(path)}:{line_of(mark)}" for path, text in texts() for mark in marks.finditer(text)]


def long_lines(text: str) -> Iterator[tuple[int, int]]:
    """Number and length of each line that is too long, outside of tables, blocks of code, and what cannot be broken."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        opening = re.match(r"\s*(```+|~~~+)", line)
        if opening is not None and not fence:
            fence = opening[1]
        elif fence:
            fence = "" if line.strip().startswith(fence) else fence
        elif len(line) > PROSE_COLUMNS and not line.lstrip().startswith("|") and not unbreakable(line):
            yield number, len(line)


def unbreakable(line: str) -> bool:
    """Whether it is one address, or a heading."""
    return line.startswith("#") or max(len(word) for word in line.split()) > PROSE_COLUMNS - len("  * ")


def test_lines_of_prose_are_short():
    pages = [page for pattern in PROSE for page in sorted(ROOT.glob(pattern))]
    assert len(pages) > 40
    found = [
        f"{short(page)}:{number}: {length} columns"
        for page in pages
        for number, length in long_lines(page.read_text(encoding="utf-8"))
    ]
    assert not found, f"wrap these at {PROSE_COLUMNS} columns"


def test_lines_of_sql_are_short():
    texts = [text for folder in ("loadmanager", "examples") for text in sorted((ROOT / folder).rglob("*.sql"))]
    assert len(texts) > 40
    found = [
        f"{short(text)}:{number}: {len(line)} columns"
        for text in texts
        for number, line in enumerate(text.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > PROSE_COLUMNS
    ]
    assert not found, f"wrap these at {PROSE_COLUMNS} columns"


LONG = "word " * 30


@pytest.mark.parametrize(
    "text", [LONG, f"* {LONG}", f"```\nx\n```\n{LONG}", f"| a |\n{LONG}", f"> {LONG}", f"    {LONG}"]
)
def test_a_long_line_of_prose_is_seen(text: str):
    assert list(long_lines(text))


@pytest.mark.parametrize(
    "text",
    [
        f"| {LONG} |",
        f"```\n{LONG}\n```",
        f"~~~text\n{LONG}\n```\n{LONG}\n~~~",
        f"## {LONG}",
        f"See\nhttps://x/{'y' * 120}",
    ],
)
def test_tables_code_and_addresses_may_be_long(text: str):
    assert not list(long_lines(text))


def test_no_name_of_a_test_holds_the_time(request: pytest.FixtureRequest) -> None:
    """Two workers that collect at different moments would collect different tests."""
    now_s = int(time.time())
    numbers = {
        (int(number), item.nodeid) for item in request.session.items for number in re.findall(r"\d+", item.nodeid)
    }
    week_s = 604_800
    near = [
        name for number, name in numbers
        for unit in (1, 10**3, 10**6, 10**9)
        if abs(number - now_s * unit) < week_s * unit
    ]  # fmt: skip
    assert not near, "compute the time within the test, not in its parameters"
