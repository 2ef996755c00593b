"""Loads of bundles: only the leader reads the reports of the hottest; the others answer all the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from loadmanager.cluster import views
from loadmanager.model.load import BUNDLES_TOPIC
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.ports import LogEntry
from statechannel.runtime import view_on_demand
from tests.api.conftest import Broker, Cluster

BUNDLES = 12


@pytest.fixture
def tails(monkeypatch: pytest.MonkeyPatch) -> Counter[object]:
    """How often each broker's log client began to read the reports of hottest bundles."""
    begun: Counter[object] = Counter()
    tail = SqliteLog.tail

    def counted(self: SqliteLog, topic: str, starts: Sequence[int]) -> Any:
        if topic == BUNDLES_TOPIC:
            begun[self] += 1
        return tail(self, topic, starts)

    monkeypatch.setattr(SqliteLog, "tail", counted)
    return begun


def leads(broker: Broker) -> bool:
    return broker.node.current.leader.leading is not None


def knows(broker: Broker) -> int:
    """How many bundles' loads this broker's view shows."""
    return sum(len(report.bundles) for report in broker.node.views.bundles.values())


async def loaded(cluster: Cluster) -> tuple[Broker, list[Broker]]:
    """Three brokers with bundles: the leader, once it knows all hottest bundles, and the others."""
    await cluster.start(3)
    await cluster.create("t/n", BUNDLES)
    for n in range(60):
        await cluster.assign(f"t/n/key-{n}")
    await cluster.until(lambda: any(leads(broker) and knows(broker) == BUNDLES for broker in cluster.brokers))
    leader = next(broker for broker in cluster.brokers if leads(broker))
    return leader, [broker for broker in cluster.brokers if broker is not leader]


async def test_only_the_leader_reads_the_hottest_bundles(cluster: Cluster, tails: Counter[object]) -> None:
    leader, others = await loaded(cluster)
    for broker in others:
        assert set(broker.node.views.brokers) == {b.name for b in cluster.brokers}, "it can assign"
        assert (dict(broker.node.views.bundles), broker.node.views.bundles.ready) == ({}, False)
    assert tails == {leader.node.world.log: 1}


async def test_the_next_leader_reads_them_and_the_former_one_drops_them(
    cluster: Cluster, tails: Counter[object]
) -> None:
    former, others = await loaded(cluster)
    coordination = others[0].node.world.coordination
    assert coordination.leadership is not None
    await coordination.evict(coordination.leadership)
    await cluster.until(lambda: not leads(former) or not former.node.views.bundles.ready)
    await cluster.until(lambda: any(leads(b) and knows(b) == BUNDLES for b in cluster.brokers))
    leader = next(broker for broker in cluster.brokers if leads(broker))
    for broker in cluster.brokers:
        if broker is not leader:
            await cluster.until(lambda: not dict(broker.node.views.bundles))  # noqa: B023 (it is called in this turn)
    assert tails.total() == 2, "one reading a term"


ROUTES = (
    "/v1/bundles?order=load",
    "/v1/bundles?namespace=t/n",
    "/v1/plan",
    "/v1/balancing",
    "/v1/brokers",
    "/admin/v2/broker-stats/load-report",
)


@pytest.mark.parametrize("path", ROUTES)
async def test_every_broker_answers_as_the_leader(cluster: Cluster, path: str) -> None:
    await loaded(cluster)
    sizes: list[int] = []
    for at in range(3):
        status, body, _ = await cluster.ask("GET", path, at=at)
        assert status == 200, body
        if "bundles" in path:
            assert {row["rate_msg_s"] for row in body["bundles"]} == {10}
            sizes.append(len(body["bundles"]))
        elif "load-report" in path:
            assert body["lastStats"].keys() == set(body["bundles"])
    assert sizes in ([], [BUNDLES] * 3)


async def test_one_bundle_has_its_load_at_every_broker(cluster: Cluster) -> None:
    await loaded(cluster)
    bundle = await cluster.assign("t/n/key-1")
    for at in range(3):
        _, shown, _ = await cluster.ask("GET", f"/v1/bundles/{bundle}", at=at)
        assert shown["load"]["keys"] == 1
        status, why, _ = await cluster.ask("GET", f"/v1/explain/bundles/{bundle}", at=at)
        assert status == 200, why


async def test_a_broker_that_was_asked_drops_what_it_read(
    cluster: Cluster, tails: Counter[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_on_demand, "LINGER_S", 0.5)
    _, others = await loaded(cluster)
    asked = others[0]
    for _ in range(3):
        status, _, _ = await cluster.ask("GET", "/v1/bundles?order=load", at=cluster.brokers.index(asked))
        assert status == 200
    assert tails[asked.node.world.log] == 1
    await cluster.until(lambda: not asked.node.views.bundles.ready)
    assert tails[others[1].node.world.log] == 0


async def test_metrics_and_health_read_nothing(cluster: Cluster, tails: Counter[object]) -> None:
    _, others = await loaded(cluster)
    at = cluster.brokers.index(others[0])
    for path in ("/metrics", "/health", "/v1/brokers", "/v1/usage", "/v1/channel", "/v1/namespaces"):
        await cluster.ask("GET", path, at=at)
    assert tails[others[0].node.world.log] == 0


async def test_a_leader_decides_nothing_before_it_has_read_everything_and_leads_meanwhile(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "READ_S", 0.3)
    cluster.settings = {"balancing_interval_s": 0.2}
    former, _ = await loaded(cluster)
    rounds = former.node.current.rebalancer.counts
    await cluster.until(lambda: rounds.rounds > 0)
    go, tail = asyncio.Event(), SqliteLog.tail

    async def late(self: SqliteLog, topic: str, starts: Sequence[int]) -> AsyncIterator[Sequence[LogEntry]]:
        if topic == BUNDLES_TOPIC:
            await go.wait()
        async with aclosing(tail(self, topic, starts)) as entries:
            async for each in entries:
                yield each

    monkeypatch.setattr(SqliteLog, "tail", late)
    coordination = former.node.world.coordination
    assert coordination.leadership is not None
    epoch = coordination.leadership.epoch
    assert await coordination.evict(coordination.leadership)

    def next_leader() -> Broker | None:
        terms = [(broker, broker.node.current.leader.leading) for broker in cluster.brokers]
        return next((broker for broker, term in terms if term is not None and term.epoch > epoch), None)

    await cluster.until(lambda: next_leader() is not None)
    leader = next_leader()
    assert leader is not None
    counts = leader.node.current.rebalancer.counts
    before = counts.rounds
    [bundle] = await cluster.create("t/m", 1)
    await cluster.assign("t/m/key")
    other = next(broker for broker in cluster.brokers if broker is not cluster.of(cluster.owner(bundle)))
    await leader.node.current.operations.transfer(bundle, other.name)
    await asyncio.sleep(1.0)  # five rounds' time
    assert (counts.rounds, leader.node.views.bundles.ready) == (before, False)
    status, problem, headers = await cluster.ask("GET", "/v1/plan", at=cluster.brokers.index(leader))
    assert (status, "Retry-After" in headers) == (503, True)
    assert "the loads of bundles were not read from load-bundles within" in problem["detail"]
    assert (await cluster.ask("GET", "/v1/bundles", at=cluster.brokers.index(leader)))[0] == 200, "without loads"
    go.set()
    await cluster.until(lambda: counts.rounds > before and leader.node.views.bundles.ready)
