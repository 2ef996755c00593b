"""What benches of consumer groups share: a Kafka with short sessions, brokers that coordinate, members, a flow."""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

from confluent_kafka import Producer

from loadmanager.consumer.hosting import KafkaTopics
from loadmanager.consumers.coordinator.service import Coordinator
from loadmanager.consumers.coordinator.store import GroupStore
from loadmanager.testing import embedded_cluster
from stack.servers import KafkaServer
from statechannel.adapters.kafka.group_commits import GroupCommits
from statechannel.adapters.kafka.groups import KafkaGroups
from statechannel.adapters.kafka.log import KafkaLog

NAMES = {
    "ours": "ours",
    "classic": "Kafka, cooperative-sticky",
    "consumer": "Kafka, consumer protocol",
    "averagely": "as RocketMQ, averagely",
}


class EqualKafka(KafkaServer):
    """With the session time-out that everybody has."""

    def __init__(self, data_dir: Path, session_s: float, proxied_at: Mapping[str, int] | None = None) -> None:
        super().__init__(data_dir, proxied_at=proxied_at)
        self._session_s = session_s

    def _settings(self) -> dict[str, str]:
        session_ms, beat_ms = str(int(self._session_s * 1000)), str(int(self._session_s * 1000 / 3))
        return {
            **super()._settings(),
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": session_ms,
            "group.consumer.min.session.timeout.ms": session_ms,
            "group.consumer.session.timeout.ms": session_ms,
            "group.consumer.min.heartbeat.interval.ms": beat_ms,
            "group.consumer.heartbeat.interval.ms": beat_ms,
        }


@asynccontextmanager
async def coordinators(kafka: str) -> AsyncGenerator[list[str]]:
    """Three brokers that coordinate groups; gives their admin URLs."""
    async with AsyncExitStack() as stack:

        async def make() -> Coordinator:
            log = KafkaLog(kafka, topic_prefix="bench.", development=True, replication=1, min_insync=1)
            await log.start(30)
            stack.push_async_callback(log.close)
            hosted = Coordinator(GroupStore(log), KafkaTopics(KafkaGroups(kafka), GroupCommits(kafka)), time.monotonic)
            await hosted.start()
            running = asyncio.create_task(hosted.run())
            stack.callback(running.cancel)
            return hosted

        cluster = await stack.enter_async_context(embedded_cluster(make, brokers=3, namespace="bench/groups"))
        yield cluster.admin_urls


class Run(NamedTuple):
    """Records that a member read one after another: until when, and their offsets."""

    at_s: float
    first: int
    size: int


Read = dict[int, list[Run]]
"""By partition."""


class Member:
    """A consumer's process, and what it read."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.joining_s = 0.0
        self.read: Read = {}
        self._following = asyncio.create_task(self._follow())

    @classmethod
    async def begin(cls, **told: Any) -> Self:
        """A process of `bench.group_member`."""
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "bench.group_member", json.dumps(told), stdout=asyncio.subprocess.PIPE
            )
        )

    async def _follow(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            first, *rest = line.split()
            if first == b"joining":
                self.joining_s = float(rest[0])
            elif len(rest) == 3:
                partition, offset, count = map(int, rest)
                self.read.setdefault(partition, []).append(Run(float(first), offset, count))

    def reads_since(self, since_s: float) -> set[int]:
        return {partition for partition, seen in self.read.items() if seen[-1].at_s >= since_s}

    async def end(self, number: int) -> None:
        if self.process.returncode is None:
            self.process.send_signal(number)
        await self.process.wait()
        await self._following


class Flow:
    """Records sent to the topic in turn, all the time, from a thread."""

    def __init__(self, kafka: str, topic: str, partitions: int, rate_s: float) -> None:
        self.sent = Counter[int]()
        self._stopped = threading.Event()
        self._producer = Producer({"bootstrap.servers": kafka, "broker.address.family": "v4", "linger.ms": 5})
        self._topic, self._partitions, self._rate_s = topic, partitions, rate_s
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        number, begin_s = 0, time.monotonic()
        while not self._stopped.is_set():
            while number < (time.monotonic() - begin_s) * self._rate_s:
                partition = number % self._partitions
                self._producer.produce(self._topic, b"x", partition=partition)
                self.sent[partition] += 1
                number += 1
            self._producer.poll(0)
            time.sleep(0.005)
        self._producer.flush(30)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
