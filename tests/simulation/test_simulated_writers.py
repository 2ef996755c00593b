"""Exclusive writers of the simulated log: what a transaction may meet; never is it torn, doubled or unfenced."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from statechannel.errors import LogUnavailable, RecordTooLarge, WriterFenced
from statechannel.ports import Payload, TopicSpec
from tests.simulator.network import NO_FAULTS, Faults, Latency
from tests.simulator.simulated_log import SimulatedLog
from tests.simulator.world import World

WRITER = "owner-0"


@pytest.fixture
def world() -> Iterator[World]:
    with World(7, latency=Latency(spike_chance=0.1)) as world:
        world.log.open_topic(TopicSpec("t", 1))
        yield world


def payloads(*values: object) -> list[Payload]:
    return [Payload(None, str(value).encode()) for value in values]


def stored(world: World) -> list[str]:
    return [(entry.value or b"").decode() for entry in world.log.read("t", 0, 0)]


def finish(world: World, *mains: Callable[[SimulatedLog], Coroutine[Any, Any, object]]) -> None:
    """Run each as the main task of a process ("a", "b", …) until all have ended."""
    processes = [world.process("abc"[number]) for number in range(len(mains))]
    for process, main in zip(processes, mains, strict=True):
        log = world.log_client(process, request_timeout_s=2)
        process.start(lambda main=main, log=log: main(log))
    world.run(world.until(lambda: all(p.dead for p in processes), 100, "the processes end"))
    for process in processes:
        if process.failure is not None:
            raise process.failure


def test_a_commit_is_read_whole_and_its_marker_takes_an_offset(world: World) -> None:
    async def main(log: SimulatedLog) -> None:
        writer = await log.exclusive(WRITER)
        await writer.commit("t", 0, payloads(1, 2, 3))
        await writer.commit("t", 0, payloads(4))
        assert await log.ends("t") == (6,)

    finish(world, main)
    assert stored(world) == ["1", "2", "3", "4"]
    assert [entry.offset for entry in world.log.read("t", 0, 0)] == [0, 1, 2, 4]


def test_a_read_ends_though_the_end_lies_beyond_the_last_marker(world: World) -> None:
    read: list[bytes | None] = []

    async def main(log: SimulatedLog) -> None:
        writer = await log.exclusive(WRITER)
        await writer.commit("t", 0, payloads(*range(50)))
        async for batch in log.read("t", 0, 0):
            read.extend(entry.value for entry in batch)

    finish(world, main)
    assert read == [str(number).encode() for number in range(50)]


def test_a_commit_whose_request_is_lost_leaves_a_gap_at_most(world: World) -> None:
    ends: set[int] = set()

    async def main(log: SimulatedLog) -> None:
        for _ in range(20):
            (before,) = world.log.ends("t")
            writer = await log.exclusive(WRITER)
            world.network.faults = Faults(lost_request=1)
            with pytest.raises(LogUnavailable):
                await writer.commit("t", 0, payloads(1, 2))
            world.network.faults = NO_FAULTS
            ends.add(world.log.ends("t")[0] - before)

    finish(world, main)
    assert stored(world) == []
    assert ends == {0, 1, 2, 3}


def test_a_commit_whose_answer_is_lost_has_happened_once_though_it_is_sent_again(world: World) -> None:
    async def main(log: SimulatedLog) -> None:
        writer = await log.exclusive(WRITER)
        world.network.faults = Faults(lost_answer=1, repeated=1)
        with pytest.raises(LogUnavailable):
            await writer.commit("t", 0, payloads("x"))
        world.network.faults = NO_FAULTS
        await asyncio.sleep(20)

    finish(world, main)
    assert stored(world) == ["x"]


def test_after_a_commit_in_doubt_a_writer_takes_no_other_one(world: World) -> None:
    async def main(log: SimulatedLog) -> None:
        writer = await log.exclusive(WRITER)
        world.network.faults = Faults(lost_answer=1)
        with pytest.raises(LogUnavailable):
            await writer.commit("t", 0, payloads("x"))
        world.network.faults = NO_FAULTS
        with pytest.raises(LogUnavailable, match="ask for a new one"):
            await writer.commit("t", 0, payloads("y"))
        await (await log.exclusive(WRITER)).commit("t", 0, payloads("z"))

    finish(world, main)
    assert stored(world) == ["x", "z"]


def test_a_commit_that_is_cancelled_is_in_doubt_too(world: World) -> None:
    async def main(log: SimulatedLog) -> None:
        writer = await log.exclusive(WRITER)
        commit = asyncio.create_task(writer.commit("t", 0, payloads("x")))
        await asyncio.sleep(0)
        commit.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await commit
        with pytest.raises(LogUnavailable, match="ask for a new one"):
            await writer.commit("t", 0, payloads("y"))

    finish(world, main)


@pytest.mark.parametrize("somebody_else_came", [True, False])
def test_a_commit_that_arrives_late_counts_only_if_nobody_else_is_the_writer_by_then(
    world: World, somebody_else_came: bool
) -> None:
    world.network.faults = Faults(late=1)

    async def first(log: SimulatedLog) -> None:
        writer = await log.exclusive(WRITER)
        world.cut("a", "log")
        with pytest.raises(LogUnavailable):
            await writer.commit("t", 0, payloads("first"))
        await asyncio.sleep(5)
        world.heal("a", "log")
        await asyncio.sleep(5)

    async def second(log: SimulatedLog) -> None:
        await asyncio.sleep(4)
        if somebody_else_came:
            await (await log.exclusive(WRITER)).commit("t", 0, payloads("second"))

    finish(world, first, second)
    assert stored(world) == (["second"] if somebody_else_came else ["first"])


def test_a_paused_writer_that_wakes_is_told_that_it_is_fenced(world: World) -> None:
    async def first(log: SimulatedLog) -> None:
        writer = await log.exclusive(WRITER)
        await asyncio.sleep(2)  # here it is paused
        with pytest.raises(WriterFenced, match="stop writing"):
            await writer.commit("t", 0, payloads("old"))

    async def second(log: SimulatedLog) -> None:
        await asyncio.sleep(1)
        world.pause("a")
        await (await log.exclusive(WRITER)).commit("t", 0, payloads("new"))
        await asyncio.sleep(10)
        world.resume("a")

    finish(world, first, second)
    assert stored(world) == ["new"]


def test_writers_of_different_ids_do_not_fence_each_other(world: World) -> None:
    async def main(log: SimulatedLog) -> None:
        one, other = await log.exclusive("owner-1"), await log.exclusive("owner-2")
        await one.commit("t", 0, payloads(1))
        await other.commit("t", 0, payloads(2))

    finish(world, main)
    assert stored(world) == ["1", "2"]


def test_concurrent_commits_of_one_writer_come_one_after_the_other(world: World) -> None:
    async def main(log: SimulatedLog) -> None:
        writer = await log.exclusive(WRITER)
        async with asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(writer.commit("t", 0, payloads(number, number)))

    finish(world, main)
    assert stored(world) == [str(number // 2) for number in range(20)]


def test_a_transaction_with_a_payload_that_is_too_large_changes_nothing(world: World) -> None:
    async def main(log: SimulatedLog) -> None:
        writer = await log.exclusive(WRITER)
        with pytest.raises(RecordTooLarge):
            await writer.commit("t", 0, [*payloads("small"), Payload(None, b"x" * 2_000_000)])
        await writer.commit("t", 0, payloads("next"))

    finish(world, main)
    assert stored(world) == ["next"]


def test_a_closed_writer_writes_nothing_more(world: World) -> None:
    async def main(log: SimulatedLog) -> None:
        writer = await log.exclusive(WRITER)
        await writer.close()
        await writer.close()
        with pytest.raises(LogUnavailable, match="closed"):
            await writer.commit("t", 0, payloads("x"))

    finish(world, main)
    assert stored(world) == []
