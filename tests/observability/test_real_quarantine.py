"""A bundle that really kills the processes that take it has a real Prometheus fire; its runbook frees it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from loadmanager import Broker
from stack.servers import free_port
from statechannel.law.transitions import State
from tests.integration.poisoned import SETTINGS
from tests.integration.test_poison import NAMESPACE, Supervisor, bundle_of, look_up
from tests.observability.conftest import Scraping, group, until, up
from tests.observability.real import ended, fires, run

BROKERS = 8
"""The more there are, the sooner it is no chance that all died that had the bundle."""


async def test_a_bundle_that_kills(prometheus: Scraping, tmp_path: Path) -> None:
    job = "loadmanager-poison"
    watcher = Broker(None, log=f"sqlite:{tmp_path / 'cluster.db'}", **SETTINGS)
    supervisor = Supervisor(tmp_path)
    await watcher.start()
    prometheus.scrape([group(job, watcher.name)])
    kept = [asyncio.create_task(supervisor.keep(f"127.0.0.1:{free_port()}")) for _ in range(BROKERS)]
    try:
        await until(lambda: len(watcher.node.membership.peers) == BROKERS + 1 and up(prometheus, job) == 1)
        await watcher.drain()
        await watcher.ensure_namespace(NAMESPACE, BROKERS)
        (tmp_path / "poison").touch()
        asking = asyncio.create_task(ask(watcher))
        await fires(prometheus, job, "Quarantine")
        (tmp_path / "poison").unlink()
        bundle = bundle_of(watcher)
        assert str(bundle) in await run("splitting", "show", at=watcher)
        await run("bundles", "release-quarantine", str(bundle), at=watcher)
        await until(lambda: watcher.node.channel.table.count_by_state()[State.ASSIGNED] > 0)
        await ended(asking)
    finally:
        for each in kept:
            await ended(each)
        await watcher.stop(0)


async def ask(broker: Broker) -> None:
    """Have the bundle given out again and again."""
    while True:
        await look_up(broker)
