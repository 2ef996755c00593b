"""Simulated processes: whose code is whose, SIGKILL, SIGSTOP, and clocks that drift."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Iterator

import pytest

from tests.simulator.loop import Process, VirtualLoop, current_process


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()
    gc.collect()  # what a dead process left must be collected silently: warnings are errors here


async def tick(seen: list[float], every_s: float = 1.0) -> None:
    while True:
        await asyncio.sleep(every_s)
        seen.append(asyncio.get_running_loop().time())


def test_what_a_process_spawns_belongs_to_it(loop: VirtualLoop) -> None:
    owners: list[str] = []

    async def child() -> None:
        await asyncio.sleep(1)
        asyncio.get_running_loop().call_soon(lambda: owners.append(current_process.get().name))

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
        await asyncio.sleep(1)

    loop.process("a").start(main)
    loop.process("b").start(main)
    loop.run_until_complete(asyncio.sleep(3))
    assert owners == ["a", "b"]


def test_a_crashed_process_runs_nothing_any_more_and_no_clean_up_code_either(loop: VirtualLoop) -> None:
    seen: list[float] = []
    cleaned: list[str] = []

    async def main() -> None:
        try:
            await tick(seen)
        finally:
            await asyncio.sleep(1)
            cleaned.append("cleaned")

    async def drive() -> None:
        process = loop.process("a")
        process.start(main)
        await asyncio.sleep(2.5)
        process.crash()
        await asyncio.sleep(10)
        assert process.dead

    loop.run_until_complete(drive())
    gc.collect()
    assert (seen, cleaned) == ([1, 2], [])


def test_a_crash_in_the_middle_of_a_task_group_and_a_generator_leaves_no_noise(loop: VirtualLoop) -> None:
    async def numbers() -> AsyncGenerator[int]:
        try:
            while True:
                await asyncio.sleep(1)
                yield 1
        finally:
            await asyncio.sleep(1)

    async def read() -> None:
        async for _ in numbers():
            await asyncio.sleep(0.1)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(read())
            group.create_task(asyncio.sleep(100))
            async with asyncio.timeout(50):
                await asyncio.Event().wait()

    async def drive() -> None:
        process = loop.process("a")
        process.start(main)
        await asyncio.sleep(3.05)
        process.crash()

    loop.run_until_complete(drive())


def test_a_paused_process_does_nothing_until_it_resumes_and_then_catches_up_in_order(loop: VirtualLoop) -> None:
    seen: list[tuple[str, float]] = []

    async def main() -> None:
        here = asyncio.get_running_loop()
        for due_s in (1.0, 2.0, 3.0, 7.0):
            here.call_at(due_s, lambda due_s=due_s: seen.append((str(due_s), here.time())))
        await asyncio.sleep(100)

    async def drive() -> None:
        process = loop.process("a")
        process.start(main)
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(3.5)
        process.resume()
        await asyncio.sleep(3)

    loop.run_until_complete(drive())
    assert seen == [("1.0", 1.0), ("2.0", 5.0), ("3.0", 5.0), ("7.0", 7.0)]


def test_a_process_that_crashes_while_paused_stays_dead(loop: VirtualLoop) -> None:
    seen: list[float] = []

    async def drive() -> None:
        process = loop.process("a")
        process.start(lambda: tick(seen))
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(2)
        process.crash()
        process.resume()
        await asyncio.sleep(2)

    loop.run_until_complete(drive())
    assert seen == [1]


def test_a_process_whose_main_ends_is_dead_and_its_failure_is_kept(loop: VirtualLoop) -> None:
    seen: list[float] = []
    deaths: list[str] = []

    async def main() -> None:
        background = asyncio.create_task(tick(seen))
        await asyncio.sleep(2.5)
        assert not background.done()
        raise LookupError("lost")

    process = loop.process("a")
    process.on_death(lambda: deaths.append("died"))
    process.start(main)
    loop.run_until_complete(asyncio.sleep(10))
    assert process.dead
    assert isinstance(process.failure, LookupError)
    assert (seen, deaths) == ([1, 2], ["died"])


def test_a_clock_that_runs_two_percent_fast_shows_its_own_time_and_waits_less_of_true_time(loop: VirtualLoop) -> None:
    seen: list[tuple[float, float]] = []

    async def main() -> None:
        await asyncio.sleep(102)
        seen.append((asyncio.get_running_loop().time(), loop.now_ns / 1e9))

    loop.process("fast", drift=0.02, offset_s=500).start(main)
    loop.process("slow", drift=-0.02, offset_s=0).start(main)
    loop.run_until_complete(asyncio.sleep(200))
    assert seen[0] == pytest.approx((602, 100))
    assert seen[1] == pytest.approx((102, 102 / 0.98))


def test_a_drift_that_changes_does_not_make_the_clock_jump(loop: VirtualLoop) -> None:
    process = loop.process("a", drift=0.02)

    async def drive() -> None:
        await asyncio.sleep(100)
        process.set_drift(-0.02)
        assert process.run(loop.time) == pytest.approx(102)
        await asyncio.sleep(100)
        assert process.run(loop.time) == pytest.approx(200)

    loop.run_until_complete(drive())


def test_the_hook_runs_after_every_callback_of_a_process_and_can_end_the_run(loop: VirtualLoop) -> None:
    calls: list[str] = []

    def check(process: Process) -> None:
        calls.append(process.name)
        if loop.now_ns >= 3_000_000_000:
            raise AssertionError("violated")

    loop.after_callback = check
    loop.process("a").start(lambda: tick([]))
    with pytest.raises(AssertionError, match="violated"):
        loop.run_until_complete(asyncio.sleep(10))
    assert calls == ["a"] * len(calls)
    assert loop.now_ns == 3_000_000_000
