"""The simulated log over time: trimming, compaction, and where readers stand then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest

from statechannel.errors import LogError, Trimmed
from statechannel.ports import LogEntry, Payload, TopicSpec
from tests.simulator.simulated_log import MOST_ACTIVE_ENTRIES, TOMBSTONES_KEPT_MS, SimulatedLog, SimulatedLogServer
from tests.simulator.world import World


@pytest.fixture
def world() -> Iterator[World]:
    with World(7) as world:
        world.log.open_topic(TopicSpec("t", 2))
        world.log.open_topic(TopicSpec("table", 1, compacted=True))
        world.log.compaction_chance = 0.0  # here the tests say when
        yield world


def payloads(*values: object) -> list[Payload]:
    return [Payload(None, str(value).encode()) for value in values]


def finish(world: World, main: Callable[[SimulatedLog], Coroutine[Any, Any, object]]) -> None:
    process = world.process("a")
    log = world.log_client(process)
    process.start(lambda: main(log))
    world.run(world.until(lambda: process.dead, 100, "the process ends"))
    if process.failure is not None:
        raise process.failure


async def read_all(log: SimulatedLog, topic: str, start: int = 0) -> list[LogEntry]:
    return [entry async for batch in log.read(topic, 0, start) for entry in batch]


# --- trimming


def test_trimming_moves_the_begin_and_nothing_else(world: World) -> None:
    async def main(log: SimulatedLog) -> None:
        await log.append("t", 0, payloads(*range(10)))
        await log.trim("t", 0, 4)
        await log.trim("t", 0, 2)
        assert await log.begins("t") == (4, 0)
        assert await log.ends("t") == (10, 0)
        assert [entry.offset for entry in await read_all(log, "t", 4)] == [4, 5, 6, 7, 8, 9]

    finish(world, main)


def test_what_lies_beyond_the_end_is_not_trimmed_in_advance(world: World) -> None:
    async def main(log: SimulatedLog) -> None:
        await log.append("t", 0, payloads(1, 2))
        await log.trim("t", 0, 100)
        assert await log.begins("t") == await log.ends("t") == (2, 0)
        await log.append("t", 0, payloads(3))
        assert [entry.offset for entry in await read_all(log, "t", 2)] == [2]

    finish(world, main)


def test_a_read_below_the_begin_is_told_so(world: World) -> None:
    async def main(log: SimulatedLog) -> None:
        await log.append("t", 0, payloads(1, 2, 3))
        await log.trim("t", 0, 2)
        with pytest.raises(Trimmed, match="begins at 2"):
            await read_all(log, "t", 1)

    finish(world, main)


def test_a_read_that_is_overtaken_by_trimming_is_told_so(world: World) -> None:
    async def main(log: SimulatedLog) -> None:
        await log.append("t", 0, payloads(*range(5_000)))
        read = log.read("t", 0, 0)
        await anext(read)
        world.log.trim("t", 0, 4_000)
        with pytest.raises(Trimmed):
            async for _ in read:
                pass

    finish(world, main)


def test_a_tail_that_fell_behind_the_begin_is_told_so(world: World) -> None:
    seen: list[int] = []

    async def main(log: SimulatedLog) -> None:
        async for batch in log.tail("t", (0, 0)):
            seen.extend(entry.offset for entry in batch)

    async def drive() -> None:
        process = world.process("a")
        log = world.log_client(process)
        process.start(lambda: main(log))
        world.log.append("t", 0, payloads(1))
        await world.until(lambda: seen == [0], 5, "it has read")
        world.pause("a")
        for number in range(30_000):  # more than what may be under way to it
            world.log.append("t", 0, payloads(number))
            if number % 20 == 0:
                await asyncio.sleep(0.01)
        world.log.trim("t", 0, 29_999)
        world.resume("a")
        await world.until(lambda: process.dead, 60, "it ends")
        assert isinstance(process.failure, Trimmed)
        assert seen == list(range(len(seen)))  # nothing was skipped before

    world.run(drive())


def test_a_tail_at_the_end_is_not_behind_when_all_that_it_has_read_is_trimmed(world: World) -> None:
    seen: list[bytes | None] = []

    async def main(log: SimulatedLog) -> None:
        async for batch in log.tail("t", (0, 0)):
            seen.extend(entry.value for entry in batch)
            if len(seen) == 3:
                return

    async def drive() -> None:
        process = world.process("a")
        log = world.log_client(process)
        process.start(lambda: main(log))
        epoch = world.log.new_writer("w")
        world.log.commit("w", epoch, 1, "t", 0, payloads(1, 2))
        await world.until(lambda: len(seen) == 2, 5, "it has read")
        world.log.trim("t", 0, world.log.ends("t")[0])  # with the marker that nobody reads
        world.log.append("t", 0, payloads(3))
        await world.until(lambda: process.dead, 5, "it ends")
        assert process.failure is None
        assert seen == [b"1", b"2", b"3"]

    world.run(drive())


def test_a_compacted_topic_cannot_be_trimmed(world: World) -> None:
    with pytest.raises(LogError, match="compacted"):
        world.log.trim("table", 0, 1)


def test_who_watches_is_told_of_trimming_before_anything_is_gone(world: World) -> None:
    told: list[tuple[str, int, int, int]] = []

    def watch(topic: str, partition: int, before: int) -> None:
        told.append((topic, partition, before, len(world.log.read("t", 0, 0))))

    world.log.on_trim = watch
    world.log.append("t", 0, payloads(1, 2, 3))
    for before in (2, 2, 1):
        world.log.trim("t", 0, before)
    assert told == [("t", 0, 2, 3)]


# --- time


def test_offset_at_is_that_of_the_first_entry_since_then(world: World) -> None:
    async def main(log: SimulatedLog) -> None:
        times_ms: list[int] = []
        for number in range(3):
            await asyncio.sleep(1)
            times_ms.append(world.wall_ms())
            await log.append("t", 0, payloads(number))
        assert [await log.offset_at("t", 0, at_ms) for at_ms in times_ms] == [0, 1, 2]
        assert await log.offset_at("t", 0, 0) == 0
        assert await log.offset_at("t", 0, world.wall_ms() + 1) == 3
        await log.trim("t", 0, 2)
        assert await log.offset_at("t", 0, times_ms[0]) == 2

    finish(world, main)


# --- compaction


def table_of(server: SimulatedLogServer) -> dict[bytes | None, bytes | None]:
    return {entry.key: entry.value for entry in server.read("table", 0, 0)}


def put(server: SimulatedLogServer, *pairs: tuple[str, str | None]) -> None:
    server.append("table", 0, [Payload(k.encode(), None if v is None else v.encode()) for k, v in pairs])


def offsets(entries: Sequence[LogEntry]) -> list[int]:
    return [entry.offset for entry in entries]


def test_compaction_keeps_the_last_entry_of_each_key_at_its_offset(world: World) -> None:
    for turn in range(20):
        put(world.log, *((f"key {i}", f"{i} at {turn}") for i in range(10)))
    before = {entry.offset: entry for entry in world.log.read("table", 0, 0)}
    for _ in range(10):
        world.log.compact("table", 0)
    after = world.log.read("table", 0, 0)
    assert table_of(world.log) == {f"key {i}".encode(): f"{i} at 19".encode() for i in range(10)}
    assert len(after) <= 10 + MOST_ACTIVE_ENTRIES
    assert all(before[entry.offset] == entry for entry in after)
    assert world.log.ends("table") == (200,)


def test_reading_goes_on_with_the_next_offset_where_one_was_compacted(world: World) -> None:
    async def main(log: SimulatedLog) -> None:
        put(world.log, *(("same", str(number)) for number in range(100)), *((f"k{i}", "") for i in range(20)))
        world.log.compact("table", 0)
        assert (await read_all(log, "table", 0))[0].offset == 99
        assert offsets(await read_all(log, "table", 50)) == list(range(99, 120))
        assert await log.begins("table") == (0,)

    finish(world, main)


def test_a_tombstone_stays_for_a_while_and_then_goes(world: World) -> None:
    async def main(log: SimulatedLog) -> None:
        put(world.log, ("gone", "was here"), ("gone", None), *((f"k{i}", "") for i in range(MOST_ACTIVE_ENTRIES)))
        world.log.compact("table", 0)
        assert table_of(world.log)[b"gone"] is None
        await asyncio.sleep(TOMBSTONES_KEPT_MS / 1_000 + 1)
        world.log.compact("table", 0)
        assert b"gone" not in table_of(world.log)

    finish(world, main)


def test_a_compacted_topic_is_compacted_now_and_then_by_itself(world: World) -> None:
    world.log.compaction_chance = 0.05
    for turn in range(200):
        put(world.log, ("key", str(turn)))
    assert len(world.log.read("table", 0, 0)) < 150
    assert table_of(world.log) == {b"key": b"199"}


def test_what_is_superseded_in_the_middle_of_a_read_may_be_missed_with_what_superseded_it(world: World) -> None:
    """As on Kafka: a reader of a compacted topic has to bear that a key it was promised is gone."""

    async def main(log: SimulatedLog) -> None:
        put(world.log, *((f"k{i}", "") for i in range(3_000)), ("index", "old"))
        read = log.read("table", 0, 0)
        await anext(read)
        put(world.log, ("index", "new"), *((f"l{i}", "") for i in range(MOST_ACTIVE_ENTRIES)))
        world.log.compact("table", 0)
        keys = {entry.key async for batch in read for entry in batch}
        assert b"index" not in keys
        assert b"k2999" in keys

    finish(world, main)
