"""The tiers of the suite: what a run says, skips and refuses, seen from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import CPU_LIMIT_S

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
CONFIGURATION = """
[pytest]
addopts = -p no:cacheprovider -p tests.tiers -m "not slow and not release"
markers =
    slow: s
    release: r
    redis: r
"""
BURN = f"import time\ndef test_burn():\n    end = time.process_time() + {CPU_LIMIT_S / 4}\n"
BURN += "    while time.process_time() < end: pass\n"


def run(folder: Path, test: str, conftest: str = "", **environment: str) -> tuple[int, str]:
    """Run pytest on one file with the plugin; returns its exit status and what it prints."""
    (folder / "pytest.ini").write_text(CONFIGURATION)
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_it.py").write_text(test)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "CI"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", str(folder)],
        cwd=folder, capture_output=True, text=True, check=False, timeout=100,
        env={**inherited, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("mark", "status"), [("", 1), ("import pytest\n@pytest.mark.slow\n", 0)])
def test_a_fast_test_that_takes_too_much_cpu_fails_by_name(tmp_path: Path, mark: str, status: int) -> None:
    lower = f"import tests.tiers\ntests.tiers.CPU_LIMIT_S = tests.tiers.FAILS_AT_S = {CPU_LIMIT_S / 100}\n"
    lower += "tests.tiers.MOST_LOAD = 1_000\n"
    found, printed = run(tmp_path, "def test_other(): pass\n" + BURN.replace("def", f"{mark}def"), lower)
    assert found == status, "slow tests are not selected"
    assert ("_ test_burn _" in printed and "mark it with pytest.mark.slow" in printed) == bool(status)


@pytest.mark.parametrize("why", ["FAILS_AT_S = 1_000", f"FAILS_AT_S = {CPU_LIMIT_S / 100}; tests.tiers.MOST_LOAD = -1"])
def test_a_little_above_the_limit_or_on_an_overloaded_machine_it_is_only_named(tmp_path: Path, why: str) -> None:
    lower = f"import tests.tiers\ntests.tiers.CPU_LIMIT_S = {CPU_LIMIT_S / 100}\ntests.tiers.{why}\n"
    status, printed = run(tmp_path, BURN, lower)
    assert status == 0
    assert "test_burn took" in printed


NEEDS_REDIS = "import pytest\n@pytest.mark.redis\ndef test_it(): pass\ndef test_other(): pass\n"


def test_a_missing_program_is_named_first_and_its_tests_are_counted_last(tmp_path: Path) -> None:
    status, printed = run(tmp_path, NEEDS_REDIS, PATH=str(tmp_path))
    assert status == 0
    header, _, rest = printed.partition("collected")
    assert "redis-server" in header
    assert "apt-get install" in header
    assert "skipped, missing program: redis-server: 1 tests" in rest


def test_in_ci_a_missing_program_ends_the_run_before_it_starts(tmp_path: Path) -> None:
    status, printed = run(tmp_path, NEEDS_REDIS, PATH=str(tmp_path), CI="true")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "redis-server" in printed
    assert "collected" not in printed


@pytest.mark.parametrize(("reason", "status"), [("it is Monday", 1), ("permissions do not bind the superuser", 0)])
def test_in_ci_a_skip_fails_unless_its_reason_is_listed(tmp_path: Path, reason: str, status: int) -> None:
    everything_is_there = "import tests.tiers\ntests.tiers.PROGRAMS = {}\n"
    text = f"import pytest\ndef test_it(): pytest.skip({reason!r})\ndef test_other(): pass\n"
    (tmp_path / "everything.py").write_text(everything_is_there)
    found, printed = run(tmp_path, text, PYTEST_ADDOPTS="-p everything", PYTHONPATH=f"{tmp_path}:{ROOT}", CI="true")
    assert found == status, printed
    assert (f"FAILED: in CI no test may be skipped for this reason: {reason}" in printed) == bool(status)
