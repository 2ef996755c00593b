"""The command line and a broker start without Spark: neither pays for what only a job needs."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from stack.servers import free_port

HEAVY = ("pyspark", "pandas", "pyarrow", "altair")
TELLS = f"""
import atexit, sys
atexit.register(lambda: print("HEAVY", sorted({set(HEAVY)!r} & set(sys.modules)), flush=True))
from loadmanager_api.cli.main import main
main(sys.argv[1:])
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", TELLS, *arguments]


@pytest.mark.parametrize("arguments", [["--help"], ["history", "--help"], ["history", "audit", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]):
    run = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=240, check=True)
    assert run.stdout.splitlines()[-1] == "HEAVY []"


def test_a_job_that_is_refused_early_loads_nothing_heavy(tmp_path: Path):
    missing = command("history", "audit", "--lake", str(tmp_path / "nowhere"))
    run = subprocess.run(missing, capture_output=True, text=True, timeout=240, check=False)
    assert (run.returncode, run.stdout.strip()) == (1, "HEAVY []")


@pytest.mark.slow
def test_a_broker_that_serves_the_history_loads_nothing_heavy(tmp_path: Path):
    address = f"127.0.0.1:{free_port()}"
    log, folder = f"sqlite:{tmp_path / 'log.db'}", f"history_dir={tmp_path}"
    starting = command("broker", "--advertised", address, "--log", log, "--set", folder)
    broker = subprocess.Popen(starting, stdout=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 240
        while not answers(f"http://{address}/v1/history"):
            assert broker.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        broker.send_signal(signal.SIGTERM)
        said, _ = broker.communicate(timeout=240)
    finally:
        broker.kill()
        broker.wait()
    assert said.splitlines()[-1] == "HEAVY []"


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False
