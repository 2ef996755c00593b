"""Tests of the ports that servers of tests get."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from stack import servers
from stack.jars import StackError

ROOT = Path(__file__).parents[1]
FEW = range(31_900, 31_920)
TAKES_ALL = f"""
import sys
from stack import servers
servers.PORTS = {FEW!r}
try:
    while True:
        servers.free_port()
except servers.StackError:
    print("taken", flush=True)
sys.stdin.read()
"""


def test_no_port_is_given_to_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "PORTS", FEW)
    command = [sys.executable, "-c", TAKES_ALL]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "taken\n"
        with pytest.raises(StackError, match="no free port"):
            servers.free_port()
        other.stdin.close()
    deadline_s = time.monotonic() + 60
    while True:  # another run of this test may have all of them for a moment
        try:
            assert servers.free_port() in FEW
        except StackError:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        else:
            return
