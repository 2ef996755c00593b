"""The data of a real ZooKeeper is deleted under traffic: nobody stops serving, and one command mends it.

Three brokers with the counter service on a real Kafka, and a ZooKeeper of this test's own.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from loadmanager import Broker, Settings
from loadmanager.demo.counter.__main__ import running
from stack.servers import KafkaServer, ZooKeeperServer
from statechannel.errors import ForeignCluster
from tests.integration.test_outages import BUNDLES, NAMESPACE, all_served, can_move, traffic, until
from tests.servers import TICK_MS, topic_prefix

SERVES_ON = 200
"""So many requests are answered without a coordination root."""

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper, pytest.mark.timeout(300)]


@pytest.fixture
async def zookeeper(tmp_path: Path) -> AsyncGenerator[ZooKeeperServer]:
    server = ZooKeeperServer(tmp_path / "zookeeper", tick_ms=TICK_MS)
    await asyncio.to_thread(server.start)
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def settings(kafka_server: KafkaServer, zookeeper: ZooKeeperServer) -> Settings:
    return Settings(
        cluster="lost",
        advertised="127.0.0.1:0",
        log=f"kafka://{kafka_server.address}",
        coordination=f"zookeeper://{zookeeper.address}",
        topic_prefix=topic_prefix("lost"),
        partitions=2,
        development=True,
    )


class TwoOwners(threading.Thread):
    """Looks all the time for a bundle that two brokers would serve."""

    def __init__(self, brokers: list[Broker]) -> None:
        super().__init__(daemon=True)
        self._brokers = brokers
        self._stopping = threading.Event()
        self.looks, self.found = 0, 0

    def run(self) -> None:
        while not self._stopping.wait(0.001):
            self.looks += 1
            for bundle in BUNDLES:
                self.found += sum(broker.serving(bundle) for broker in self._brokers) > 1

    def stop(self) -> None:
        self._stopping.set()
        self.join()


async def agree(settings: Settings, *options: str) -> str:
    """`loadmanager channel agree`, as people run it."""
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("loadmanager")), "channel", "agree", *options, "--cluster", settings.cluster,
        "--log", settings.log, "--coordination", str(settings.coordination), "--development",
        "--set", f"topic_prefix={settings.topic_prefix}",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


def told(broker: Broker, text: str) -> bool:
    return any(text in note.text for note in broker.node.notes)


@pytest.mark.slow
async def test_its_data_is_deleted_under_traffic(settings: Settings, zookeeper: ZooKeeperServer, tmp_path: Path):
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(running(settings, tmp_path / "counters.db", 0.0)) for _ in range(3)]
        await brokers[0].ensure_namespace(NAMESPACE, len(BUNDLES))
        async with traffic(brokers) as load:
            await until(lambda: all_served(brokers), "every bundle is served")
            looking = TwoOwners(brokers)
            looking.start()
            before = {broker.node.current.me for broker in brokers}
            zookeeper.kill()
            shutil.rmtree(zookeeper.data_dir / "data")
            await asyncio.to_thread(zookeeper.start)
            await until(
                lambda: all(told(broker, "has lost the data of coordination root") for broker in brokers),
                "each of them knows",
            )
            answered = len(load.acknowledged)
            await until(lambda: len(load.acknowledged) > answered + SERVES_ON, "they serve on")
            assert {broker.node.current.me for broker in brokers} == before
            with pytest.raises(
                ForeignCluster, match=r"belongs to coordination root [0-9a-f]+, and the root here is empty"
            ):
                async with running(settings, tmp_path / "counters.db", 0.0):
                    pass
            said = await agree(settings, "--lost")
            assert "running brokers end their incarnations now" in said
            await until(lambda: all_served(brokers), "every bundle is served")
            looking.stop()
            assert all(broker.node.current.me not in before for broker in brokers)
            await can_move(brokers)
        assert looking.found == 0, f"in {looking.looks} looks"
        assert not [note.text for broker in brokers for note in broker.node.notes if "NoNodeError" in note.text]
    found = load.settle(tmp_path / "counters.db")
    assert (found.failed, found.lost, found.doubled) == (0, 0, 0), found
