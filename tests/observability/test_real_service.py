"""A service whose hooks and strategy fail, and clients that ask too much, have a real Prometheus fire."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from loadmanager.errors import LoadManagerError
from loadmanager.strategies.rebalancing.decision import Decision
from tests.installed import install
from tests.observability.conftest import Scraping, until
from tests.observability.real import away_from, ended, ends, fires, run, scraped

RETURNS = 8
"""More than ten moves back within the time that the short rules look at."""

SLOW_S = 0.8
"""How long a hook blocks the control loop: longer than a busy machine does."""

HANGS_S = 6.0
"""Longer than a request waits for the control loop."""


class Broken:
    """A strategy with a bug."""

    name = "broken"

    def decide(self, model: Any, settings: Any, memory: object = None) -> Decision:
        raise ZeroDivisionError


async def test_a_service_that_fails(prometheus: Scraping, tmp_path: Path) -> None:
    job = "loadmanager-service"
    async with scraped(prometheus, job, tmp_path, host_acquire_timeout_s=1.0) as cluster:
        bundle, other = cluster.bundles()[:2]
        for _ in range(2 * RETURNS):
            await cluster.transfer(bundle, away_from(cluster, bundle))
        await fires(prometheus, job, "Returns")
        for broker in cluster.brokers:
            cluster.host(broker).slow_s, cluster.host(broker).hang_s = 1.5, SLOW_S
        for _ in range(2):
            await cluster.transfer(bundle, away_from(cluster, bundle))
        await fires(prometheus, job, "GapTooLong", "LoopSlow")
        await until(
            lambda: bool(prometheus.query(f'loadmanager_loop_longest_turn_seconds{{job="{job}"}} > {SLOW_S - 0.1}'))
        )
        to = away_from(cluster, other)
        cluster.host(to).stubborn = True
        with suppress(LoadManagerError):
            await to.transfer(other, to.name)
        await fires(prometheus, job, "HookFailures")
        for broker in cluster.brokers:
            await broker.ask(lambda node: node.drain(0.1))
        await fires(prometheus, job, "DrainStuck")


async def test_a_service_that_hangs_and_a_strategy_with_a_bug(
    prometheus: Scraping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = "loadmanager-hanging"
    install(monkeypatch, tmp_path, {"broken": Broken})
    settings: dict[str, Any] = {
        "balancing": True,
        "balancing_interval_s": 1,
        "balancing_strategy": "broken",
        "host_acquire_timeout_s": 0.5,
        "http_requests": 8,
        "session_timeout_s": 4 * HANGS_S,
    }
    async with scraped(prometheus, job, tmp_path, healthy=False, **settings) as cluster:
        bundle = cluster.bundles()[0]
        to = away_from(cluster, bundle)
        await fires(prometheus, job, "BalancingFailures")
        await run("config", "set", "balancing_strategy", "plan", at=to)
        await ends(prometheus, job, "BalancingFailures")

        cluster.host(to).acquire_s = 10.0
        with suppress(LoadManagerError):
            await to.transfer(bundle, to.name)
        await fires(prometheus, job, "HookFailures")
        cluster.host(to).acquire_s = 0.0
        await cluster.settled()

        asking = [asyncio.create_task(ask(to.name)) for _ in range(2 * settings["http_requests"])]
        await until(lambda: refusing(prometheus, job) >= {"running"})
        cluster.host(to).hang_s = HANGS_S
        if cluster.owner(bundle) is to:
            await cluster.transfer(bundle, away_from(cluster, bundle))
        with suppress(LoadManagerError):
            await to.transfer(bundle, to.name)
        await until(lambda: refusing(prometheus, job) >= {"loop"})
        for each in asking:
            await ended(each)


def refusing(prometheus: Scraping, job: str) -> set[str]:
    """Why brokers refuse requests, by the alerts that fire."""
    found = prometheus.query(f'ALERTS{{alertname="LoadManagerRequestsRefused",alertstate="firing",job="{job}"}}')
    return {each["metric"]["why"] for each in found}


async def ask(name: str) -> None:
    """Send one request after the other."""
    async with aiohttp.ClientSession(f"http://{name}") as session:
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get("/v1/brokers"):
                    pass
