"""What a process writes when native code ends it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loadmanager.demo.stage import Child

WAIT_S = 60.0
COMMAND = (sys.executable, "-c", "from loadmanager_api.cli.main import main; main()")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_a_broker_that_crashes_leaves_the_stacks_of_its_threads(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONFAULTHANDLER")  # so the command itself must see to it
    options = ("broker", "--advertised", "127.0.0.1:0", "--log", f"sqlite:{tmp_path / 'lm.db'}")
    with subprocess.Popen([*COMMAND, *options], stderr=subprocess.PIPE, text=True) as broker:
        try:
            assert broker.stderr is not None
            while "is ready" not in (line := broker.stderr.readline()):
                assert line, "it ended"
            broker.send_signal(number)
            _, errors = broker.communicate(timeout=WAIT_S)
        finally:
            broker.kill()
    assert broker.returncode == -number
    assert "Fatal Python error" in errors
    assert "most recent call first" in errors
    assert "asyncio" in errors


def test_the_command_works_with_standard_error_closed() -> None:
    code = f"import os, sys; os.close(2); os.execv(sys.executable, {[*COMMAND, 'broker', '--help']!r})"
    run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=WAIT_S, check=True)
    assert "Usage" in run.stdout


async def test_child_of_the_demo_that_crashes_leaves_the_stacks_of_its_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONFAULTHANDLER")
    arguments = ("--log", f"sqlite:{tmp_path / 'lm.db'}", "--store", str(tmp_path / "counters.db"))
    child = await Child.start("loadmanager.demo.counter", arguments, errors=tmp_path / "errors")
    async with asyncio.timeout(WAIT_S):
        assert await child.hear(lambda _: os.kill(child.pid, signal.SIGSEGV)) == -signal.SIGSEGV
    assert "Fatal Python error" in (tmp_path / "errors").read_text()
