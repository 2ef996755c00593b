"""Real brokers in real trouble have a real Prometheus fire: a log and a coordination service that are locked, a service
that fails, somebody who writes to the channel."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from loadmanager.broker.hosting import at_once
from loadmanager.broker.node import Node
from loadmanager.embedding.broker import Broker
from loadmanager.errors import LoadManagerError
from loadmanager.testing.cluster import EmbeddedCluster, embedded_cluster
from statechannel.law.bundle import Bundle
from statechannel.ports import Payload
from tests.loadmanager.embedded import Host
from tests.observability.conftest import Scraping, group, until, up

pytestmark = [pytest.mark.guards("observability")]


class Quiet(Host):
    """A service without requests. `slow_s` is how long it takes to release; `stubborn` ones it never acquires."""

    def __init__(self) -> None:
        super().__init__()
        self.slow_s = self.hang_s = 0.0
        self.stubborn = False

    async def release(self, bundle: Bundle, to: object) -> None:
        await asyncio.sleep(self.slow_s)
        self.held.pop(bundle, None)

    @at_once
    def prepare(self, bundle: Bundle) -> None:
        time.sleep(self.hang_s)

    async def acquire(self, bundle: Bundle, token: Any, hand_off: bytes | None) -> None:
        if self.stubborn:
            raise RuntimeError("the service cannot")
        await super().acquire(bundle, token, hand_off)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Another process has the file and does not let go."""
    holder = sqlite3.connect(file, isolation_level=None, timeout=30)
    holder.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        holder.close()


@asynccontextmanager
async def scraped(
    prometheus: Scraping, job: str, directory: Path, **settings: Any
) -> AsyncIterator[EmbeddedCluster[Quiet]]:
    """Two brokers that Prometheus has found healthy."""
    async with embedded_cluster(Quiet, brokers=2, bundles=4, directory=directory, **settings) as cluster:
        prometheus.scrape([group(job, *(broker.name for broker in cluster.brokers))])
        await until(lambda: up(prometheus, job) == 2)
        await until(lambda: not prometheus.firing())  # a busy machine may cause one for a moment
        yield cluster


async def fires(prometheus: Scraping, job: str, *alerts: str) -> None:
    """Wait until each of these has fired, at the same time or not."""
    seen: set[str] = set()

    def all_seen() -> bool:
        seen.update(prometheus.firing().get(job, ()))
        return seen >= {f"LoadManager{alert}" for alert in alerts}

    try:
        await until(all_seen)
    except TimeoutError:
        pytest.fail(f"silent: {sorted({f'LoadManager{a}' for a in alerts} - seen)}; fired: {sorted(seen)}")


RETURNS = 8
"""More than ten moves back within the time that the short rules look at."""

QUICK: dict[str, Any] = {
    "balancing": True, "balancing_interval_s": 1, "publish_timeout_s": 1, "lead_timeout_s": 8, "load_ttl_s": 4,
    "load_report_max_interval_s": 1, "lookup_timeout_s": 1, "snapshot_records": 20, "snapshot_interval_s": 2,
    "snapshot_timeout_s": 2,
}  # fmt: skip


async def test_a_log_and_a_coordination_service_that_are_locked(prometheus: Scraping, tmp_path: Path) -> None:
    async with scraped(prometheus, "loadmanager-outage", tmp_path, **QUICK) as cluster:
        left, killed = cluster.brokers
        await cluster.unload(cluster.bundles()[0])
        with ExitStack() as locks:
            locks.enter_context(locked(tmp_path / "cluster.db"))
            asking = asyncio.create_task(ask_for(left))
            await cluster.kill(killed)
            await fires(
                prometheus, "loadmanager-outage",
                *("BrokerDown", "Orphans", "AppendFailures", "NoLeader", "NoRound", "SnapshotFailures"),
                *("LoadDataStale", "LookupsUnavailable", "AuditEntriesLost"),
            )  # fmt: skip
            locks.enter_context(locked(tmp_path / "cluster.db.coordination"))
            await fires(prometheus, "loadmanager-outage", "CoordinationLost", "ProofNearEnd", "SafeMode")
            asking.cancel()


async def ask_for(broker: Broker) -> None:
    """Ask again and again for bundles, one of which nobody has, and for a change that the log does not take."""
    async with aiohttp.ClientSession(f"http://{broker.name}") as session:

        async def ask(method: str, path: str, body: object = None) -> None:
            while True:
                with suppress(aiohttp.ClientError):
                    async with session.request(method, path, json=body):
                        pass
                await asyncio.sleep(0.2)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask("PUT", "/v1/config/load_window_s", {"value": "20"}))
            for key in "abcdefgh":
                tasks.create_task(ask("GET", f"/lookup/v2/topic/persistent/test/service/{key}"))


async def test_a_service_that_fails(prometheus: Scraping, tmp_path: Path) -> None:
    job = "loadmanager-service"
    async with scraped(prometheus, job, tmp_path, host_acquire_timeout_s=1.0) as cluster:
        bundle, other = cluster.bundles()[:2]
        for _ in range(2 * RETURNS):
            await cluster.transfer(bundle, away_from(cluster, bundle))
        await fires(prometheus, job, "Returns")
        for broker in cluster.brokers:
            cluster.host(broker).slow_s, cluster.host(broker).hang_s = 1.5, 0.5
        for _ in range(2):
            await cluster.transfer(bundle, away_from(cluster, bundle))
        await fires(prometheus, job, "GapTooLong", "LoopSlow")
        to = away_from(cluster, other)
        cluster.host(to).stubborn = True
        with suppress(LoadManagerError):
            await to.transfer(other, to.name)
        await fires(prometheus, job, "HookFailures")
        for broker in cluster.brokers:
            await broker.ask(lambda node: node.drain(0.1))
        await fires(prometheus, job, "DrainStuck")


def away_from(cluster: EmbeddedCluster[Quiet], bundle: Bundle) -> Broker:
    return next(broker for broker in cluster.brokers if broker is not cluster.owner(bundle))


async def test_records_that_nobody_should_write(prometheus: Scraping, tmp_path: Path) -> None:
    job = "loadmanager-channel"
    async with scraped(prometheus, job, tmp_path) as cluster:

        async def write(node: Node) -> None:
            log = node.world.log
            async with aclosing(log.read("bundle-state", 0, 0)) as batches:
                entries = await anext(batches)
            again = [Payload(entry.key, entry.value) for entry in entries if entry.value]
            await log.append("bundle-state", 0, [*again, Payload(None, b"no record")])

        async def go_on() -> None:
            while True:
                await cluster.brokers[0].ask(write)
                await asyncio.sleep(0.2)

        writing = asyncio.create_task(go_on())
        await fires(prometheus, job, "ForeignRecords", "Refusals")
        writing.cancel()
