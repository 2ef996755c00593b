"""The consumer for asyncio, of a real Kafka: records, callbacks on the loop, cancelled calls, several tasks."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from loadmanager.consumer.async_group_consumer import AsyncGroupConsumer
from loadmanager.consumers.coordinator.records import Partition
from tests.loadmanager.consumers.kafka_world import PARTITIONS, WAIT_S, Reading, World, finished, world

__all__ = ["world"]

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]


@pytest.mark.slow
async def test_records_are_read_once_and_callbacks_run_on_the_loop(world: World) -> None:
    loop, told, seen = asyncio.get_running_loop(), list[tuple[str, int]](), Counter[str]()

    async def assigned(partitions: list[Partition]) -> None:
        assert asyncio.get_running_loop() is loop
        told.append(("assign", len(partitions)))

    async def revoked(partitions: list[Partition]) -> None:
        await asyncio.sleep(0)
        told.append(("revoke", len(partitions)))

    await asyncio.to_thread(world.send, 60)
    consumer = AsyncGroupConsumer(world.group, [world.topic], on_assign=assigned, on_revoke=revoked, **world.options)
    async with consumer, asyncio.timeout(WAIT_S):
        async for message in consumer:
            seen[(message.value() or b"").decode()] += 1
            if len(seen) == 60:
                break
        assert len(consumer.assignment) == PARTITIONS
        assert consumer.assignment == sorted(consumer.assignment)
    assert told == [("assign", PARTITIONS), ("revoke", PARTITIONS)]
    await asyncio.to_thread(world.send, 6)
    after = Reading(world)
    while len(after.seen) < 6:
        await asyncio.sleep(0.05)
    await after.stop()
    assert not seen.keys() & after.seen.keys(), "all was committed"


@pytest.mark.slow
async def test_a_cancelled_call_loses_no_record(world: World) -> None:
    """Cancelled at any of its steps."""
    await asyncio.to_thread(world.send, 300)
    seen, cancelled = Counter[str](), 0
    async with AsyncGroupConsumer(world.group, [world.topic], **world.options) as consumer:
        async with asyncio.timeout(WAIT_S):
            while len(seen) < 300:
                polling = asyncio.create_task(consumer.poll(1.0))
                for _ in range(len(seen) % 5):
                    await asyncio.sleep(0)
                if len(seen) % 3 == 0 and polling.cancel():
                    await asyncio.wait([polling])
                    cancelled += polling.cancelled()
                    polling = asyncio.create_task(consumer.poll(1.0))
                message = await polling
                if message is not None:
                    seen[(message.value() or b"").decode()] += 1
    assert cancelled > 20
    assert set(seen.values()) == {1}


@pytest.mark.slow
async def test_tasks_share_a_consumer_and_are_done_in_any_order(world: World) -> None:
    await asyncio.to_thread(world.send, 200)
    seen = Counter[str]()
    async with AsyncGroupConsumer(world.group, [world.topic], auto_done=False, **world.options) as consumer:

        async def work(turns: int) -> None:
            while sum(seen.values()) < 200:
                message = await consumer.poll(0.1)
                if message is not None:
                    seen[(message.value() or b"").decode()] += 1
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    consumer.done(message)

        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*(work(turns) for turns in (0, 1, 7)))
    assert (len(seen), seen.total()) == (200, 200)
    after = Reading(world)
    await world.until(lambda: len(after.seen) > 0)
    await after.stop()
    assert not seen.keys() & after.seen.keys(), "all was committed"


async def test_a_consumer_ends_while_a_call_waits(world: World) -> None:
    consumer = AsyncGroupConsumer(world.group, [world.topic], **world.options)
    async with consumer:
        waiting = asyncio.create_task(consumer.poll(WAIT_S))
        async with asyncio.timeout(WAIT_S):
            while len(consumer.assignment) < PARTITIONS:
                await asyncio.sleep(0.05)
    assert await waiting is None
    await finished(world)
