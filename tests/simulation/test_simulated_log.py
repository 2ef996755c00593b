"""The simulated log: order, delay, and each fault that a caller of a real one may meet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest

from statechannel.errors import LogError, LogUnavailable
from statechannel.ports import LogEntry, Payload, TopicSpec
from tests.simulator.loop import Process
from tests.simulator.network import NO_FAULTS, Faults, Latency
from tests.simulator.simulated_log import SimulatedLog
from tests.simulator.world import World

TOPIC = TopicSpec("t", 2)


@pytest.fixture
def world() -> Iterator[World]:
    with World(7, latency=Latency(spike_chance=0.1)) as world:
        world.log.open_topic(TOPIC)
        yield world


def payloads(*values: object) -> list[Payload]:
    return [Payload(None, str(value).encode()) for value in values]


def stored(world: World, partition: int = 0) -> list[str]:
    return [(entry.value or b"").decode() for entry in world.log.read("t", partition, 0)]


def run_in_process(world: World, main: Callable[[SimulatedLog], Coroutine[Any, Any, object]]) -> Process:
    process = world.process("a")
    log = world.log_client(process, request_timeout_s=2)
    process.start(lambda: main(log))
    return process


def finish(world: World, main: Callable[[SimulatedLog], Coroutine[Any, Any, object]], within_s: float = 100) -> None:
    process = run_in_process(world, main)
    world.run(world.until(lambda: process.dead, within_s, "the process ends"))
    if process.failure is not None:
        raise process.failure


async def collect(log: SimulatedLog, into: list[LogEntry], starts: Sequence[int] = (0, 0)) -> None:
    async for batch in log.tail("t", starts):
        into.extend(batch)


def test_concurrent_appends_of_one_caller_keep_their_order_and_offsets_are_dense(world: World) -> None:
    async def main(log: SimulatedLog) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(200):
                group.create_task(log.append("t", 0, payloads(number)))

    finish(world, main)
    assert stored(world) == [str(number) for number in range(200)]
    assert [entry.offset for entry in world.log.read("t", 0, 0)] == list(range(200))


def test_an_append_whose_answer_is_lost_has_happened_and_fails_after_the_time_out(world: World) -> None:
    world.network.faults = Faults(lost_answer=1)

    async def main(log: SimulatedLog) -> None:
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(LogUnavailable, match="retry"):
            await log.append("t", 0, payloads("x"))
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(2)

    finish(world, main)
    assert stored(world) == ["x"]


def test_it_may_then_land_a_second_time_later(world: World) -> None:
    world.network.faults = Faults(lost_answer=1, repeated=1)

    async def main(log: SimulatedLog) -> None:
        with pytest.raises(LogUnavailable):
            await log.append("t", 0, payloads("x"))
        world.network.faults = NO_FAULTS
        await asyncio.sleep(20)

    finish(world, main)
    assert stored(world) == ["x", "x"]


def test_of_a_request_that_is_lost_at_most_a_proper_prefix_is_taken(world: World) -> None:
    world.network.faults = Faults(lost_request=1)
    found: set[tuple[str, ...]] = set()

    async def main(log: SimulatedLog) -> None:
        for _ in range(30):
            before = len(stored(world))
            with pytest.raises(LogUnavailable):
                await log.append("t", 0, payloads(1, 2, 3))
            found.add(tuple(stored(world)[before:]))

    finish(world, main)
    assert found == {(), ("1",), ("1", "2")}


def test_a_cut_that_heals_in_time_costs_only_latency(world: World) -> None:
    async def main(log: SimulatedLog) -> None:
        world.cut("a", "log")
        asyncio.get_running_loop().call_later(1, world.heal, "a", "log")
        await log.append("t", 0, payloads("x"))

    finish(world, main)
    assert stored(world) == ["x"]


@pytest.mark.parametrize(("late", "expected"), [(1.0, ["x", "y"]), (0.0, ["y"])])
def test_an_append_that_timed_out_during_a_cut_may_still_arrive_when_it_heals(
    world: World, late: float, expected: list[str]
) -> None:
    world.network.faults = Faults(late=late)

    async def main(log: SimulatedLog) -> None:
        world.cut("a", "log")
        with pytest.raises(LogUnavailable):
            await log.append("t", 0, payloads("x"))
        world.heal("a", "log")
        await log.append("t", 0, payloads("y"))

    finish(world, main)
    assert stored(world) == expected


def test_cut_off_from_answers_only_a_process_still_writes_but_hears_nothing(world: World) -> None:
    seen: list[LogEntry] = []

    async def main(log: SimulatedLog) -> None:
        reader = asyncio.create_task(collect(log, seen))
        await log.append("t", 0, payloads("x"))
        await asyncio.sleep(2)
        world.cut("a", "log", requests=False)
        with pytest.raises(LogUnavailable):
            await log.append("t", 0, payloads("y"))
        assert len(seen) == 1
        world.heal("a", "log")
        await asyncio.sleep(2)
        reader.cancel()

    finish(world, main)
    assert [entry.value for entry in seen] == [b"x", b"y"]


def test_a_tail_rides_out_an_outage_and_skips_nothing(world: World) -> None:
    seen: list[LogEntry] = []

    async def main(log: SimulatedLog) -> None:
        reader = asyncio.create_task(collect(log, seen))
        for number in range(300):
            if number == 100:
                world.set_down("log", True)
                asyncio.get_running_loop().call_later(30, world.set_down, "log", False)
            while True:
                try:
                    await log.append("t", number % 2, payloads(number))
                    break
                except LogUnavailable:
                    continue
        await asyncio.sleep(5)
        reader.cancel()

    finish(world, main, within_s=1_000)
    for partition in (0, 1):
        mine = [entry for entry in seen if entry.partition == partition]
        assert mine == list(world.log.read("t", partition, 0))
        assert len(mine) >= 150


def test_a_tail_never_delivers_an_entry_at_the_instant_of_its_append(world: World) -> None:
    arrived_s: list[float] = []

    async def main(log: SimulatedLog) -> None:
        async for _ in log.tail("t", (0, 0)):
            arrived_s.append(world.now_s)
            break

    process = run_in_process(world, main)

    async def drive() -> None:
        await asyncio.sleep(10)
        world.log.append("t", 0, payloads("x"))
        await world.until(lambda: process.dead, 5, "the reader has read")

    world.run(drive())
    assert 10 < arrived_s[0] < 11


def test_a_paused_reader_holds_a_bounded_part_of_the_log_and_gets_the_rest_when_it_resumes(world: World) -> None:
    seen: list[LogEntry] = []
    process = run_in_process(world, lambda log: collect(log, seen))

    async def drive() -> None:
        await asyncio.sleep(5)
        process.pause()
        for number in range(30_000):
            world.log.append("t", 0, payloads(number))
            if number % 10 == 0:
                await asyncio.sleep(0.01)
        assert sum(len(batch) for batch in world.log._tails[0]._inbox) < 30_000  # type: ignore[arg-type]
        process.resume()
        await world.until(lambda: len(seen) == 30_000, 60, "all is read")

    world.run(drive())
    assert [entry.offset for entry in seen] == list(range(30_000))


def test_the_server_forgets_the_tail_of_a_crashed_reader(world: World) -> None:
    process = run_in_process(world, lambda log: collect(log, []))

    async def drive() -> None:
        await asyncio.sleep(5)
        assert len(world.log._tails) == 1
        process.crash()
        world.log.append("t", 0, payloads("x"))
        assert world.log._tails == []

    world.run(drive())


def test_a_request_that_was_under_way_outlives_its_crashed_sender(world: World) -> None:
    process = run_in_process(world, lambda log: log.append("t", 0, payloads("x")))

    async def drive() -> None:
        await asyncio.sleep(0)  # the process has sent it, and nothing else
        await asyncio.sleep(0)
        process.crash()
        assert stored(world) == []
        await asyncio.sleep(5)

    world.run(drive())
    assert stored(world) == ["x"]


def test_a_tail_from_a_trimmed_offset_says_so(world: World) -> None:
    world.log.append("t", 0, payloads(1, 2, 3))
    world.log.trim("t", 0, 2)
    assert world.log.ends("t") == (3, 0)
    with pytest.raises(LogError, match="trimmed"):
        finish(world, lambda log: collect(log, [], (1, 0)))
