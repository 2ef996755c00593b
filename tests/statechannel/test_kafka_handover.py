"""The handover from a consumer's thread to the loop: in order, and nothing behind a gap."""

from __future__ import annotations

import asyncio

import pytest

from statechannel.adapters.kafka.reader import Handover
from statechannel.ports import LogEntry


def batch(offset: int) -> list[LogEntry]:
    return [LogEntry(0, offset, None, b"", 0)]


async def test_who_has_left_gets_nothing_that_was_on_its_way():
    handover = Handover(asyncio.get_running_loop())
    for offset in range(3):
        handover.give(batch(offset))
    await asyncio.sleep(0)
    assert await handover.take() == batch(0)
    handover.give(batch(3))  # arrives behind the two that leaving throws away
    handover.end()
    await asyncio.sleep(0)
    assert handover.cut_off
    with pytest.raises(StopAsyncIteration):
        await handover.take()


async def test_everything_comes_before_the_end():
    handover = Handover(asyncio.get_running_loop())
    for offset in range(3):
        handover.give(batch(offset))
    handover.finish()
    assert [await handover.take() for _ in range(3)] == [batch(offset) for offset in range(3)]
    with pytest.raises(StopAsyncIteration):
        await handover.take()
    assert not handover.cut_off
