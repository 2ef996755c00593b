"""What a change has to pass besides the fast tests: `python -m tests.landing`, the last step of `.ci/run`.

The slow and the release tests of a file are *due* while the digest of their sources differs from that of their last
pass. The digest covers the text of every source (see `Sources`), so a changed comment counts, and the version of
Python. Files that were left out most often run first, among these those with slow tests before those with release
tests alone. No test starts later than `TIME_S` after `.ci/run` did. The log ends with the files that did not run, as
`owed: …`.

`.ci/passed.txt` is the record: for each file the digest and the commit of its last pass, and the number of records
since in which it was due and did not pass. Only a run on a clean checkout writes it. A file passes if every one of its
slow and release tests passes.
"""

from __future__ import annotations

import ast
import fnmatch
import hashlib
import os
import re
import subprocess
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

from tests.tiers import ALLOWED_SKIPS, DEADLINE, NO_TIME, ORDER

ROOT = Path(__file__).parents[1]
RECORD = ROOT / ".ci" / "passed.txt"
TIME_S = 50 * 60
"""The longest test takes some minutes, and CI's limit is 90 minutes."""
BEGAN = "LANDING_BEGAN"
"""The environment variable with the time, in seconds of the epoch, at which `.ci/run` started."""
TIERS = "slow or release"
ALWAYS = ("pyproject.toml", "requirements/dev.lock", ".ci/run", "tools/environment.sh", "tests/tiers.py")
"""Sources of every test."""
PRODUCT = ("statechannel", "loadmanager", "api")
LONGEST_NAME = 200
MODULE = re.compile(r"\.?\w+(?:\.\w+)*\.?(?::\w+)?")
PATH = re.compile(r"[\w.-]*\w[\w./-]*")
GLOB = re.compile(r"[\w./*-]*\*[\w./*-]*\w{2}")


class Sources:
    """What a test file reaches, of the files under version control and new ones that are not ignored.

    These are the file itself, the `conftest.py` files of its folder and those above, and, from each of them and from
    each module found this way: the modules that it imports, and the modules, files and folders that its strings name
    (`"loadmanager_api.server"`, `"helm/loadmanager"`, `"recorded"` beside the file). A string that names the console
    script or a group of entry points reaches the modules that `pyproject.toml` declares for it. The product, which is
    installed without this checkout, names no files by their path from the root, and runs no console script.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", root=root).split("\0")
        self._files = {name for name in listed if (root / name).is_file()}
        self._folders = defaultdict[str, set[str]](set)
        """All files below a folder."""
        for name in self._files:
            for folder in PurePosixPath(name).parents:
                self._folders[str(folder)].add(name)
        self._direct = dict[str, frozenset[str]]()
        self._digests = dict[str, bytes]()

    def reached(self, file: str) -> set[str]:
        """Every source of a test file, by its name from the root."""
        conftests = {str(folder / "conftest.py") for folder in PurePosixPath(file).parents}
        found, new = set[str](), {file, *ALWAYS, *(conftests & self._files)}
        while new:
            found |= new
            new = set[str]().union(*map(self._named_in, new)) - found
        return found

    def digest(self, file: str) -> str:
        """The digest of all sources of a test file."""
        found = hashlib.sha256(f"{sys.version_info[:2]}".encode())
        for source in sorted(self.reached(file)):
            if source not in self._digests:
                self._digests[source] = hashlib.sha256((self._root / source).read_bytes()).digest()
            found.update(f"{source}\n".encode() + self._digests[source])
        return found.hexdigest()

    def _named_in(self, file: str) -> frozenset[str]:
        if file not in self._direct:
            text = (self._root / file).read_bytes() if file.endswith(".py") else b""
            self._direct[file] = frozenset(self._imports_and_strings(file, ast.parse(text)))
        return self._direct[file]

    def _imports_and_strings(self, file: str, tree: ast.Module) -> Iterator[str]:
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=names):
                    for each in names:
                        yield from self._module("", each.name)
                case ast.ImportFrom(module=module, names=names, level=level):
                    origin = str(PurePosixPath(file).parents[level - 1]) if level else ""
                    for each in names:
                        yield from self._module(origin, f"{module}.{each.name}" if module else each.name)
                case ast.Constant(value=str(text)) if 0 < len(text) < LONGEST_NAME:
                    yield from self._named(str(PurePosixPath(file).parent), text)
                case _:
                    pass

    def _named(self, folder: str, text: str) -> Iterator[str]:
        """What a string of a file in a folder names."""
        is_product = folder.startswith(PRODUCT)
        if not (is_product and text in PRODUCT):
            for module in self._declared.get(text, ()):
                yield from self._module("", module)
        if MODULE.fullmatch(text) and "." in text:
            origin = folder if text.startswith(".") else ""
            whole = re.search(r"\w\.\w+\.$", text) is not None  # of an f-string: f"loadmanager.settings.{name}"
            yield from self._module(origin, text.partition(":")[0].strip("."), whole=whole)
        beside = f"{folder}/{text}".rstrip("/")
        if GLOB.fullmatch(text):
            yield from fnmatch.filter(self._folders.get(folder, ()), beside)
        elif PATH.fullmatch(text):
            for place in (beside,) if is_product else (text.rstrip("/"), beside):
                yield from (place,) if place in self._files else self._folders.get(place, ())

    def _module(self, origin: str, name: str, *, whole: bool = False) -> Iterator[str]:
        """The files of a module and of the packages around it; of a `whole` package, each file."""
        for place in (origin, "api"):
            for part in name.split("."):
                place = f"{place}/{part}".lstrip("/")
                yield from {f"{place}/__init__.py", f"{place}.py"} & self._files
            if whole:
                yield from self._folders.get(place, ())

    @cached_property
    def _declared(self) -> Mapping[str, list[str]]:
        """The modules behind the console scripts and the groups of entry points."""
        project = tomllib.loads((self._root / "pyproject.toml").read_text())["project"]
        groups = {name: [target] for name, target in project.get("scripts", {}).items()}
        groups |= {group: list(each.values()) for group, each in project.get("entry-points", {}).items()}
        return {name: [target.partition(":")[0] for target in targets] for name, targets in groups.items()}


def git(*arguments: str, root: Path = ROOT) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()


class Entry(NamedTuple):
    """A line of the record."""

    digest: str = "-"
    commit: str = "-"
    """Of the last pass; `-` if there was none."""
    owed: int = 0
    """Records since the last pass in which the file was due and did not pass."""


def read_record(path: Path) -> dict[str, Entry]:
    """The entry of each file; no entries if there is no record."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {file: Entry(digest, commit, int(owed)) for file, digest, commit, owed in map(str.split, lines)}


def write_record(path: Path, record: Mapping[str, Entry]) -> None:
    path.write_text("".join(f"{file} {' '.join(map(str, record[file]))}\n" for file in sorted(record)))


def in_order(due: Iterable[str], record: Mapping[str, Entry], tiers: Mapping[str, str]) -> list[str]:
    """The file that was left out most often first, then slow ones. `tiers` has the first tier of each file."""
    return sorted(due, key=lambda file: (-record.get(file, Entry()).owed, tiers[file] != "slow", file))


class Outcomes:
    """A plugin that counts, by file, the tests that were collected and those that passed."""

    def __init__(self, record: Mapping[str, Entry], due: Sequence[str]) -> None:
        self._record = record
        self._due = due
        self._left = Counter[str]()

    @property
    def passed(self) -> set[str]:
        return set(self._due) - set(self._left)

    @property
    def owed(self) -> list[str]:
        return [file for file in self._due if file in self._left]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reason = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
        allowed = reason.removeprefix("Skipped: ").startswith(ALLOWED_SKIPS) and NO_TIME not in reason
        if report.failed or (report.skipped and not allowed):
            self._left[report.nodeid.partition("::")[0]] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for file in self.owed:
            entry = self._record.get(file, Entry())
            since = "never passed" if entry.commit == "-" else f"passed last at {entry.commit}"
            terminalreporter.write_line(f"owed: {file}, {self._left[file]} tests, {since}")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Of the run in `collected`: print each file with its first tier."""
    found = {item.nodeid.partition("::")[0]: "release" for item in session.items}
    found |= {item.nodeid.partition("::")[0]: "slow" for item in session.items if item.get_closest_marker("slow")}
    for file, tier in found.items():
        session.config.get_terminal_writer().line(f"{tier} {file}")


def collected() -> dict[str, str]:
    """The files with slow or release tests, and the first tier of each. Raises SystemExit if pytest fails."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.landing", "--collect-only", "-qqq", "-m", TIERS]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.stdout.write(run.stdout + run.stderr)
        raise SystemExit(run.returncode)
    return {file: tier for tier, file in re.findall(r"^(slow|release) (tests/.*)$", run.stdout, re.MULTILINE)}


def main(arguments: list[str]) -> int:
    os.environ[DEADLINE] = str(float(os.environ.get(BEGAN) or time.time()) + TIME_S)
    record, sources = read_record(RECORD), Sources(ROOT)
    tiers = collected()
    digests = {file: sources.digest(file) for file in tiers}
    due = in_order((file for file in tiers if record.get(file, Entry()).digest != digests[file]), record, tiers)
    if not due:
        return 0
    outcomes = Outcomes(record, due)
    distribution = ["-n", os.environ.get("WORKERS", "2"), "--dist", "loadgroup", "--no-loadscope-reorder"]
    os.environ[ORDER] = "\n".join(due)  # not the order of the arguments: pytest finds fixtures of each folder once
    status = pytest.main([*distribution, "-m", TIERS, *arguments, *sorted(due)], [outcomes])
    clean = not git("status", "--porcelain", "--", f":!{RECORD.relative_to(ROOT)}")
    if clean and status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        commit = git("rev-parse", "--short=12", "HEAD")
        new = {file: record.get(file, Entry()) for file in digests}
        new |= {file: Entry(digests[file], commit) for file in outcomes.passed}
        new |= {file: new[file]._replace(owed=new[file].owed + 1) for file in outcomes.owed}
        write_record(RECORD, new)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
