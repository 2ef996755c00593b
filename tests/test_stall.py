"""Tests of `tests/stall.py`."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[1]
STALL = (sys.executable, "-m", "tests.stall", "--load", "1", "--stall", "0.3", "--every", "2", "--seed", "7")
QUICK = ("-p", "no:loadmanager", "-p", "no:schemathesis", "-p", "no:xdist", "-p", "no:hypothesispytest")
"""Without the plugins that take a second to import."""
CHILD = """
import pathlib, sys, time
last = time.monotonic()
while (now := time.monotonic()) - last < 0.25:
    last = now
    time.sleep(0.001)
pathlib.Path(sys.argv[1]).touch()
time.sleep(1_000)
"""
"""Tells when it has been stopped."""
TESTS = f"""
import pathlib, subprocess, sys, time
CHILD = {CHILD!r}

def test_is_stopped():
    last = time.monotonic()
    while (now := time.monotonic()) - last < 0.25:
        last = now
        time.sleep(0.001)

def test_what_it_starts_is_stopped_and_stays(tmp_path):
    subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path / "seen")], start_new_session=True)
    while not (tmp_path / "seen").exists():
        time.sleep(0.01)

def test_fails():
    assert False
"""

HANGS = """
def test_hangs():
    pathlib.Path({begun!r}).touch()
    time.sleep(1_000)
"""


@pytest.mark.slow
def test_all_processes_of_a_test_stop_and_end_and_what_fails_is_named(tmp_path: Path) -> None:
    file = tmp_path / "test_made.py"
    file.write_text(TESTS)
    done = subprocess.run(
        [*STALL, *QUICK, str(file)], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith("--seed 7\n")
    assert re.findall(r"\d of 1 rounds: .*::(\w+)", done.stdout) == ["test_fails"], done.stdout
    assert running(str(tmp_path)) == []


@pytest.mark.slow
def test_nothing_is_left_of_an_interrupted_run(tmp_path: Path) -> None:
    file = tmp_path / "test_made.py"
    file.write_text(TESTS + HANGS.format(begun=str(tmp_path / "begun")))
    stall = subprocess.Popen([*STALL, *QUICK, str(file)], cwd=ROOT, stdout=subprocess.DEVNULL)
    while not (tmp_path / "begun").exists():
        assert stall.poll() is None
        time.sleep(0.01)
    stall.send_signal(signal.SIGINT)
    assert stall.wait(60) != 0
    assert running(str(tmp_path)) == []


def running(argument: str) -> list[psutil.Process]:
    """Processes that have this in their command."""
    found = list[psutil.Process]()
    for each in psutil.process_iter(["cmdline", "status"]):
        if each.info["status"] != psutil.STATUS_ZOMBIE and any(argument in part for part in each.info["cmdline"] or ()):
            found.append(each)
    return found
