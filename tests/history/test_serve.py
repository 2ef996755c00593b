"""`loadmanager history serve`: a warm session that other commands use, and that ends when it is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from loadmanager.history.lake import Lake
from loadmanager_api.cli.load_history.jobs import REMOTE
from loadmanager_api.cli.main import main
from tests.history.analyses.making import START, tables

COMMAND = [sys.executable, "-c", "from loadmanager_api.cli.main import main; main()", "history"]


@contextmanager
def serving(*arguments: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """The process, and the address that it tells once it serves."""
    command = [*COMMAND, "serve", "--listen", "127.0.0.1:0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            told = server.stdout.readline()
            assert told.startswith("serves at sc://127.0.0.1:"), told
            yield server, told.split()[2].rstrip(":")
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)


def asked(lake: Lake, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "analyse", "--lake", lake.root, "--analysis", "imbalance", "-o", "json", *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_commands_find_a_warm_session_and_it_ends_when_it_is_told(lake: Lake, tmp_path: Path):
    minute = {"day": START.date(), "minute": START, "broker": "a", "covered_s": 60.0, "cpu_percent": 50.0}
    lake.replace("broker_minute", tables(lake.spark, broker_minute=[minute])("broker_minute"), "true")
    lake.prepare("bronze")
    with serving("--memory", "1g") as (server, address):
        first, second = asked(lake, "--remote", address), asked(lake, **{REMOTE: address})
        assert first.returncode == second.returncode == 0, first.stderr + second.stderr
        [found] = json.loads(first.stdout)
        assert {row["max"] for row in found["rows"]} == {0.5}
        assert json.loads(second.stdout)[0]["rows"] == found["rows"]
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
        after = asked(lake, "--remote", address)
    assert after.returncode != 0
    assert address.removeprefix("sc://") in after.stderr


@pytest.mark.slow
def test_it_ends_with_an_error_once_its_jvm_has_ended():
    with serving("--memory", "1g") as (server, _):
        [java] = [each for each in psutil.Process(server.pid).children(recursive=True) if each.name() == "java"]
        java.kill()
        assert server.wait(60) != 0
        assert server.stderr is not None
        assert "Spark's JVM ended with exit code -9" in server.stderr.read()


@pytest.mark.parametrize("listen", ["15002", "nowhere:port", "127.0.0.1:70000", ":1"])
def test_a_place_to_listen_that_is_none_is_refused(listen: str):
    result = CliRunner().invoke(main, ["history", "serve", "--listen", listen])
    assert result.exit_code == 2
    assert "write host:port" in result.output


def test_what_serves_starts_its_own_session():
    result = CliRunner().invoke(main, ["history", "serve", "--remote", "sc://127.0.0.1:1"])
    assert result.exit_code == 2
    assert "name the --master" in result.output
