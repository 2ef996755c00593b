"""Run tests while all their processes stop for two seconds at random moments, beside a load.

    python -m tests.stall --rounds 5 -n 2 tests/api

A machine that swaps, a virtual machine that moves and a slow disk do this to a test. What fails here depends on luck:
it gives time to something that takes as long as the machine pleases. What is not an option below goes to pytest.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import psutil

BUSY = (sys.executable, "-c", "while True: pass")
PYTEST = (sys.executable, "-m", "pytest", "--timeout=1800", "--color=no", "-rfE")
"""No test fails by the time-out of its own: that one ends tests that hang."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
NONE_COLLECTED = 5
PR_SET_CHILD_SUBREAPER = 36
"""Processes whose parent has ended become children of this one: it finds them, and ends them."""


def tree(apart: Sequence[subprocess.Popen[bytes]]) -> list[psutil.Process]:
    """What this program has started, parents first, without the load."""
    left = {each.pid for each in apart}
    return [each for each in psutil.Process().children(recursive=True) if each.pid not in left]


def stop(apart: Sequence[subprocess.Popen[bytes]]) -> list[psutil.Process]:
    """Stop all that run; what a test itself has stopped is not returned, and stays stopped later."""
    stopped = list[psutil.Process]()
    while True:  # until a stopped parent has left no child of the last moment
        running = [each for each in tree(apart) if each not in stopped and _signal(each, signal.SIGSTOP)]
        if not running:
            return stopped
        stopped += running


def _signal(process: psutil.Process, number: signal.Signals) -> bool:
    """Returns True if the process ran."""
    try:
        if number == signal.SIGSTOP and process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
            return False
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True


@contextmanager
def load(count: int) -> Generator[list[subprocess.Popen[bytes]]]:
    """Busy processes, and at the end none of what was started."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    busy = [subprocess.Popen(BUSY) for _ in range(count)]
    try:
        yield busy
    finally:
        while left := [each for each in tree(()) if each.status() != psutil.STATUS_ZOMBIE]:
            for each in left:
                _signal(each, signal.SIGKILL)
            psutil.wait_procs(left, timeout=5)


def round_of(tests: Sequence[str], random_: random.Random, options: argparse.Namespace) -> list[str]:
    """Run pytest once; returns the names of the tests that failed."""
    with load(options.load) as busy, tempfile.TemporaryFile("w+") as output:
        pytest, stalls = subprocess.Popen([*PYTEST, *tests], stdout=output, stderr=subprocess.STDOUT), 0
        while not ended(pytest, random_.uniform(0, options.every)):
            stopped = stop(busy)
            time.sleep(options.stall)
            for each in reversed(stopped):
                _signal(each, signal.SIGCONT)
            stalls += 1
        output.seek(0)
        text, code = output.read(), pytest.returncode
    failed = FAILED.findall(text)
    if code not in (0, NONE_COLLECTED) and not failed:
        failed = [f"pytest ended with {code}"]
    print(text if failed else text.rstrip().rpartition("\n")[2], f"{stalls} stalls", sep="\n", flush=True)
    return failed


def ended(process: subprocess.Popen[bytes], within_s: float) -> bool:
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("tests.stall", description=__doc__, allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--load", type=int, default=8, help="busy processes beside the tests")
    parser.add_argument("--stall", type=float, default=2.0, help="seconds for which the processes stop")
    parser.add_argument("--every", type=float, default=6.0, help="seconds between two stops, at most")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the moments")
    options, tests = parser.parse_known_args(arguments)
    print(f"--seed {options.seed}", flush=True)
    random_, failed = random.Random(options.seed), Counter[str]()
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", flush=True)
        failed.update(round_of(tests, random_, options))
    for name, count in failed.most_common():
        print(f"{count} of {options.rounds} rounds: {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
