"""A group under load while its coordinator's broker is drained, stopped and killed: processes, a real Kafka, a real
ZooKeeper.

Readers notice nothing: none loses a partition, no record is missed, none is read twice, and commits go on.
"""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from loadmanager.consumer.group_consumer import GroupConsumer
from stack.servers import free_port
from statechannel.adapters.kafka.clients import connection_settings
from statechannel.adapters.kafka.group_offsets import GroupOffsets
from tests.servers import coordination_root, shared_kafka, shared_zookeeper, topic_prefix

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper, pytest.mark.timeout(300)]

COMMAND = str(Path(sys.executable).with_name("loadmanager"))
BROKERS, PARTITIONS = 3, 6
WAIT_S = 90.0
SOME = 300
"""So many further records show that reading goes on."""


class BrokerProcess:
    """One broker that coordinates groups."""

    def __init__(self, options: list[str], directory: Path) -> None:
        self.name = f"127.0.0.1:{free_port()}"
        self._command = [
            str(Path(sys.executable).with_name("loadmanager")),
            "broker",
            "--advertised",
            self.name,
            *options,
        ]
        self._said = directory / f"{self.name.replace(':', '-')}.log"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._said.open("ab") as said:
            return subprocess.Popen(self._command, stdout=said, stderr=said)

    def again(self) -> None:
        """Start it anew after its process has ended."""
        self.process.wait()
        self.process = self._start()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer, redirects followed; None if there is none, or it is a refusal."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{self.name}{path}", data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return json.loads(answer.read() or b"{}")
        except (OSError, ValueError):
            return None


class Reader:
    """One consumer on a thread of its own."""

    def __init__(self, world: World) -> None:
        self._seen = Counter[tuple[int, int]]()
        self._lock = threading.Lock()
        self.lost = 0
        self.error: Exception | None = None
        self.consumer = GroupConsumer(
            world.group,
            [world.topic],
            brokers=[f"http://{each.name}" for each in world.brokers],
            kafka={"bootstrap.servers": world.kafka, "auto.offset.reset": "earliest", "broker.address.family": "v4"},
            commit_interval_s=0.2,
            on_lost=self._lose,
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _lose(self, partitions: list[tuple[str, int]]) -> None:
        self.lost += len(partitions)

    def _read(self) -> None:
        try:
            with self.consumer:
                while not self._stop.is_set():
                    message = self.consumer.poll(0.2)
                    if message is not None:
                        with self._lock:
                            self._seen[message.partition() or 0, message.offset() or 0] += 1
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def seen(self) -> Counter[tuple[int, int]]:
        """How often it has read each record, by partition and offset."""
        with self._lock:
            return self._seen.copy()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)


class World:
    """Brokers, two readers, and a producer that never rests."""

    def __init__(self, kafka: str, zookeeper: str, directory: Path) -> None:
        self.kafka = kafka
        ours = uuid.uuid4().hex[:8]
        self.topic, self.group = f"orders-{ours}", f"shop/orders/billing-{ours}"
        options = [
            *("--log", f"kafka://{kafka}", "--coordination", f"zookeeper://{zookeeper}{coordination_root('faults')}"),
            *("--development", "--host", "loadmanager.consumer.hosting:make_host"),
            *("--set", f"topic_prefix={topic_prefix('faults')}", "--set", "partitions=2", "--set", "balancing=false"),
        ]
        self.brokers = [BrokerProcess(options, directory) for _ in range(BROKERS)]
        self.admin = AdminClient({"bootstrap.servers": kafka, "broker.address.family": "v4"})
        self.offsets = GroupOffsets(connection_settings(kafka, {}, WAIT_S))
        self.admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)])[self.topic].result(WAIT_S)
        self.until(lambda: all(len(each.ask("GET", "/v1/brokers") or ()) == BROKERS for each in self.brokers))
        self.until(
            lambda: self.brokers[0].ask("PUT", "/admin/v2/namespaces/shop/orders", {"numBundles": 4}) is not None
        )
        self.sent = 0
        self._rest = threading.Event()
        self._producing = threading.Thread(target=self._produce, daemon=True)
        self._producing.start()
        self.readers = [Reader(self), Reader(self)]
        self.until(lambda: all(len(each.consumer.assignment) == PARTITIONS // 2 for each in self.readers))

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self.kafka, "broker.address.family": "v4"})
        while not self._rest.wait(0.02):
            for partition in range(PARTITIONS):
                producer.produce(self.topic, b"x", partition=partition)
            assert producer.flush(WAIT_S) == 0
            self.sent += PARTITIONS

    def until(self, holds: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < deadline_s, "it never holds"
            time.sleep(0.05)

    def coordinator_by(self, broker: BrokerProcess) -> str | None:
        """Whoever coordinates the group, if the broker knows somebody who answers."""
        found = broker.ask("GET", f"/v1/groups/{self.group}")
        return None if found is None else found["coordinator"]

    def seen(self) -> Counter[tuple[int, int]]:
        return self.readers[0].seen() + self.readers[1].seen()

    def committed(self) -> int:
        """The sum of the group's offsets in Kafka."""
        found = self.offsets.committed(self.group, [(self.topic, number) for number in range(PARTITIONS)], WAIT_S)
        return sum(place.offset for place in found if place.offset >= 0)

    def goes_on(self) -> None:
        """Some more is read, and committed by whoever coordinates then."""
        mark = len(self.seen())
        self.until(lambda: len(self.seen()) >= mark + SOME)
        self.until(lambda: self.committed() >= mark + SOME)

    def check(self, before: list[list[tuple[str, int]]]) -> None:
        """Nobody lost anything, and all that was sent so far is read once."""
        assert [each.error for each in self.readers] == [None, None]
        assert [each.lost for each in self.readers] == [0, 0]
        assert [each.consumer.assignment for each in self.readers] == before
        sent = self.sent
        self.until(lambda: len(self.seen()) >= sent)
        assert [place for place, times in self.seen().items() if times > 1] == []

    def close(self) -> None:
        for reader in self.readers:
            reader.stop()
        self._rest.set()
        self._producing.join(WAIT_S)
        for broker in self.brokers:
            broker.process.kill()
            broker.process.wait()


@pytest.fixture(scope="module")
def world(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Generator[World]:
    kafka, zookeeper = shared_kafka(pytestconfig), shared_zookeeper(pytestconfig)
    world = World(kafka.address, zookeeper.address, tmp_path_factory.mktemp("faults"))
    try:
        yield world
    finally:
        world.close()


def drain(world: World, broker: BrokerProcess) -> Callable[[], object]:
    assert broker.ask("PUT", f"/v1/brokers/{broker.name}/drain") is not None
    return lambda: broker.ask("DELETE", f"/v1/brokers/{broker.name}/drain")


def stop(world: World, broker: BrokerProcess) -> Callable[[], object]:
    os.kill(broker.process.pid, signal.SIGSTOP)
    return lambda: os.kill(broker.process.pid, signal.SIGCONT)


def kill(world: World, broker: BrokerProcess) -> Callable[[], object]:
    broker.process.kill()
    return broker.again


@pytest.mark.slow
@pytest.mark.parametrize("fault", [drain, stop, kill])
def test_readers_do_not_notice_what_becomes_of_the_coordinators_broker(
    world: World, fault: Callable[[World, BrokerProcess], Callable[[], object]]
) -> None:
    world.goes_on()
    before, owner = [each.consumer.assignment for each in world.readers], world.coordinator_by(world.brokers[0])
    broker = next(each for each in world.brokers if each.name == owner)
    mend = fault(world, broker)
    mark = len(world.seen())
    world.until(lambda: len(world.seen()) >= mark + SOME)  # whoever coordinates meanwhile
    others = [each for each in world.brokers if each is not broker]
    world.until(
        lambda: (others[0].ask("GET", f"/v1/groups/{world.group}") or {}).get("coordinator") not in (None, owner)
    )
    world.goes_on()
    world.check(before)
    mend()
    world.until(lambda: len(broker.ask("GET", "/v1/brokers") or ()) == BROKERS)
    world.goes_on()
    world.check(before)
