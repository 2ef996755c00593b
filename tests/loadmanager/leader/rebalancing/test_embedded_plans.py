"""Plans on real brokers of one process: reviewed and run, and the leader killed in the middle."""

from __future__ import annotations

from typing import Any

import pytest

from loadmanager import Broker
from loadmanager.broker.node import Node
from loadmanager.errors import Conflict
from loadmanager.leader.plans.plan import Plan, PlanState
from loadmanager.leader.plans.table import PlanAction
from loadmanager.leader.rebalancing.actions import OperatorActions, Unload
from loadmanager.testing import EmbeddedCluster, embedded_cluster
from tests.loadmanager.embedded import PATIENT

BY_HAND: dict[str, Any] = {"balancing": False, "balancing_moves_per_round": 10}


def operating(node: Node) -> OperatorActions:
    return OperatorActions(node.current.rebalancer)


async def unload(at: Broker, what: Unload, *, review: bool = False) -> Plan:
    async def work(node: Node) -> Plan:
        return await operating(node).unload(what, "ann", "test", review=review)

    return await at.ask(work)


async def act(at: Broker, plan: Plan, *actions: PlanAction) -> None:
    async def work(node: Node) -> None:
        for action in actions:
            await operating(node).act(plan.id, action, "ann", "")

    await at.ask(work)


def state(at: Broker, plan: Plan) -> PlanState:
    return at.node.plans.get(plan.id).state


def held(cluster: EmbeddedCluster[Any], broker: Broker) -> int:
    return sum(cluster.owner(bundle) is broker for bundle in cluster.bundles())


def leader_of(cluster: EmbeddedCluster[Any]) -> Broker:
    leadership = cluster.brokers[0].node.world.coordination.leadership
    assert leadership is not None
    return next(broker for broker in cluster.brokers if broker.name == leadership.leader.name)


async def test_a_plan_goes_from_proposal_to_undo() -> None:
    async with embedded_cluster(
        None, brokers=2, bundles=4, urls={"http": "http://127.0.0.1:1"}, **{**BY_HAND, **PATIENT}
    ) as cluster:
        first, second = cluster.brokers
        plan = await unload(first, Unload(broker=first.name, to=second.name), review=True)
        await act(second, plan, PlanAction.APPROVE, PlanAction.RUN)
        await cluster.until(lambda: state(first, plan) is PlanState.DONE)
        await cluster.until(lambda: held(cluster, second) == 4)
        verified = await first.ask(lambda node: operating(node).verify(plan.id, "ann"))
        assert verified.verification is not None
        assert verified.verification.holding == len(plan.moves) == 2
        back = await first.ask(lambda node: operating(node).undo(plan.id, "ann", ""))
        with pytest.raises(Conflict):
            await act(first, back, PlanAction.RUN)
        await act(first, back, PlanAction.APPROVE, PlanAction.RUN)
        await cluster.until(lambda: state(second, plan) is PlanState.UNDONE)
        await cluster.until(lambda: held(cluster, first) == 2)


async def test_the_next_leader_finishes_the_plan_of_one_that_was_killed() -> None:
    async with embedded_cluster(None, brokers=3, bundles=24, urls={"http": "http://127.0.0.1:1"}, **BY_HAND) as cluster:
        old = leader_of(cluster)
        source, to = (broker for broker in cluster.brokers if broker is not old)
        before = held(cluster, to)
        plan = await unload(source, Unload(broker=source.name, to=to.name, wave=1))
        await cluster.until(lambda: held(cluster, to) >= before + 2)
        await cluster.kill(old)
        assert state(source, plan) is PlanState.RUNNING
        await cluster.until(lambda: state(to, plan) is PlanState.DONE)
        assert leader_of(cluster) is not old
        await cluster.until(lambda: {cluster.owner(move.bundle) for move in plan.moves} == {to})
