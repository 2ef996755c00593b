"""What benches of consumer groups share: a real Kafka, coordinators in embedded brokers, records, members."""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.group_reads import Run
from loadmanager.consumer.hosting import KafkaTopics
from loadmanager.consumers.coordinator.service import Coordinator
from loadmanager.consumers.coordinator.store import GroupStore
from loadmanager.testing import embedded_cluster
from stack.servers import KafkaServer
from statechannel.adapters.kafka.group_commits import GroupCommits
from statechannel.adapters.kafka.groups import KafkaGroups
from statechannel.adapters.kafka.log import KafkaLog

PROTOCOLS = ("ours", "classic", "consumer")
NAMES = {
    "ours": "ours",
    "classic": "Kafka, cooperative-sticky",
    "consumer": "Kafka, consumer protocol",
    "rocketmq": "RocketMQ-like",
}
NAMESPACE = "bench/groups"


class EqualKafka(KafkaServer):
    """With the session time-out that everybody has; `proxied_at` as for `KafkaServer`."""

    def __init__(
        self, data_dir: Path, session_s: float, *, proxied_at: Mapping[str, int] | None = None, retention_min: int = 0
    ) -> None:
        """`retention_min`: for how long it keeps offsets of groups without members; 0: as Kafka's default."""
        super().__init__(data_dir, proxied_at=proxied_at)
        self._session_s = session_s
        self._retention_min = retention_min

    def _settings(self) -> dict[str, str]:
        session_ms, beat_ms = str(int(self._session_s * 1000)), str(int(self._session_s * 1000 / 3))
        kept = {"offsets.retention.minutes": str(self._retention_min), "offsets.retention.check.interval.ms": "3000"}
        return {
            **super()._settings(),
            **(kept if self._retention_min else {}),
            # it is never restarted, and on a busy machine it must not be taken for dead
            "broker.session.timeout.ms": "30000",
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

        cluster = await stack.enter_async_context(embedded_cluster(make, brokers=3, namespace=NAMESPACE))
        yield cluster.admin_urls


def make_topic(kafka: str, topic: str, partitions: int) -> None:
    """Create it, and wait until it is there."""
    admin = AdminClient({"bootstrap.servers": kafka, "broker.address.family": "v4"})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


async def until(holds: Callable[[], object], timeout_s: float) -> None:
    """Wait for a condition, asked again and again. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while True:
            if holds():
                return
            await asyncio.sleep(0.2)


def gathered(members: Iterable[Member]) -> dict[int, list[Run]]:
    """What all of these read, by partition."""
    found = defaultdict[int, list[Run]](list)
    for member in members:
        for partition, runs in member.read.items():
            found[partition].extend(runs)
    return found


class Member:
    """A consumer's process, and what it read: by partition, in the order of reading.

    `number` tells it from all other processes of the group.
    """

    def __init__(self, process: asyncio.subprocess.Process, number: int = 0) -> None:
        self.process = process
        self.number = number
        self.joining_s = 0.0
        self.read: dict[int, list[Run]] = {}
        self._assigned: dict[int, float] = {}
        self._following = asyncio.create_task(self._follow())

    @classmethod
    async def start(cls, told: Mapping[str, Any], number: int = 0) -> Member:
        """Start `bench.group_member` with these arguments."""
        command = (sys.executable, "-m", "bench.group_member", json.dumps(told))
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        return cls(process, number)

    async def _follow(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            first, *rest = line.split()
            match first:
                case b"joining":
                    self.joining_s = float(rest[0])
                case b"assigned":
                    self._assigned.update(dict.fromkeys(map(int, rest[1:]), float(rest[0])))
                case _:
                    partition, offset, records = map(int, rest[:3])
                    self._read(float(first), partition, offset, records, float(rest[3]))

    def _read(self, first_s: float, partition: int, offset: int, count: int, last_s: float) -> None:
        since_s = self._assigned.get(partition, self.joining_s)
        self.read.setdefault(partition, []).append(Run(self.number, since_s, offset, count, first_s, last_s))

    def reads_since(self, since_s: float) -> set[int]:
        """The partitions of which it has read something since then."""
        return {partition for partition, runs in self.read.items() if runs[-1].last_s >= since_s}

    async def end(self, number: int) -> None:
        """Send a signal, and wait until the process has ended and all that it said was read."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        await self.process.wait()
        await self._following


class Flow:
    """Records sent to the partitions of a topic in turn, all the time, from a thread."""

    def __init__(self, kafka: str, topic: str, partitions: int, rate_s: float) -> None:
        self.sent = Counter[int]()
        self.idle: int | None = None
        """This partition gets no records from now on."""
        self._stopped = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": kafka, "broker.address.family": "v4", "linger.ms": 5, "enable.idempotence": True}
        )
        self._topic, self._partitions, self._rate_s = topic, partitions, rate_s
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        number, begin_s = 0, time.monotonic()
        while not self._stopped.is_set():
            while number < (time.monotonic() - begin_s) * self._rate_s:
                partition = number % self._partitions
                number += 1
                if partition != self.idle:
                    self._producer.produce(self._topic, b"x", partition=partition)
                    self.sent[partition] += 1
            self._producer.poll(0)
            time.sleep(0.005)
        self._producer.flush(30)

    def stop(self) -> None:
        """All records are in Kafka then."""
        self._stopped.set()
        self._thread.join()
