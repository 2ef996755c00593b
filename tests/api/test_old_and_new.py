"""Pulsar's old and new way to balance take turns on a running cluster, by the commands of docs/old-and-new.md."""

from __future__ import annotations

import asyncio
import shlex
from contextlib import suppress
from typing import Any

import pytest

from loadmanager.errors import Conflict
from statechannel.law.bundle import Bundle
from tests.api.conftest import Broker, Cluster
from tests.api.test_cli import as_json, loadmanager
from tests.api.test_plans import lopsided
from tests.pages import blocks

SETTINGS: dict[str, Any] = {
    "bundle_rest_s": 0.0,
    "balancing_budget": 1.0,
    "shedder_hit_count": 0,
    "shedder_delay_s": 0.0,
}
"""Every strategy may move at once what has just been moved."""


async def switch(cluster: Cluster, nth: int) -> None:
    """Run the commands of the page's block at one broker; every broker goes by them on return."""
    for line in [block for block in blocks("docs/old-and-new.md") if block.language == "sh"][nth].text.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "loadmanager"
        result = await loadmanager(cluster, *arguments)
        assert result.exit_code == 0, result.output


async def settings(cluster: Cluster, at: int) -> tuple[str, str]:
    strategy, placement = [
        (await cluster.ask("GET", f"/v1/config/{name}", at=at))[1]["value"]
        for name in ("balancing_strategy", "placement")
    ]
    return strategy, placement


async def balancing(cluster: Cluster, *, on: bool) -> None:
    assert (await cluster.ask("PUT", "/v1/config/balancing", json={"value": on}))[0] == 200


async def heap_up(cluster: Cluster, bundles: tuple[Bundle, ...]) -> None:
    """Put all bundles on the first broker, after moves that were under way, until the leader has heard of the load."""
    first = cluster.brokers[0]

    def rates(seen_by: Broker) -> list[float]:
        loads = [seen_by.node.views.brokers.get(broker.name) for broker in cluster.brokers]
        return [load.rate_msg_s if load else -1.0 for load in loads]

    while any(rates(broker) != [1000.0 * len(bundles), 0.0] for broker in cluster.brokers):
        for bundle in bundles:
            if cluster.owner(bundle) != first.name:
                with suppress(Conflict):
                    await first.node.current.operations.transfer(bundle, first.name)
        await asyncio.sleep(0.02)


async def balanced_by(cluster: Cluster, strategy: str, placement: str, bundles: tuple[Bundle, ...]) -> list[Any]:
    """The moves of the strategy's first round that makes any, after all bundles were put on the first broker."""
    while {await settings(cluster, at) for at in range(len(cluster.brokers))} != {(strategy, placement)}:
        await asyncio.sleep(0.02)
    await heap_up(cluster, bundles)
    seen = {each["id"] for each in (await cluster.ask("GET", "/v1/decisions"))[1]["decisions"]}
    await balancing(cluster, on=True)
    while True:
        for each in (await cluster.ask("GET", "/v1/decisions"))[1]["decisions"]:
            if each["id"] not in seen and each["strategy"] == strategy and each["begun"]:
                await balancing(cluster, on=False)
                return (await cluster.ask("GET", f"/v1/decisions/{each['id']}"))[1]["decision"]["moves"]
        await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_managers_take_turns_and_no_lookup_fails(cluster: Cluster) -> None:
    bundles = await lopsided(cluster, balancing=False, **SETTINGS)
    failed, asked = [], 0

    async def look_up() -> None:
        nonlocal asked
        while True:
            for number in range(32):
                status, body, _ = await cluster.ask("GET", f"/lookup/v2/topic/persistent/t/n/{number}", at=number % 2)
                asked += 1
                if status != 200:
                    failed.append(body)
            await asyncio.sleep(0.01)

    looking_up = asyncio.create_task(look_up())
    try:
        async with asyncio.timeout(120):
            await switch(cluster, 0)
            old = await balanced_by(cluster, "threshold", "least-resource-usage", bundles)
            await switch(cluster, 1)
            new = await balanced_by(cluster, "transfer", "least-resource-usage", bundles)
            await switch(cluster, 2)
            ours = await balanced_by(cluster, "plan", "least-loaded", bundles)
    finally:
        looking_up.cancel()
        await asyncio.wait((looking_up,))
    assert {each["destination"] for each in old} == {""}, "they are unloaded, and lookups place them"
    assert {each["destination"] for each in (*new, *ours)} == {cluster.brokers[1].name}
    assert asked > 100
    assert failed == []


async def test_the_class_of_the_manager_is_no_setting_and_says_what_is(cluster: Cluster) -> None:
    await cluster.start()
    name = "loadManagerClassName"
    new = "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl"
    refused = await loadmanager(cluster, "brokers", "update-dynamic-config", "-c", name, "-v", new)
    assert refused.exit_code == 1
    assert "its strategy is balancing_strategy" in refused.stderr
    assert (await cluster.ask("POST", f"/admin/v2/brokers/configuration/{name}/{new}"))[0] == 404
    assert await as_json(cluster, "brokers", "get-all-dynamic-config") == {}
