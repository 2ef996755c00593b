"""A long turn of a loop shows, with about its length."""

from __future__ import annotations

import asyncio
import time

from loadmanager.broker.telemetry.turns import LOOK_S, WINDOW_S, Turns


async def test_a_turn_that_blocks_the_loop_is_seen_with_its_length() -> None:
    turns = Turns(time.monotonic)
    async with turns.measured():
        await asyncio.sleep(2 * LOOK_S)
        time.sleep(0.3)  # noqa: ASYNC251 - the long turn
        await asyncio.sleep(2 * LOOK_S)
    assert turns.longest_s >= 0.3 - 1.5 * LOOK_S
    assert turns.late.sum_s >= turns.longest_s
    counted = sum(turns.late.counts)
    await asyncio.sleep(2 * LOOK_S)
    assert sum(turns.late.counts) == counted, "it measures only while it is open"


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
