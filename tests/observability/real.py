"""Clusters of real brokers that a real Prometheus watches, a service that can fail, and files that somebody locks."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loadmanager.broker.hooks import at_once
from loadmanager.embedding.broker import Broker
from loadmanager.testing.cluster import EmbeddedCluster, embedded_cluster
from loadmanager_api.cli.main import main
from statechannel.law.bundle import Bundle
from tests.loadmanager.embedded import Host
from tests.observability.conftest import Scraping, group, until, up

BUSY = {"LoadManagerLoopSlow"}
"""What a busy machine may cause in a healthy cluster; it shows for two minutes."""


class Quiet(Host):
    """A service without requests. `slow_s` is how long it takes to release, `hang_s` how long `prepare` blocks the
    control loop, `acquire_s` how long it takes to acquire; `stubborn` ones it never acquires."""

    def __init__(self) -> None:
        super().__init__()
        self.slow_s = self.hang_s = self.acquire_s = 0.0
        self.stubborn = False

    async def release(self, bundle: Bundle, to: object) -> None:
        await asyncio.sleep(self.slow_s)
        self.held.pop(bundle, None)

    @at_once
    def prepare(self, bundle: Bundle) -> None:
        time.sleep(self.hang_s)

    async def acquire(self, bundle: Bundle, token: Any, hand_off: bytes | None) -> None:
        await asyncio.sleep(self.acquire_s)
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
    prometheus: Scraping, job: str, directory: Path, brokers: int = 2, healthy: bool = True, **settings: Any
) -> AsyncIterator[EmbeddedCluster[Quiet]]:
    """Brokers that Prometheus scrapes, and has found `healthy`."""
    async with embedded_cluster(Quiet, brokers=brokers, bundles=4, directory=directory, **settings) as cluster:
        prometheus.scrape([group(job, *(broker.name for broker in cluster.brokers))])
        await until(lambda: up(prometheus, job) == brokers)
        await until(lambda: not healthy or prometheus.firing().get(job, set()) <= BUSY)
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


async def ended(task: asyncio.Task[None]) -> None:
    """Cancel a task; how it ends is of no interest."""
    task.cancel()
    await asyncio.wait([task])


async def run(*arguments: str, at: Broker) -> str:
    """What a command of the runbooks prints; it asks this broker, and must succeed."""
    asked = (*arguments, "--admin-url", f"http://{at.name}")
    result = await asyncio.to_thread(CliRunner().invoke, main, asked)
    assert result.exit_code == 0, result.output
    return result.output


async def ends(prometheus: Scraping, job: str, alert: str) -> None:
    """Wait until this alert does not fire any more: its runbook has helped."""
    await until(lambda: f"LoadManager{alert}" not in prometheus.firing().get(job, ()))


def away_from(cluster: EmbeddedCluster[Quiet], bundle: Bundle) -> Broker:
    """A broker that does not serve the bundle."""
    return next(broker for broker in cluster.brokers if broker is not cluster.owner(bundle))
