"""Advice on real brokers of one process: their own rounds measure it, and a leader is killed in the middle."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from loadmanager import Broker
from loadmanager.leader.plans.advice import (
    Advice,
    Change,
    ChangeSettings,
    Cut,
    CutBundles,
    Expected,
    Measure,
    MoveBundles,
    PreMove,
    Provenance,
    SettingChange,
    sealed,
)
from loadmanager.leader.plans.plan import Plan, PlanState
from loadmanager.leader.plans.store import publish
from loadmanager.leader.plans.table import By, PlanAction
from loadmanager.model.host import BundleLoad
from loadmanager.testing import EmbeddedCluster, embedded_cluster
from statechannel.law.bundle import Bundle
from tests.loadmanager.embedded import PATIENT

CLUSTER = "standalone"
TENTH_MSG_S = 100.0
"""A tenth of a broker, which has 1,000 messages/s."""
QUICKLY: dict[str, Any] = {
    "balancing": True,
    "balancing_interval_s": 0.1,
    "balancing_tolerance": 0.45,
    "bundle_rest_s": 0.0,
    "split": False,
    "load_window_s": 0.3,
    "weight_cpu": 0.0,
    "capacity": {"rate_msg_s": 1000.0},
    "advice_measure_s": 3.0,
    **PATIENT,
}
PATIENCE_S = 60.0


class Service:
    """Each bundle carries what the test lays on it."""

    loads: Mapping[Bundle, float] = {}

    def __init__(self) -> None:
        self.held: set[Bundle] = set()

    async def prepare(self, bundle: Bundle) -> None:
        """Nothing to do."""

    async def acquire(self, bundle: Bundle, token: object, hand_off: bytes | None) -> None:
        self.held.add(bundle)

    async def release(self, bundle: Bundle, to: object) -> None:
        self.held.discard(bundle)

    async def abandon(self, bundle: Bundle) -> None:
        self.held.discard(bundle)

    async def load(self) -> dict[Bundle, BundleLoad]:
        return {bundle: BundleLoad(keys=1, in_rate_msg_s=Service.loads.get(bundle, 0.0)) for bundle in self.held}


def advised(change: Change, **promised: float) -> Advice:
    now_ms = time.time_ns() // 1_000_000
    expected = {"before": 0.4, "after": 0.1, "low": 0.2, "high": 0.4, **promised}
    return sealed(
        Advice(
            change,
            "replay found it better",
            Expected(Measure.SPREAD, **expected),
            Provenance(CLUSTER, now_ms - 3_600_000, now_ms, "history advise", "0.1.0", "replay"),
            now_ms + 3_600_000,
        )
    )


def tolerance(to: float) -> ChangeSettings:
    return ChangeSettings((SettingChange("balancing_tolerance", 0.45, to),))


async def lay_on(cluster: EmbeddedCluster[Any], *tenths: float) -> None:
    """On the first bundles of each broker in turn; returns when all know it. No round sees the half of it."""
    await switch(cluster, balancing=False)
    Service.loads = {b: TENTH_MSG_S * t for b, t in zip(cluster.bundles(), tenths, strict=False)}
    total = sum(Service.loads.values())

    def known(at: Broker) -> bool:
        views, live = at.node.views.brokers, {broker.name for broker in cluster.brokers}
        return abs(sum(load.in_rate_msg_s for name, load in views.items() if name in live) - total) < 1

    await cluster.until(lambda: all(map(known, cluster.brokers)), PATIENCE_S)
    await switch(cluster, balancing=True)


async def switch(cluster: EmbeddedCluster[Any], *, balancing: bool) -> None:
    await cluster.brokers[0].ask(lambda n: n.live.set("balancing", balancing, seen=None, author="test", reason=""))
    await cluster.until(lambda: all(b.node.settings.balancing is balancing for b in cluster.brokers), PATIENCE_S)


async def approved(cluster: EmbeddedCluster[Any], of: Advice) -> None:
    async def say(node: Any) -> None:
        await publish(node.plans, of, CLUSTER, node.world.wall_ms())
        await node.plans.act(of.id, PlanAction.APPROVE, By.OPERATOR, "ann", "")

    await cluster.brokers[0].ask(say)


async def withdraw(node: Any, of: Advice) -> None:
    await node.plans.refresh()
    await node.plans.act(of.id, PlanAction.WITHDRAW, By.OPERATOR, "ann", "no")


def entry(at: Broker, of: Advice) -> Plan:
    return at.node.plans.get(of.id)


async def until(cluster: EmbeddedCluster[Any], of: Advice, *states: PlanState) -> Plan:
    def arrived() -> bool:
        return any(each.id == of.id and each.state in states for each in cluster.brokers[0].node.plans.all())

    await cluster.until(arrived, PATIENCE_S)
    return entry(cluster.brokers[0], of)


def leader_of(cluster: EmbeddedCluster[Any]) -> Broker:
    leadership = cluster.brokers[0].node.world.coordination.leadership
    assert leadership is not None
    return next(broker for broker in cluster.brokers if broker.name == leadership.leader.name)


async def some_rounds(cluster: EmbeddedCluster[Any], count: int = 25) -> None:
    counts = leader_of(cluster).node.current.rebalancer.counts
    begun = counts.rounds
    await cluster.until(lambda: counts.rounds >= begun + count, PATIENCE_S)


@pytest.mark.slow
async def test_approved_advice_lowers_the_imbalance_and_is_kept() -> None:
    async with embedded_cluster(Service, brokers=2, bundles=8, **QUICKLY) as cluster:
        await lay_on(cluster, 2, 1, 2, 1, 1, 1, 1, 0.5)  # 6 to 3.5: a spread of 26 %, which 45 % tolerate
        await some_rounds(cluster)
        of = advised(tolerance(0.225))
        await approved(cluster, of)
        found = await until(cluster, of, PlanState.DONE, PlanState.UNDONE, PlanState.SUPERSEDED, PlanState.REFUSED)
        assert found.state is PlanState.DONE, found
        effect = found.effect
        assert effect is not None
        assert effect.before > 0.2 > 0.1 > effect.after
        assert all(broker.node.settings.balancing_tolerance == 0.225 for broker in cluster.brokers)


@pytest.mark.slow
async def test_advice_after_which_it_is_worse_is_undone_by_the_next_leader_too() -> None:
    settings = {**QUICKLY, "proof_validity_s": 1.0, "advice_measure_s": 7.0}  # long beside until a new leader leads
    async with embedded_cluster(Service, brokers=3, bundles=6, **settings) as cluster:
        await lay_on(cluster, 1, 1, 1, 1, 1, 1)
        await some_rounds(cluster)
        of = advised(tolerance(0.9))
        await approved(cluster, of)
        await until(cluster, of, PlanState.MEASURING)
        await cluster.kill(leader_of(cluster))
        await cluster.settled()
        heavy, light = (next(b for b in cluster.bundles() if cluster.owner(b) is at) for at in cluster.brokers)
        places = [cluster.bundles().index(bundle) for bundle in (heavy, light)]
        await lay_on(cluster, *(4.0 if at == places[0] else 2.0 if at == places[1] else 0.0 for at in range(6)))
        found = await until(cluster, of, PlanState.DONE, PlanState.UNDONE, PlanState.SUPERSEDED, PlanState.REFUSED)
        assert found.state is PlanState.UNDONE, found
        assert found.effect is not None
        assert found.effect.harm
        await cluster.until(
            lambda: all(b.node.settings.balancing_tolerance == 0.45 for b in cluster.brokers), PATIENCE_S
        )
        history = cluster.brokers[0].node.live.history("balancing_tolerance")
        assert [version.author for version in history] == [f"plan {of.id}", f"plan {of.id}, undone"]
        assert any("harm" in note.text for broker in cluster.brokers for note in broker.node.notes)


async def test_a_split_that_was_advised_is_made_and_merged_again_when_withdrawn() -> None:
    settings = {**QUICKLY, "balancing_tolerance": 1.0}  # none is moved meanwhile: children of two brokers stay cut
    async with embedded_cluster(Service, brokers=2, bundles=4, **settings) as cluster:
        await lay_on(cluster, 1, 1, 1, 1)
        await some_rounds(cluster)
        whole = cluster.bundles()
        of = advised(CutBundles(cluster.namespace, 4, (Cut(str(whole[0]), 2), Cut(str(whole[1]), 3))))
        await approved(cluster, of)
        await until(cluster, of, PlanState.MEASURING)
        assert len(cluster.bundles()) == 7
        await cluster.brokers[0].ask(lambda node: withdraw(node, of))
        found = await until(cluster, of, PlanState.UNDONE)
        assert "2 bundles are whole again" in found.steps[-1].reason
        assert cluster.bundles() == whole


async def test_moves_before_a_peak_are_in_time_and_undone_when_withdrawn() -> None:
    async with embedded_cluster(Service, brokers=2, bundles=4, **QUICKLY) as cluster:
        await lay_on(cluster, 0.3, 1, 1, 1)  # 1.3 to 2, then 1 to 2.3: a spread that is tolerated
        await some_rounds(cluster)
        first, second = cluster.brokers
        now_ms = time.time_ns() // 1_000_000
        mine = [bundle for bundle in cluster.bundles() if cluster.owner(bundle) is first]
        moves = tuple(PreMove(str(bundle), first.name, second.name) for bundle in mine[:1])
        later = advised(MoveBundles(moves, now_ms + 1_800_000, now_ms + 3_500_000))
        await approved(cluster, later)
        stop = msgspec.structs.replace(later.change, not_before_ms=now_ms - 1000, not_after_ms=now_ms + 3_000_000)  # type: ignore[type-var]
        of = advised(stop)
        await approved(cluster, of)
        await until(cluster, of, PlanState.MEASURING)
        await cluster.until(lambda: cluster.owner(mine[0]) is second, PATIENCE_S)
        assert [str(move.bundle) for move in entry(first, of).moves] == [str(mine[0])]
        await first.ask(lambda node: withdraw(node, of))
        await until(cluster, of, PlanState.UNDONE)
        await cluster.until(lambda: cluster.owner(mine[0]) is first, PATIENCE_S)
        assert entry(first, later).state in (PlanState.APPROVED, PlanState.SUPERSEDED)
