"""A long turn of a loop shows, with about its length."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from loadmanager.broker.control_loop import LOOK_S, WINDOW_S, Turns


async def test_a_turn_that_blocks_the_loop_is_seen_with_its_length() -> None:
    turns = Turns(time.monotonic)
    async with turns.measured():
        await asyncio.sleep(2 * LOOK_S)
        time.sleep(0.3)  # noqa: ASYNC251 - the long turn
        await asyncio.sleep(2 * LOOK_S)
    assert turns.longest_s >= 0.3 - 1.5 * LOOK_S
    assert turns.longest_own_s >= 0.2, "the process had a processor, and slept"
    assert turns.late.sum_s >= turns.longest_s
    counted = sum(turns.late.counts)
    await asyncio.sleep(2 * LOOK_S)
    assert sum(turns.late.counts) == counted, "it measures only while it is open"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how long a thread waited for a processor")
async def test_a_wait_for_a_processor_is_told_apart_from_a_turn_of_our_own() -> None:
    """Processes that never rest share one processor with the loop: it is late, and not by its own doing."""
    turns = Turns(time.monotonic)
    with _on_one_processor_with_others():
        async with asyncio.timeout(60), turns.measured():
            while turns.longest_s < LOOK_S / 2:
                await asyncio.sleep(0)  # it wants the processor all the time, and has to share it
    assert turns.longest_own_s < turns.longest_s / 2


@contextmanager
def _on_one_processor_with_others() -> Iterator[None]:
    allowed = os.sched_getaffinity(0)
    one = min(allowed)
    others = [subprocess.Popen([sys.executable, "-c", _NEVER_RESTS, f"{one}"]) for _ in range(4)]
    os.sched_setaffinity(0, {one})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
        for other in others:
            other.kill()
            other.wait()


_NEVER_RESTS = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
while True: pass
"""


def test_the_longest_turn_is_forgotten_after_two_windows() -> None:
    now_s = 0.0
    turns = Turns(lambda: now_s)
    turns.add(0.5)
    now_s = WINDOW_S
    turns.add(0.1)
    assert turns.longest_s == 0.5
    now_s = 2 * WINDOW_S
    turns.add(0.01)
    assert turns.longest_s == 0.1
