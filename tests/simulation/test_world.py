"""A world: lives of processes, the history of a run, and failures that must not go unnoticed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.simulator.loop import SimulationError
from tests.simulator.world import Trace, World


@pytest.fixture
def world() -> Iterator[World]:
    with World(1) as world:
        yield world


def test_a_process_restarts_under_its_name_only_when_it_is_dead(world: World) -> None:
    first = world.process("a")
    with pytest.raises(SimulationError, match="crash it"):
        world.process("a")
    world.crash("a")
    assert world.process("a") is not first


def test_clocks_drift_by_two_percent_at_most_unless_told_otherwise(world: World) -> None:
    processes = [world.process(f"p{i}") for i in range(50)]
    began_s = [process.run(world.loop.time) for process in processes]
    world.run(asyncio.sleep(100))
    passed_s = [process.run(world.loop.time) - began for process, began in zip(processes, began_s, strict=True)]
    assert all(98 <= passed <= 102 for passed in passed_s)
    assert len(set(passed_s)) == 50


def test_a_task_that_failed_unseen_fails_the_run(world: World) -> None:
    tasks: list[asyncio.Task[None]] = []

    async def fail() -> None:
        raise LookupError("lost")

    async def main() -> None:
        tasks.append(asyncio.create_task(fail()))
        await asyncio.Event().wait()

    world.process("a").start(main)
    with pytest.raises(SimulationError, match="a task of a failed") as caught:
        world.run(asyncio.sleep(1))
    assert isinstance(caught.value.__cause__, LookupError)


def test_a_condition_that_does_not_come_about_is_named(world: World) -> None:
    with pytest.raises(SimulationError, match="not within 3 s: pigs fly"):
        world.run(world.until(lambda: False, 3, "pigs fly"))
    assert world.now_s == pytest.approx(3, abs=0.02)


def test_faults_stand_in_the_history_with_time_and_process(world: World) -> None:
    world.process("a")

    async def drive() -> None:
        await asyncio.sleep(1.5)
        world.cut("a", "log", requests=False)
        world.crash("a")

    world.run(drive())
    assert [line.split(maxsplit=2) for line in world.trace.lines()] == [
        ["1.500000", "a", "is cut off from log (answers only)"],
        ["1.500000", "a", "crashes"],
        ["1.500000", "a", "ends"],
    ]


def test_a_long_history_keeps_its_last_lines_and_a_digest_of_all() -> None:
    def trace(first: str) -> Trace:
        trace = Trace(lambda: 0.0, lambda: 0, limit=3)
        for what in (first, "two", "three", "four", "five"):
            trace.write("a", what)
        return trace

    assert trace("one").lines()[0] == "… 2 earlier lines dropped"
    assert [line.split()[-1] for line in trace("one").lines()[1:]] == ["three", "four", "five"]
    assert trace("one").digest() == trace("one").digest() != trace("other").digest()
