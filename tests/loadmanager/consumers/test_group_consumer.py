"""Consumers of a real Kafka, whose group is coordinated by real brokers: what is read once, what again, and never not.

Planned changes repeat nothing: consumers that come and go, moves of the coordinator, also its broker's death.
"""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from loadmanager.consumer.group_consumer import GroupConsumer
from loadmanager.consumer.hosting import KafkaTopics
from loadmanager.consumers.coordinator.service import Coordinator
from loadmanager.consumers.coordinator.store import GroupStore
from loadmanager.errors import Conflict, NotFound
from loadmanager.testing import NAMESPACE, EmbeddedCluster, embedded_cluster
from statechannel.adapters.kafka.group_commits import GroupCommits
from statechannel.adapters.kafka.groups import KafkaGroups
from statechannel.adapters.sqlite.log import SqliteLog
from tests.loadmanager.consumers.running import in_background
from tests.servers import shared_kafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

PARTITIONS = 6
BROKERS = 3
WAIT_S = 60.0


class Reading:
    """One consumer on a thread of its own, until it is stopped."""

    def __init__(self, world: World, **options: Any) -> None:
        self.seen = Counter[str]()
        self.told: list[tuple[str, int]] = []
        self.error: Exception | None = None
        self._stop = threading.Event()
        self.consumer = GroupConsumer(
            world.group,
            [world.topic],
            **world.options,
            **{
                f"on_{what}": lambda partitions, what=what: self.told.append((what, len(partitions)))
                for what in ("assign", "revoke", "lost")
            },
            **options,
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            with self.consumer:
                while not self._stop.is_set():
                    message = self.consumer.poll(0.2)
                    if message is not None:
                        self.seen[(message.value() or b"").decode()] += 1
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.to_thread(self._thread.join, WAIT_S)
        if self.error is not None:
            raise self.error


class World:
    """A topic, a group, and brokers whose admin interfaces and coordinators can be asked."""

    def __init__(self, cluster: EmbeddedCluster[Coordinator], kafka: str) -> None:
        self.cluster = cluster
        self.kafka = kafka
        ours = uuid.uuid4().hex[:8]
        self.topic, self.group = f"orders-{ours}", f"persistent://{NAMESPACE}/billing-{ours}"
        self.sent = 0
        self._producer = Producer({"bootstrap.servers": kafka, "broker.address.family": "v4"})
        admin = AdminClient({"bootstrap.servers": kafka, "broker.address.family": "v4"})
        admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)])[self.topic].result(WAIT_S)

    @property
    def options(self) -> dict[str, Any]:
        """Of every consumer here."""
        kafka = {"bootstrap.servers": self.kafka, "auto.offset.reset": "earliest", "broker.address.family": "v4"}
        return {
            "brokers": self.cluster.admin_urls, "kafka": kafka, "session_timeout_s": 5.0, "commit_interval_s": 0.2,
        }  # fmt: skip

    def send(self, count: int) -> None:
        for _ in range(count):
            self._producer.produce(self.topic, str(self.sent).encode(), partition=self.sent % PARTITIONS)
            self.sent += 1
        assert self._producer.flush(WAIT_S) == 0

    @property
    def coordinator(self) -> Coordinator:
        owner = self.cluster.owner(self.group)
        assert owner is not None
        return self.cluster.host(owner)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Send a little all the time, until this holds."""
        deadline_s = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < deadline_s, "it never holds"
            await asyncio.to_thread(self.send, 3)
            await asyncio.sleep(0.05)


@pytest_asyncio.fixture
async def world(pytestconfig: pytest.Config, tmp_path: Path) -> AsyncGenerator[World]:
    kafka = shared_kafka(pytestconfig).address
    async with AsyncExitStack() as stack:

        async def make() -> Coordinator:
            log = SqliteLog(tmp_path / "groups.db")
            await log.start(5)
            stack.push_async_callback(log.close)
            topics = KafkaTopics(KafkaGroups(kafka, {"broker.address.family": "v4"}), GroupCommits(kafka))
            hosted = Coordinator(GroupStore(log), topics, time.monotonic)
            await hosted.start()
            await stack.enter_async_context(in_background(hosted.run()))
            return hosted

        cluster = await stack.enter_async_context(
            embedded_cluster(make, brokers=BROKERS, bundles=4, directory=tmp_path)
        )
        yield World(cluster, kafka)


def assert_read_once(world: World, *readings: Reading) -> None:
    seen = sum((each.seen for each in readings), Counter[str]())
    assert len(seen) == world.sent, "none is lost"
    assert [value for value, times in seen.items() if times > 1] == [], "none is repeated"


async def finished(world: World, *readings: Reading) -> None:
    """Everything that was sent has been read; then they stop."""
    async with asyncio.timeout(WAIT_S):
        while len(sum((each.seen for each in readings), Counter[str]())) < world.sent:
            await asyncio.sleep(0.05)
    for each in readings:
        await each.stop()


async def test_consumers_come_and_go_and_each_record_is_read_once(world: World) -> None:
    first = Reading(world)
    await world.until(lambda: len(first.consumer.assignment) == PARTITIONS)
    second = Reading(world)
    await world.until(lambda: len(first.consumer.assignment) == len(second.consumer.assignment) == 3)
    third = Reading(world)
    await world.until(lambda: [len(each.consumer.assignment) for each in (first, second, third)] == [2, 2, 2])
    await first.stop()
    await world.until(lambda: len(second.consumer.assignment) == len(third.consumer.assignment) == 3)
    await finished(world, first, second, third)
    assert_read_once(world, first, second, third)
    assert ("revoke", 3) in first.told
    assert not any(what == "lost" for each in (first, second, third) for what, _ in each.told)


async def test_moves_and_death_of_the_coordinator_are_not_noticed(world: World) -> None:
    readings = [Reading(world), Reading(world)]
    await world.until(lambda: all(len(each.consumer.assignment) == 3 for each in readings))
    before = [each.consumer.assignment for each in readings]
    owner = world.cluster.owner(world.group)
    for broker in [*(each for each in world.cluster.brokers if each is not owner), owner]:
        assert broker is not None
        await world.cluster.transfer(world.group, broker)
        mark = world.sent
        await world.until(lambda mark=mark: world.sent > mark + 30)
    owner = world.cluster.owner(world.group)
    assert owner is not None
    await world.cluster.kill(owner)
    await world.cluster.settled()
    mark = world.sent
    await world.until(lambda: world.sent > mark + 60)
    assert [each.consumer.assignment for each in readings] == before
    await finished(world, *readings)
    assert_read_once(world, *readings)


async def test_who_comes_back_goes_on_where_it_stopped(world: World) -> None:
    first = Reading(world)
    await world.until(lambda: len(first.seen) > 50)
    await finished(world, first)
    await asyncio.to_thread(world.send, 30)
    second = Reading(world)
    await finished(world, first, second)
    assert len(second.seen) == 30
    assert_read_once(world, first, second)


async def test_a_slow_record_is_in_flight_and_not_available(world: World) -> None:
    """A commit stands at the first record that is not done; what was taken behind it is known all the same."""
    await asyncio.to_thread(world.send, 20 * PARTITIONS)
    taken = Counter[int]()
    with GroupConsumer(world.group, [world.topic], auto_done=False, **world.options) as consumer:
        async with asyncio.timeout(WAIT_S):
            while len(taken) < PARTITIONS:
                message = await asyncio.to_thread(consumer.poll, 0.2)
                if message is not None:
                    taken[message.partition() or 0] += 1
                    if message.offset():
                        consumer.done(message)
            in_flight, available = 0, 0
            while (in_flight, available) != (taken.total(), world.sent - taken.total()):
                with suppress(NotFound):  # it has committed nothing yet
                    found = (await world.coordinator.lag.read(world.group)).backlog.sum(int(time.time() * 1000))
                    in_flight = found.in_flight.messages if found.in_flight else 0
                    available = found.available.messages if found.available else 0


async def test_offsets_are_reset_while_consumers_read(world: World) -> None:
    first, second = Reading(world), Reading(world)
    await world.until(lambda: len(first.consumer.assignment) == len(second.consumer.assignment) == 3)
    before, kept = first.consumer.assignment, second.consumer.assignment
    mine = {number for _, number in before}
    await world.until(lambda: world.sent > 300)
    mark, told = world.sent, list(second.told)
    async with asyncio.timeout(WAIT_S):
        while len(first.seen + second.seen) < mark:
            await asyncio.sleep(0.05)
    sending = asyncio.create_task(world.until(lambda: world.sent > mark + 300))
    await world.coordinator.reset(world.group, dict.fromkeys(before, 0), WAIT_S)
    await sending
    await world.until(lambda: first.consumer.assignment == before)
    async with asyncio.timeout(WAIT_S):
        while any((first.seen + second.seen)[str(each)] < 2 for each in range(mark) if each % PARTITIONS in mine):
            await asyncio.sleep(0.05)
    assert second.consumer.assignment == kept
    assert second.told == told, "who reads nothing there notices nothing"
    assert not any(what == "lost" for what, _ in first.told)
    await finished(world, first, second)
    seen = first.seen + second.seen
    assert len(seen) == world.sent, "none is lost"
    assert all(times == 1 for value, times in seen.items() if int(value) % PARTITIONS not in mine), "nor repeated there"
    assert all(times <= 2 for times in seen.values()), "no former commit took the group back"
    found = await world.coordinator.offsets.committed(world.group.partition("://")[2])
    assert found is not None
    assert sum(found[0][world.topic].values()) == world.sent, "all commits since then are there"


async def test_who_reads_nothing_of_a_reset_group_begins_there(world: World) -> None:
    await asyncio.to_thread(world.send, 60)
    await world.coordinator.reset(world.group, {(world.topic, number): 7 for number in range(PARTITIONS)}, WAIT_S)
    reading = Reading(world)
    async with asyncio.timeout(WAIT_S):
        while len(reading.seen) < 60 - 7 * PARTITIONS:
            await asyncio.sleep(0.05)
    await reading.stop()
    assert min(map(int, reading.seen)) == 7 * PARTITIONS


async def test_a_group_with_members_of_kafkas_own_protocol_is_told_so(world: World) -> None:
    plain = Consumer({
        "bootstrap.servers": world.kafka,
        "broker.address.family": "v4",
        "group.id": world.group.partition("://")[2],
        "auto.offset.reset": "earliest",
    })  # fmt: skip
    plain.subscribe([world.topic])
    async with asyncio.timeout(WAIT_S):
        while not plain.assignment():
            await asyncio.to_thread(plain.poll, 0.2)
    await asyncio.to_thread(world.send, 20)
    reading = Reading(world)
    async with asyncio.timeout(WAIT_S):
        while reading.error is None:
            await asyncio.to_thread(plain.poll, 0.2)
    with pytest.raises(Conflict, match="members of the group"):
        await reading.stop()
    plain.close()
