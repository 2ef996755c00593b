"""The virtual loop: order, time, and what asyncio needs of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from itertools import count

import pytest

from tests.simulator.loop import SimulationError, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop(instant_limit=10_000)
    yield loop
    loop.close()


def test_an_hour_of_sleep_takes_no_real_time(loop: VirtualLoop) -> None:
    began_s = time.perf_counter()
    loop.run_until_complete(asyncio.sleep(3600))
    assert loop.time() == 3600
    assert time.perf_counter() - began_s < 600


def test_ready_callbacks_run_first_in_first_out_and_equal_timers_in_order_of_setting(loop: VirtualLoop) -> None:
    seen: list[str] = []
    for name in "abc":
        loop.call_later(1, seen.append, f"timer {name}")
        loop.call_soon(seen.append, f"soon {name}")
    loop.call_later(0.5, seen.append, "earlier")
    loop.run_until_complete(asyncio.sleep(2))
    assert seen == ["soon a", "soon b", "soon c", "earlier", "timer a", "timer b", "timer c"]


def test_a_cancelled_timer_does_not_run_and_thousands_of_them_do_not_pile_up(loop: VirtualLoop) -> None:
    seen: list[int] = []
    calls = [loop.call_later(1 + i, seen.append, i) for i in range(5_000)]
    for call in calls[1:]:
        call.cancel()
    assert len(loop._timers._heap) < 2_000
    loop.run_until_complete(asyncio.sleep(6_000))
    assert seen == [0]


def test_the_running_loop_is_this_one_and_none_is_left_behind(loop: VirtualLoop) -> None:
    async def running() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert loop.run_until_complete(running()) is loop
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_timeouts_task_groups_queues_events_and_gather_work(loop: VirtualLoop) -> None:
    async def scene() -> list[object]:
        queue: asyncio.Queue[int] = asyncio.Queue(2)
        done = asyncio.Event()

        async def produce() -> None:
            for i in range(5):
                await queue.put(i)
            done.set()

        async def consume() -> list[int]:
            return [await queue.get() for _ in range(5)]

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            consumed = group.create_task(consume())
        await done.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(9), 1)
        gathered = await asyncio.gather(asyncio.sleep(2, "slow"), asyncio.sleep(1, "fast"))
        return [consumed.result(), gathered, loop.time()]

    assert loop.run_until_complete(scene()) == [[0, 1, 2, 3, 4], ["slow", "fast"], 6]


def test_a_failing_task_group_cancels_the_rest(loop: VirtualLoop) -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise LookupError

    async def scene() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(1_000))
            group.create_task(fail())

    with pytest.raises(ExceptionGroup):
        loop.run_until_complete(scene())
    assert loop.time() == 1


def test_a_runaway_is_reported_with_its_last_callback(loop: VirtualLoop) -> None:
    async def spin() -> None:
        for _ in count():
            await asyncio.sleep(0)

    with pytest.raises(SimulationError, match="runaway"):
        loop.run_until_complete(spin())


def test_a_deadlock_is_reported_instead_of_waiting_for_ever(loop: VirtualLoop) -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulationError, match="deadlock"):
        loop.run_until_complete(wait())


def test_threads_are_refused(loop: VirtualLoop) -> None:
    with pytest.raises(SimulationError, match="no threads"):
        loop.run_until_complete(asyncio.to_thread(print))


def test_an_exception_that_nobody_handles_ends_the_run(loop: VirtualLoop) -> None:
    def fail() -> None:
        raise LookupError("lost")

    loop.call_later(1, fail)
    with pytest.raises(SimulationError) as caught:
        loop.run_until_complete(asyncio.sleep(5))
    assert isinstance(caught.value.__cause__, LookupError)
    assert loop.time() == 1


def test_open_async_generators_can_be_shut_down(loop: VirtualLoop) -> None:
    closed: list[str] = []

    async def ones() -> AsyncGenerator[int]:
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(1)
            closed.append("closed")

    async def scene() -> None:
        numbers = ones()
        await anext(numbers)
        await loop.shutdown_asyncgens()
        assert closed == ["closed"]

    loop.run_until_complete(scene())


def test_a_wait_until_a_deadline_ends_even_if_rounding_leaves_a_rest(loop: VirtualLoop) -> None:
    async def wait_until(deadline_s: float) -> int:
        rounds = 0
        while loop.time() < deadline_s:
            rounds += 1
            await asyncio.sleep(deadline_s - loop.time())
        return rounds

    process = loop.process("drifting", drift=0.0123456789, offset_s=987.654321)
    rounds: list[int] = []

    async def main() -> None:
        rounds.extend([await wait_until(loop.time() + 0.1 * i) for i in range(1, 200)])

    process.start(main)
    loop.run_until_complete(asyncio.sleep(3_000))
    assert len(rounds) == 199
    assert max(rounds) <= 2
