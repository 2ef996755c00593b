"""What a landing runs besides the fast tests: what is due, in which order, what it records and what it says is owed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.landing import ALWAYS, BEGAN, TIME_S, Entry, Sources, in_order, read_record, write_record

HERE = Path(__file__).parents[1]
PROJECT = """
[project]
name = "p"
version = "1"
scripts = {loadmanager = "loadmanager_api.cli:main"}
[project.entry-points."loadmanager.endpoints"]
http = "loadmanager_api.server:attach"
[tool.pytest.ini_options]
addopts = "-p xdist -p tests.tiers -p no:cacheprovider -m 'not slow and not release'"
markers = ["slow: s", "release: r", "kafka: k"]
pythonpath = ["."]
"""
TREE = {
    "pyproject.toml": PROJECT,
    ".gitignore": "__pycache__\n",
    "loadmanager/__init__.py": "",
    "loadmanager/core.py": "def decide():\n    from loadmanager import rules\n",
    "loadmanager/rules.py": "",
    "loadmanager/hosting.py": "group = 'loadmanager.endpoints'\n",
    "loadmanager/unrelated.py": "log = 'loadmanager'\n",
    "api/loadmanager_api/__init__.py": "",
    "api/loadmanager_api/server.py": "PAGES = 'pages'\n",
    "api/loadmanager_api/pages/index.html": "",
    "api/loadmanager_api/cli.py": "",
    "helm/chart/values.yaml": "",
    "tests/__init__.py": "",
    "tests/conftest.py": "import tests.faults\n",
    "tests/faults.py": "",
    "tests/near/far.py": "",
    "tests/near/recorded/log.bin": "",
    "tests/near/scene.txt": "",
    "tests/near/test_it.py": "import pytest\n",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the files of TREE, the programs under test, and no commit."""
    for name in (*ALWAYS, "tests/landing.py", "stack/programs.py"):
        if name not in TREE:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(HERE / name, tmp_path / name)
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def reached(checkout: Path, text: str) -> set[str]:
    (checkout / "tests/near/test_it.py").write_text(text)
    return Sources(checkout).reached("tests/near/test_it.py")


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        ("from loadmanager import core", {"loadmanager/core.py", "loadmanager/rules.py", "loadmanager/__init__.py"}),
        ("from .far import x", {"tests/near/far.py"}),
        ("import loadmanager.hosting", {"api/loadmanager_api/server.py", "api/loadmanager_api/pages/index.html"}),
        ("run('-m', 'loadmanager.core')", {"loadmanager/core.py", "loadmanager/rules.py"}),
        ("run('loadmanager', 'check')", {"api/loadmanager_api/cli.py"}),
        ("CHART = ROOT / 'helm' / 'chart'", {"helm/chart/values.yaml"}),
        ("LOGS = HERE / 'recorded'", {"tests/near/recorded/log.bin"}),
        ("HERE.glob('*.txt')", {"tests/near/scene.txt"}),
        ("", {"tests/conftest.py", "tests/faults.py", *ALWAYS}),
    ],
)
def test_a_test_reaches_what_it_imports_and_names(checkout: Path, text: str, sources: set[str]) -> None:
    assert sources <= reached(checkout, text)


def test_it_does_not_reach_what_it_neither_imports_nor_names(checkout: Path) -> None:
    found = reached(checkout, "from loadmanager import core, unrelated")
    assert "loadmanager/unrelated.py" in found
    assert not {name for name in found if name.startswith(("api", "helm", "tests/near/far"))}, (
        "a logger's name runs no command"
    )


@pytest.mark.parametrize(
    "changed", ["loadmanager/rules.py", "tests/faults.py", "tests/conftest.py", "pyproject.toml", ".ci/run"]
)
def test_a_changed_text_of_a_source_makes_it_due(checkout: Path, changed: str) -> None:
    reached(checkout, "from loadmanager import core")
    before, file = Sources(checkout).digest("tests/near/test_it.py"), checkout / changed
    file.write_text(file.read_text() + "# one more line\n")
    assert Sources(checkout).digest("tests/near/test_it.py") != before


def test_what_it_does_not_reach_does_not_make_it_due(checkout: Path) -> None:
    reached(checkout, "from loadmanager import core")
    before = Sources(checkout).digest("tests/near/test_it.py")
    (checkout / "loadmanager/unrelated.py").write_text("log = 2\n")
    assert Sources(checkout).digest("tests/near/test_it.py") == before


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = {"tests/b.py": Entry("d", "c", 2), "tests/a.py": Entry()}
    write_record(tmp_path / "passed.txt", record)
    assert read_record(tmp_path / "passed.txt") == record
    assert read_record(tmp_path / "none.txt") == {}


def test_what_was_left_out_most_often_runs_first_and_slow_tests_before_a_release() -> None:
    tiers = {"a": "release", "b": "release", "c": "slow", "d": "slow"}
    assert in_order(tiers, {"b": Entry(owed=3), "c": Entry(owed=1)}, tiers) == ["b", "c", "d", "a"]


SLOW = "import pytest\n\n@pytest.mark.slow\ndef test_it(): assert {}\n\ndef test_fast(): pass\n"


def land(checkout: Path, *arguments: str, began: float | None = None) -> tuple[int, str]:
    """Run the program in a checkout; returns its exit status and what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "CI"))}
    run = subprocess.run(
        [sys.executable, "-m", "tests.landing", *arguments],
        cwd=checkout, capture_output=True, text=True, check=False, timeout=100,
        env={**environment, "WORKERS": "0", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", BEGAN: str(began or time.time())},
    )  # fmt: skip
    return run.returncode, run.stdout + run.stderr


def commit(checkout: Path, **files: str) -> None:
    for name, text in files.items():
        (checkout / "tests" / f"{name}.py").write_text(text)
    subprocess.run(["git", "add", "-A"], cwd=checkout, check=True)
    who = ["-c", "user.name=t", "-c", "user.email=t"]
    subprocess.run(["git", *who, "commit", "-q", "-m", "m"], cwd=checkout, check=True)


def passed(checkout: Path) -> dict[str, int]:
    """The files on record: 0 for one that passed, else the records in which it was owed."""
    return {file: entry.owed for file, entry in read_record(checkout / ".ci/passed.txt").items()}


@pytest.mark.slow
def test_a_landing_runs_what_is_due_and_records_what_passed(checkout: Path) -> None:
    commit(checkout, test_one=SLOW.format("1"), test_two=SLOW.format("0"))
    status, printed = land(checkout)
    assert status == 1
    assert re.search(r"owed: tests/test_two.py, 1 tests, never passed", printed)
    assert passed(checkout) == {"tests/test_one.py": 0, "tests/test_two.py": 1}

    commit(checkout, test_two=SLOW.format("1"))
    status, printed = land(checkout)
    assert (status, passed(checkout)) == (0, {"tests/test_one.py": 0, "tests/test_two.py": 0})
    assert re.search(r"^1 passed, 1 deselected in", printed.strip().splitlines()[-1].strip("= ")), "only what was due"

    commit(checkout)
    assert land(checkout) == (0, ""), "nothing is due"


@pytest.mark.slow
def test_what_no_time_is_left_for_is_owed_and_runs_first_next_time(checkout: Path) -> None:
    commit(checkout, test_one=SLOW.format("1"))
    status, printed = land(checkout, began=time.time() - TIME_S - 1)
    assert (status, passed(checkout)) == (0, {"tests/test_one.py": 1})
    assert "owed: tests/test_one.py" in printed


@pytest.mark.slow
def test_files_run_in_the_order_in_which_they_are_due(checkout: Path) -> None:
    commit(checkout, test_a=SLOW.format("1").replace("slow", "release"), test_b=SLOW.format("1"))
    assert re.search(r"test_b.*test_a", land(checkout, "-v")[1], re.DOTALL)


@pytest.mark.slow
def test_a_checkout_with_changes_records_nothing(checkout: Path) -> None:
    commit(checkout, test_one=SLOW.format("1"))
    (checkout / "loadmanager/core.py").write_text("changed = True\n")
    assert land(checkout)[0] == 0
    assert passed(checkout) == {}
