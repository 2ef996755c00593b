"""The lock that processes take in turn: it comes, or the deadline does, and a place that was left blocks no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from statechannel.runtime.turn import Turn, TurnTaken

HOLDS = """
import sys, time
from statechannel.runtime.turn import Turn
Turn(sys.argv[1]).take(time.monotonic() + 60)
print("has it", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(path: Path) -> Generator[subprocess.Popen[str]]:
    """Another process that has the turn."""
    command = [sys.executable, "-c", HOLDS, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "has it\n"
        try:
            yield process
        finally:
            process.kill()


def soon(seconds: float = 60.0) -> float:
    return time.monotonic() + seconds


def test_the_deadline_comes_and_the_error_names_the_stopped_process_that_has_the_turn(tmp_path: Path) -> None:
    path, turn = tmp_path / "turn", Turn(str(tmp_path / "turn"))
    with holder(path) as process:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(TurnTaken, match=rf"process {process.pid} \(.*, stopped\).*resume or end it"):
            turn.take(soon(0.01))
        with pytest.raises(TurnTaken):  # the same place in the queue
            turn.take(soon(0.01))
        waiting = threading.Thread(target=turn.take, args=(soon(),))
        waiting.start()
        process.kill()
        waiting.join()
    turn.end()
    turn.close()


def test_a_place_that_was_given_up_lets_the_next_one_have_its_turn(tmp_path: Path) -> None:
    first, given_up, last = (Turn(str(tmp_path / "turn")) for _ in range(3))
    first.take(soon())
    with pytest.raises(TurnTaken):
        given_up.take(soon(0.01))
    first.end()
    last.take(soon())
    with pytest.raises(TurnTaken):
        given_up.take(soon(0.01))
    last.end()
    given_up.take(soon())
    for each in (first, given_up, last):
        each.close()
    Turn(str(tmp_path / "turn")).take(soon())


def test_one_at_a_time_has_its_turn(tmp_path: Path) -> None:
    inside, seen = [0], list[int]()

    def work() -> None:
        turn = Turn(str(tmp_path / "turn"))
        for _ in range(200):
            turn.take(soon())
            inside[0] += 1
            time.sleep(0)
            seen.append(inside[0])
            inside[0] -= 1
            turn.end()
        turn.close()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1] * 1_200


def test_where_no_file_can_be_made_each_turn_comes_at_once(tmp_path: Path) -> None:
    for _ in range(2):
        turn = Turn(str(tmp_path / "missing" / "turn"))
        turn.take(soon())
        turn.end()
        turn.close()
