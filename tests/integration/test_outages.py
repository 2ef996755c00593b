"""Whole servers go down under real traffic: one costs no request; without both no broker serves beyond its proof.

Three brokers with the counter service, each with its control thread, on a real Kafka and a real ZooKeeper.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from loadmanager import Broker, Settings
from loadmanager.client import HttpRouter, Router
from loadmanager.demo.counter.__main__ import running
from loadmanager.demo.counter.load import Load
from loadmanager.demo.counter.traffic import Traffic
from loadmanager.errors import LoadManagerError
from stack.servers import KafkaServer, ZooKeeperServer
from statechannel.law.bundle import Bundle, even_boundaries, tile
from tests.servers import coordination_root, topic_prefix

NAMESPACE = "outage/counters"
BUNDLES = tile(NAMESPACE, even_boundaries(16))
OUTAGE_S = 20.0
RATE_S = 40.0
V_S = 2.0
PATIENCE_S = 60.0
"""What a request may take: a failure is one that nobody answers, not one that a busy machine answers late."""
CALLERS = 40
"""So many requests are under way at most: callers that wait for their answers."""

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.zookeeper,
    pytest.mark.timeout(600),
    pytest.mark.slow,
]


@pytest.fixture
async def brokers(
    kafka_server: KafkaServer, zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> AsyncGenerator[list[Broker]]:
    prefix, root = topic_prefix("outage"), coordination_root("outage")
    async with AsyncExitStack() as stack:
        found: list[Broker] = []
        for _ in range(3):
            settings = Settings(
                advertised="127.0.0.1:0",
                log=f"kafka://{kafka_server.address}",
                coordination=f"zookeeper://{zookeeper_server.address}{root}",
                topic_prefix=prefix,
                partitions=4,
                development=True,
                proof_validity_s=V_S,
            )
            found.append(await stack.enter_async_context(running(settings, tmp_path / "counters.db", 0.0)))
        await found[0].ensure_namespace(NAMESPACE, len(BUNDLES))
        yield found


@asynccontextmanager
async def traffic(brokers: list[Broker]) -> AsyncGenerator[Load]:
    """Increments at a steady rate while the context is open."""
    async with HttpRouter(Router(f"http://{broker.name}" for broker in brokers)) as http:
        load = Load(http, Traffic(NAMESPACE, rate_s=RATE_S, topics=200), PATIENCE_S, CALLERS)
        sending = asyncio.create_task(load.run())
        try:
            yield load
        finally:
            load.stop()
            await sending


@asynccontextmanager
async def without(*servers: KafkaServer | ZooKeeperServer) -> AsyncGenerator[None]:
    """They are dead inside, and back behind it even if that fails: other tests need them."""
    for server in servers:
        server.kill()
    try:
        yield
    finally:
        for server in reversed(servers):
            await asyncio.to_thread(server.start)


async def until(holds: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
    try:
        async with asyncio.timeout(within_s):
            while not holds():
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"not within {within_s:g} s: {what}")


def gone_on(load: Load, since: int) -> bool:
    """Whether half of an outage's requests were answered after the first `since`."""
    return len(load.acknowledged) - since > OUTAGE_S * RATE_S / 2


def owner_of(brokers: list[Broker], bundle: Bundle) -> Broker | None:
    return next((broker for broker in brokers if broker.serving(bundle)), None)


def all_served(brokers: list[Broker]) -> bool:
    return all(owner_of(brokers, bundle) is not None for bundle in BUNDLES)


async def can_move(brokers: list[Broker]) -> None:
    """The cluster is whole again when a bundle can be moved by hand."""
    source = owner_of(brokers, BUNDLES[0])
    target = next(broker for broker in brokers if broker is not source)
    async with asyncio.timeout(60):
        while owner_of(brokers, BUNDLES[0]) is not target:
            try:
                await target.transfer(BUNDLES[0], target.name)
            except LoadManagerError:  # a broker that has not noticed yet that the log is back takes nothing
                await asyncio.sleep(0.1)


async def test_neither_server_costs_a_request_while_the_other_is_there(
    brokers: list[Broker], kafka_server: KafkaServer, zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    async with traffic(brokers) as load:
        await until(lambda: all_served(brokers), "every bundle is served")
        for server in (zookeeper_server, kafka_server):
            answered = len(load.acknowledged)
            async with without(server):
                await asyncio.sleep(OUTAGE_S)  # the outage itself
                goes_on = partial(gone_on, load, answered)
                await until(goes_on, "traffic goes on without the server")
            await until(lambda: all_served(brokers), "every bundle is served")
        await can_move(brokers)
    found = load.settle(tmp_path / "counters.db")
    assert (found.failed, found.lost, found.doubled) == (0, 0, 0), found
    assert found.ok > 2 * OUTAGE_S * RATE_S / 2


async def test_cut_off_from_both_no_broker_serves_beyond_its_proof(
    brokers: list[Broker], kafka_server: KafkaServer, zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    async with traffic(brokers) as load:
        await until(lambda: all_served(brokers), "every bundle is served")
        watch = Watch(brokers)
        async with without(kafka_server, zookeeper_server):
            both_dead_s = time.clock_gettime(time.CLOCK_BOOTTIME)
            await until(lambda: not any(b.serving(x) for b in brokers for x in BUNDLES), "nobody serves any more")
            # what was counted while somebody served may be on its way back still
            await until(lambda: load.in_flight == CALLERS, "every caller waits for an answer")
            answered = len(load.acknowledged)
            await asyncio.sleep(V_S)  # nobody begins to serve again by itself
            assert len(load.acknowledged) == answered
            watch.stop()
            assert watch.seen_serving_at_s < both_dead_s + V_S
        await until(lambda: all_served(brokers), "every bundle is served again")
    found = load.settle(tmp_path / "counters.db")
    assert (found.lost, found.doubled) == (0, 0), found


class Watch:
    """A thread that notes the last instant at which any broker said that it may serve anything."""

    def __init__(self, brokers: list[Broker]) -> None:
        self._brokers = brokers
        self._stopping = threading.Event()
        self.seen_serving_at_s = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.001):
            asked_s = time.clock_gettime(time.CLOCK_BOOTTIME)
            if any(broker.serving(bundle) for broker in self._brokers for bundle in BUNDLES):
                self.seen_serving_at_s = asked_s

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
