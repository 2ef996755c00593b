"""From a real group on a real Kafka to the figures of the analysis: its lag by the minute is in the lake."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from loadmanager.consumer.hosting import KafkaTopics
from loadmanager.consumers.coordinator.lag_topic import GROUP_LAG, GROUP_LAG_TOPIC, GroupLagRecord
from loadmanager.consumers.coordinator.service import Coordinator
from loadmanager.consumers.coordinator.store import GroupStore
from loadmanager.history.analyses import ANALYSES
from loadmanager.history.analyses.analysis import Options as Asked
from loadmanager.history.duck import connected
from loadmanager.history.ingest import Ingest, Options
from loadmanager.history.lake import Lake, Window
from loadmanager.history.sources import KafkaSource
from loadmanager.settings import Settings
from loadmanager.testing import embedded_cluster
from stack.servers import KafkaServer
from statechannel.adapters.kafka.group_commits import GroupCommits
from statechannel.adapters.kafka.groups import KafkaGroups
from statechannel.adapters.kafka.log import KafkaLog
from tests.loadmanager.consumers.kafka_world import PARTITIONS, WAIT_S, Reading, World
from tests.loadmanager.consumers.running import in_background
from tests.servers import topic_prefix

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

SENT = 5 * PARTITIONS


class Undone(Reading):
    """A consumer that finishes nothing before `finish`."""

    def __init__(self, world: World) -> None:
        self.kept: list[Any] = []
        super().__init__(world, auto_done=False)

    def _read(self) -> None:
        with self.consumer:
            while not self._stop.is_set():
                message = self.consumer.poll(0.2)
                if message is not None:
                    self.kept.append(message)

    def finish(self) -> None:
        for message in self.kept:
            self.consumer.done(message)


async def test_the_lag_of_a_real_group_is_in_the_analysis_and_the_view(
    tmp_path: Path, spark: SparkSession, kafka_server: KafkaServer
):
    source = KafkaSource(kafka_server.address, topic_prefix("history.lag"))
    async with AsyncExitStack() as stack:

        async def make() -> Coordinator:
            topics = KafkaTopics(
                KafkaGroups(source.bootstrap, {"broker.address.family": "v4"}), GroupCommits(source.bootstrap)
            )
            store = GroupStore(await opened(source, stack))
            coordinator = Coordinator(store, topics, time.monotonic, lag_every_s=0.2, reported_every_s=1.0)
            await coordinator.start()
            await stack.enter_async_context(in_background(coordinator.run()))
            return coordinator

        cluster = await stack.enter_async_context(embedded_cluster(make, brokers=2, bundles=2, directory=tmp_path))
        world = World(cluster, source.bootstrap)
        log = await opened(source, stack)
        one = Undone(world)
        world.send(SENT)
        waiting = await until_said(log, lambda said: [each.lag for each in said] == [SENT // PARTITIONS] * PARTITIONS)
        assert {each.consumer for each in waiting} == await members(world)
        await asyncio.to_thread(one.finish)
        await until_said(log, lambda said: [each.lag for each in said] == [0] * PARTITIONS)
        other = Undone(world)
        divided = await until_said(log, lambda said: len({each.consumer for each in said}) == 2)
        assert {each.consumer for each in divided} == await members(world)
        await one.stop()
        await other.stop()
    async with AsyncExitStack() as stack:
        records = await written(await opened(source, stack))

    lake = Lake(spark, str(tmp_path / "lake"))
    Ingest(lake, source, Options(partitions=1)).run_available()
    group = world.group.partition("://")[2]
    [row] = ANALYSES["groups"].run(lake.table, Window(), Asked.of(Settings())).where(f"group = '{group}'").collect()
    assert (row.topic, row.queues, row.lag_max, row.lag_last) == (world.topic, PARTITIONS, SENT // PARTITIONS, 0)
    assert 0 < row.lag_mean < row.lag_max
    assert (row.rebalances, row.stickiness) == rebalanced(records)
    assert row.rebalances >= 1
    assert lake.table("quarantine").count() == 0
    question = "SELECT max(lag), max(queues) FROM consumer_lag_by_minute"
    [(most, queues)] = connected(tmp_path / "lake", tmp_path, question).execute(question).fetchall()
    assert (most, queues) in ((SENT, PARTITIONS), (0, PARTITIONS)), "the last report of each minute counts"


async def opened(source: KafkaSource, stack: AsyncExitStack) -> KafkaLog:
    log = KafkaLog(source.bootstrap, topic_prefix=source.prefix, development=True, request_timeout_s=30.0)
    await log.start(timeout_s=WAIT_S)
    stack.push_async_callback(log.close)
    return log


async def written(log: KafkaLog) -> list[GroupLagRecord]:
    """All reports so far, in order."""
    if not await log.has_topic(GROUP_LAG_TOPIC):
        return []
    await log.open_topic(GROUP_LAG)
    values = [entry.value async for batch in log.read(GROUP_LAG_TOPIC, 0, 0) for entry in batch]
    return [msgspec.json.decode(value, type=GroupLagRecord) for value in values if value is not None]


def rebalanced(records: list[GroupLagRecord]) -> tuple[int, float]:
    """How far the generation rose, and which part of the partitions kept their consumer over a change."""
    last = {(each.generation, each.queue): each.consumer for each in records if each.consumer}
    generations = sorted({each.generation for each in records})
    pairs = [
        (last[before, queue], last[after, queue])
        for before, after in pairwise(generations)
        for queue in range(PARTITIONS)
        if (before, queue) in last and (after, queue) in last
    ]
    return generations[-1] - generations[0], sum(one == other for one, other in pairs) / len(pairs)


async def members(world: World) -> set[str]:
    return set((await world.coordinator.describe(world.group)).members)


async def until_said(log: KafkaLog, holds: Callable[[list[GroupLagRecord]], bool]) -> list[GroupLagRecord]:
    """The last record of each queue, in order, as soon as they are so."""
    async with asyncio.timeout(WAIT_S):
        while True:
            said = list({each.queue: each for each in await written(log)}.values())
            if said and holds(sorted(said, key=lambda each: each.queue)):
                return said
            await asyncio.sleep(0.1)
