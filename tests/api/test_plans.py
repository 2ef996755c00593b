"""Plans, bulk unloads and pauses through REST and the command line, on a cluster of real brokers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from loadmanager.leader.rebalancing.actions import Subject, pause, resume
from loadmanager.model.host import BundleLoad
from statechannel.law.bundle import Bundle
from tests.api.conftest import Broker, Cluster, Refused
from tests.api.test_cli import as_json, loadmanager
from tests.api.test_own_routes import samples

QUICK: dict[str, Any] = {"balancing_interval_s": 0.5, "load_window_s": 0.2}
BY_HAND = {**QUICK, "balancing": False}


async def lopsided(cluster: Cluster, brokers: int = 2, bundles: int = 8, **settings: Any) -> tuple[Bundle, ...]:
    """The first broker has everything, which fills half of it; all bundles make as much load."""
    capacity = {"rate_msg_s": 2000.0 * bundles}
    await cluster.start(brokers, capacity=capacity, weight_cpu=0.0, **{**QUICK, **settings})
    for broker in cluster.brokers:
        load_by_hand(broker)
    policies = cluster.brokers[0].node.policies
    await pause(policies, Subject(), "test", "")
    found = await cluster.create("t/n", bundles)
    for bundle in found:
        await cluster.brokers[0].node.current.operations.transfer(bundle, cluster.brokers[0].name)
    await cluster.agree()
    await loads_settle(cluster, [1000.0 * bundles, *(0.0 for _ in cluster.brokers[1:])])
    await resume(policies, Subject(), "test", "")
    return found


def load_by_hand(broker: Broker) -> None:
    async def load() -> dict[Bundle, BundleLoad]:
        return {bundle: BundleLoad(keys=1, in_rate_msg_s=1000.0, in_rate_bytes_s=1e6) for bundle in broker.host.held}

    broker.host.load = load


async def open_plan(cluster: Cluster) -> dict[str, Any]:
    await cluster.until(lambda: all(broker.node.plans.open() for broker in cluster.brokers))
    return await as_json(cluster, "plan", "show", cluster.brokers[-1].node.plans.open()[0].id)


def owned(cluster: Cluster, bundles: tuple[Bundle, ...], at: int) -> list[Bundle]:
    """What a broker owns, as all brokers know."""
    name = cluster.brokers[at].name
    return [bundle for bundle in bundles if {cluster.owner(bundle, broker) for broker in cluster.brokers} == {name}]


async def until_plan(cluster: Cluster, plan_id: str, state: str) -> None:
    """Until all brokers know that it is so."""

    def known() -> bool:
        plans = [{plan.id: plan for plan in broker.node.plans.all()}.get(plan_id) for broker in cluster.brokers]
        return all(plan is not None and plan.state == state for plan in plans)

    await cluster.until(known)


@pytest.mark.slow
async def test_a_plan_is_proposed_approved_run_verified_and_undone_at_any_broker(cluster: Cluster) -> None:
    bundles = await lopsided(cluster, balancing_review=True, balancing_budget=1.0)
    plan = await open_plan(cluster)
    assert (plan["state"], plan["kind"]) == ("proposed", "balance")
    assert plan["may"] == ["approve", "reject"]
    assert plan["certificate"]["ratio"] >= 1
    plan_id, moves = plan["id"], plan["moves"]
    assert (await loadmanager(cluster, "plan", "run", plan_id)).exit_code == 1
    approved = await loadmanager(cluster, "plan", "approve", plan_id, "--author", "ann", at=1)
    assert approved.stdout == f"plan {plan_id} is approved: {moves} waiting\n"
    ran = await loadmanager(cluster, "plan", "run", plan_id, "--wait", "--author", "bob")
    assert (ran.exit_code, ran.stdout) == (0, f"plan {plan_id} is done: {moves} done\n"), ran.output
    await cluster.until(lambda: len(owned(cluster, bundles, 1)) == moves)
    verified = await as_json(cluster, "plan", "verify", plan_id)
    assert (verified["state"], verified["verification"]["holding"]) == ("verified", moves)
    assert [step["author"] for step in verified["steps"][:2]] == ["ann", "bob"]
    back = await as_json(cluster, "plan", "undo", plan_id)
    assert (back["state"], back["undoes"], back["moves"]) == ("proposed", plan_id, moves)
    await loadmanager(cluster, "plan", "approve", back["id"], "--run", at=1)
    await until_plan(cluster, plan_id, "undone")
    await cluster.until(lambda: len(owned(cluster, bundles, 0)) == len(bundles))


@pytest.mark.slow
async def test_verifying_shows_predicted_against_actual_usage(cluster: Cluster) -> None:
    await lopsided(cluster, balancing=False, balancing_budget=1.0)
    plan = await as_json(cluster, "plan", "propose")
    assert plan["predicted"]["usages"] == pytest.approx({b.name: 0.25 for b in cluster.brokers})
    await loadmanager(cluster, "plan", "approve", plan["id"], "--run")
    await until_plan(cluster, plan["id"], "done")
    await loads_settle(cluster, [4000, 4000])
    shown = await loadmanager(cluster, "plan", "verify", plan["id"])
    assert f"plan {plan['id']} is verified: 4 moves hold, 0 do not" in shown.stdout
    [row] = [line.split() for line in shown.stdout.splitlines() if line.startswith(cluster.brokers[1].name)]
    assert row[1:] == ["0.0", "%", "25.0", "%", "25.0", "%"], shown.stdout  # before, predicted, verified


async def loads_settle(cluster: Cluster, rates_msg_s: list[float]) -> None:
    """Until the brokers report so much, and everybody has heard it."""

    def settled() -> bool:
        return all(
            (load := seen.node.views.brokers.get(broker.name)) is not None and abs(load.rate_msg_s - rate_msg_s) < 1
            for broker, rate_msg_s in zip(cluster.brokers, rates_msg_s, strict=True)
            for seen in cluster.brokers
        )

    await cluster.until(settled)


async def test_balancing_status_tells_what_the_last_round_decided_at_every_broker(cluster: Cluster) -> None:
    await lopsided(cluster)
    await cluster.until(lambda: any(b.node.current.rebalancer.counts.moves["balance"] for b in cluster.brokers))
    leader = next(b for b in cluster.brokers if b.node.current.rebalancer.counts.moves["balance"])

    async def last(at: int) -> Any:
        return (await cluster.ask("GET", "/v1/balancing", at=at))[1]["last"]

    for at, broker in enumerate(cluster.brokers):
        found = await last(at)
        while found is None:
            found = await last(at)
        assert found["leader"] == leader.name, broker.name
        assert found["strategy"] == "plan"
    shown = await loadmanager(cluster, "balancing", "status")
    assert shown.exit_code == 0
    assert "tolerance 10.0 %" in shown.stdout
    assert re.search(r"^paused +nothing$", shown.stdout, re.MULTILINE)


@pytest.mark.slow
async def test_a_pause_is_kept_with_who_and_why_and_ended_by_resume(cluster: Cluster) -> None:
    await lopsided(cluster, balancing=False)
    told = await loadmanager(cluster, "pause", "--reason", "upgrade", "--author", "ann")
    assert told.stdout == "the cluster is paused; paused now: the cluster (upgrade)\n"
    await loadmanager(cluster, "pause", "--namespace", "t/n", at=1)
    await loadmanager(cluster, "pause", "--broker", cluster.brokers[1].name)
    await policies_known(cluster)
    assert (await as_json(cluster, "balancing", "status"))["paused"] == {
        "changed": False,
        "cluster": True,
        "reason": "upgrade",
        "namespaces": ["t/n"],
        "brokers": [cluster.brokers[1].name],
    }
    assert (await as_json(cluster, "resume"))["changed"]
    await policies_known(cluster)
    again = await loadmanager(cluster, "resume", at=1)
    assert again.stdout.startswith("the cluster was not paused; paused now: t/n")
    await loadmanager(cluster, "resume", "-n", "t/n")
    await loadmanager(cluster, "resume", "--broker", cluster.brokers[1].name)
    assert not (await as_json(cluster, "resume", "-n", "t/n"))["changed"]
    history = cluster.brokers[0].node.policies.documents.history("cluster/cluster")
    assert ("ann", "upgrade") in [(version.author, version.reason) for version in history]


async def policies_known(cluster: Cluster) -> None:
    """Until all brokers have read what any of them wrote."""
    for broker in cluster.brokers:
        await broker.node.policies.documents.catch_up()


@pytest.mark.slow
async def test_a_broker_is_emptied_in_waves_and_the_command_waits_for_it(cluster: Cluster) -> None:
    bundles = await lopsided(cluster, 2, 5, balancing=False)
    first, second = (broker.name for broker in cluster.brokers)
    told = await loadmanager(cluster, "unload", "--broker", first, "--to", second, "--wave", "2")
    assert told.exit_code == 0, told.output
    assert told.stdout.endswith("is done: 5 done\n")
    await cluster.until(lambda: len(owned(cluster, bundles, 1)) == 5)
    again = await loadmanager(cluster, "unload", "--broker", first, "--to", second)
    assert (again.exit_code, "there is nothing to move" in again.output) == (1, True)


@pytest.mark.slow
async def test_what_failed_of_an_unload_is_listed_and_makes_it_fail(cluster: Cluster) -> None:
    bundles = await lopsided(cluster, 2, 2, balancing=False, in_flight_timeout_s=5.0)
    cluster.brokers[1].host.gate.clear()  # it never gets ready
    told = await loadmanager(
        cluster, "unload", "-n", "t/n", "--to", cluster.brokers[1].name, "--wave", "1", "--reason", "test"
    )
    assert told.exit_code == 1
    assert f"failed: {bundles[0]}: called off" in told.output
    await cluster.until(lambda: len(owned(cluster, bundles, 0)) == 2)


async def test_a_running_unload_is_cancelled(cluster: Cluster) -> None:
    bundles = await lopsided(cluster, 2, 4, balancing=False)
    cluster.brokers[1].host.gate.clear()
    begun = await as_json(cluster, "unload", "-n", "t/n", "--to", cluster.brokers[1].name, "--wave", "1", "--no-wait")
    assert begun["state"] == "running"
    table = cluster.brokers[0].node.channel.table
    await cluster.until(lambda: any(True for _ in table.in_flight()))
    cancelled = await as_json(cluster, "plan", "cancel", begun["id"], "--reason", "wrong one")
    assert (cancelled["state"], cancelled["counts"]) == ("cancelled", {"under way": 1, "waiting": 3})
    cluster.brokers[1].host.gate.set()
    await cluster.until(lambda: all(len(b.node.plans.get(begun["id"]).outcomes) == 4 for b in cluster.brokers))
    shown = await as_json(cluster, "plan", "show", begun["id"])
    assert shown["counts"] == {"done": 1, "waiting": 3}
    await cluster.until(lambda: len(owned(cluster, bundles, 1)) == 1)


async def test_proposals_by_hand_take_a_strategy_and_a_tolerance_of_their_own(cluster: Cluster) -> None:
    await lopsided(cluster, balancing=False)
    told = await loadmanager(cluster, "plan", "propose", "--tolerance", "0.5", "--author", "ann")
    assert told.exit_code == 0, told.output
    [plan] = await as_json(cluster, "plan", "list")
    assert (plan["state"], plan["author"]) == ("proposed", "ann")
    assert (await as_json(cluster, "plan", "show", plan["id"]))["settings"] == {"tolerance": 0.5}
    refused = await loadmanager(cluster, "plan", "propose", "--strategy", "guess")
    assert (refused.exit_code, "there is no strategy 'guess'" in refused.output) == (1, True)
    rejected = await as_json(cluster, "plan", "reject", plan["id"], "--reason", "no")
    assert (rejected["state"], rejected["may"]) == ("rejected", [])


REFUSED: list[tuple[int, str, str, Any, str]] = [
    (404, "GET", "/v1/plans/none", None, "there is no plan none"),
    (404, "POST", "/v1/plans/none/approve", {}, "there is no plan none"),
    (404, "POST", "/v1/plans/none/undo", {}, "there is no plan none"),
    (412, "POST", "/v1/plans/unload", {}, "name either a namespace or a broker"),
    (412, "POST", "/v1/balancing/pause", {"namespace": "t/n", "broker": "a:1"}, "one at a time"),
    (412, "POST", "/v1/plans", {"tolerance": "snug"}, "is not a tolerance"),
    (404, "POST", "/v1/plans/unload", {"namespace": "t/none"}, "no namespace"),
    (400, "POST", "/v1/plans/unload", {"namespace": "t/n", "wave": 0}, "wave"),
    (400, "POST", "/v1/plans", {"tolerence": 1}, "there is no such field"),
    (400, "GET", "/v1/plans?limit=0", None, "limit"),
]


async def test_what_makes_no_sense_is_refused(cluster: Cluster, refused: Refused, subtests: pytest.Subtests) -> None:
    await cluster.start(**BY_HAND)
    for status, method, path, body, says in REFUSED:
        with subtests.test(path=path, body=body):
            options = {} if body is None else {"json": body}
            assert says in (await refused(status, method, path, **options))["detail"]


async def test_rounds_and_moves_are_counted(cluster: Cluster) -> None:
    await lopsided(cluster, balancing_moves_per_round=10, balancing_budget=1.0)
    await cluster.until(lambda: any(b.node.current.rebalancer.counts.moves["balance"] for b in cluster.brokers))
    leader = next(at for at, b in enumerate(cluster.brokers) if b.node.current.rebalancer.counts.moves["balance"])
    found = samples((await cluster.ask("GET", "/metrics", at=leader))[1])
    assert found["loadmanager_balancing_rounds_total"] >= 1
    assert found['loadmanager_balancing_moves_total{stage="balance"}'] >= 1
    assert found['loadmanager_balancing_held_back_total{rule="moves_in_flight_per_broker"}'] >= 1
    assert found["loadmanager_balancing_round_age_seconds"] < 60
    assert found["loadmanager_balancing_spread"] >= 0
    assert found["loadmanager_moves_in_flight"] >= 0
