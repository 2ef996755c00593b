"""A real Kafka with brokers that coordinate a group of its consumers, for tests."""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from loadmanager.consumer.group_consumer import GroupConsumer
from loadmanager.consumer.hosting import KafkaTopics
from loadmanager.consumers.coordinator.service import Coordinator
from loadmanager.consumers.coordinator.store import GroupStore
from loadmanager.testing import NAMESPACE, EmbeddedCluster, embedded_cluster
from statechannel.adapters.kafka.group_commits import GroupCommits
from statechannel.adapters.kafka.groups import KafkaGroups
from statechannel.adapters.sqlite.log import SqliteLog
from tests.loadmanager.consumers.running import in_background
from tests.servers import shared_kafka

PARTITIONS = 6
BROKERS = 3
WAIT_S = 60.0


class Reading:
    """One consumer on a thread of its own, until it is stopped."""

    def __init__(self, world: World, *more_topics: str, **options: Any) -> None:
        self.seen = Counter[str]()
        self.told: list[tuple[str, int]] = []
        self.error: Exception | None = None
        self._stop = threading.Event()
        self.consumer = GroupConsumer(
            world.group,
            [world.topic, *more_topics],
            **{
                **world.options,
                **{
                    f"on_{what}": lambda partitions, what=what: self.told.append((what, len(partitions)))
                    for what in ("assign", "revoke", "lost")
                },
                **options,
            },
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
        self.admin = AdminClient({"bootstrap.servers": kafka, "broker.address.family": "v4"})
        self.create(self.topic)

    @property
    def options(self) -> dict[str, Any]:
        """Of every consumer here."""
        kafka = {"bootstrap.servers": self.kafka, "auto.offset.reset": "earliest", "broker.address.family": "v4"}
        return {
            "brokers": self.cluster.admin_urls, "kafka": kafka, "session_timeout_s": 5.0, "commit_interval_s": 0.2,
        }  # fmt: skip

    def create(self, topic: str) -> None:
        self.admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(WAIT_S)

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
            hosted = Coordinator(GroupStore(log), topics, time.monotonic, lag_every_s=0.5)
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
