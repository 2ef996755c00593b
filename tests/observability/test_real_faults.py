"""Real brokers have a real Prometheus fire: a log and a coordination service that are locked, somebody who writes to
the channel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import aiohttp
import pytest

from loadmanager.broker.node import Node
from loadmanager.embedding.broker import Broker
from statechannel.errors import NewerRecord
from statechannel.law.codec import NEWEST_VERSION
from statechannel.law.transitions import State
from statechannel.ports import LogEntry, Payload
from tests.observability.conftest import Scraping
from tests.observability.real import away_from, ended, fires, locked, scraped

QUICK: dict[str, Any] = {
    "balancing": True, "balancing_interval_s": 1, "publish_timeout_s": 1, "lead_timeout_s": 8,
    "load_report_max_interval_s": 1, "lookup_timeout_s": 1, "snapshot_records": 20, "snapshot_interval_s": 2,
    "snapshot_timeout_s": 2, "in_flight_timeout_s": 3,
}  # fmt: skip

FLOOD = 5_000
"""Records that are written at once, again and again: more than brokers apply meanwhile."""


async def test_a_log_and_a_coordination_service_that_are_locked(prometheus: Scraping, tmp_path: Path) -> None:
    job = "loadmanager-outage"
    async with scraped(prometheus, job, tmp_path, brokers=3, **QUICK) as cluster, AsyncExitStack() as stack:
        unowned, moving = cluster.bundles()[:2]
        former, to = cluster.owner(moving), away_from(cluster, moving)
        assert former is not None
        cluster.host(former).slow_s = 2.0
        await cluster.unload(unowned)
        move = asyncio.create_task(to.transfer(moving, to.name))
        stack.push_async_callback(ended, move)
        await cluster.until(lambda: state_of(to, moving) is State.RELEASING)
        stack.enter_context(locked(tmp_path / "cluster.db"))
        for broker in cluster.brokers:
            stack.push_async_callback(ended, asyncio.create_task(ask_for(broker)))
        await cluster.kill(next(broker for broker in cluster.brokers if broker not in (former, to)))
        await fires(
            prometheus, job,
            *("BrokerDown", "Orphans", "AppendFailures", "NoLeader", "NoRound", "SnapshotFailures"),
            *("LoadDataStale", "LookupsUnavailable", "AuditEntriesLost", "MoveStuck"),
        )  # fmt: skip
        stack.enter_context(locked(tmp_path / "cluster.db.coordination"))
        await fires(prometheus, job, "CoordinationLost", "ProofNearEnd", "SafeMode")
        await cluster.kill(next(broker for broker in cluster.brokers if leases_of(broker)))
        await fires(prometheus, job, "PartitionWithoutOwner")


def state_of(broker: Broker, bundle: Any) -> State | None:
    entry = broker.node.channel.table.get(bundle)
    return None if entry is None else entry.state


def leases_of(broker: Broker) -> frozenset[int]:
    return broker.node.current.channel_owner.leases.held


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


async def test_records_that_nobody_should_write(prometheus: Scraping, tmp_path: Path) -> None:
    job = "loadmanager-channel"

    async def write(node: Node) -> None:
        again = [Payload(entry.key, entry.value) for entry in await written(node) if entry.value]
        await node.world.log.append("bundle-state", 0, [*again, Payload(None, b"no record")])

    async def flood(node: Node) -> None:
        entry = (await written(node))[-1]
        await node.world.log.append("bundle-state", 0, [Payload(entry.key, entry.value)] * FLOOD)

    async with scraped(prometheus, job, tmp_path) as cluster:
        for writes, pause_s, alerts in ((write, 0.2, ("ForeignRecords", "Refusals")), (flood, 0.0, ("ReplicaLag",))):
            writing = asyncio.create_task(again_and_again(cluster.brokers[0], writes, pause_s))
            await fires(prometheus, job, *alerts)
            await ended(writing)


async def again_and_again(broker: Broker, writes: Callable[[Node], Coroutine[Any, Any, None]], pause_s: float) -> None:
    while True:
        await broker.ask(writes)
        await asyncio.sleep(pause_s)


async def written(node: Node) -> Sequence[LogEntry]:
    """The first records of the channel."""
    async with aclosing(node.world.log.read("bundle-state", 0, 0)) as batches:
        return await anext(batches)


async def test_a_record_of_a_newer_format(prometheus: Scraping, tmp_path: Path) -> None:
    """All brokers of this release end, so no metric tells why: only their logs do."""
    job = "loadmanager-newer"

    async def write(node: Node) -> None:
        body = bytes((await written(node))[-1].value or b"")[14:]
        head = b"LM%02x" % (NEWEST_VERSION + 1)
        newer = head + b" %08x " % crc32(body, crc32(head)) + body
        await node.world.log.append("bundle-state", 0, [Payload(None, newer)])

    async def played() -> None:
        async with scraped(prometheus, job, tmp_path) as cluster:
            await cluster.brokers[0].ask(write)
            await fires(prometheus, job, "BrokerDown", "NoBroker")

    with pytest.raises(NewerRecord, match="upgrade this broker"):
        await played()
