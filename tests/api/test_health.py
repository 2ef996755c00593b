"""`/v1/health`: what is wrong comes with its reason and its remedy; a dead broker stays listed."""

from __future__ import annotations

from typing import Any

import pytest

from loadmanager.broker import health as health_of
from loadmanager.model.policies.model import AccessRole, BundlePolicy, Kind
from tests.api.access.conftest import Guarded, guarded
from tests.api.conftest import Broker, Cluster

__all__ = ["guarded"]

pytestmark = pytest.mark.slow


async def health(cluster: Cluster) -> list[dict[str, Any]]:
    status, found, _ = await cluster.ask("GET", "/v1/health")
    assert status == 200
    return found


async def kill(cluster: Cluster, broker: Broker) -> None:
    """End it without a drain, and wait until the first broker has seen that."""
    cluster.brokers.remove(broker)
    await broker.node.world.coordination.close()
    broker.running.cancel()
    await cluster.until(lambda: broker.name not in cluster.brokers[0].node.membership.peers)


async def test_nothing_is_wrong_with_a_cluster_that_serves(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n")  # no lookup has asked for these
    assert await health(cluster) == []


async def test_a_dead_broker_stays_listed_with_the_time_of_its_death(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n")
    dead = cluster.brokers[1]
    await kill(cluster, dead)
    _, brokers, _ = await cluster.ask("GET", "/v1/brokers")
    (listed,) = [each for each in brokers if each["broker"] == dead.name]
    assert (listed["registered"], listed["live"]) == (False, False)
    assert abs(listed["gone_ms"] - cluster.brokers[0].node.world.wall_ms()) < 60_000
    _, shown, _ = await cluster.ask("GET", f"/v1/brokers/{dead.name}")
    assert (shown["registered"], shown["gone_ms"]) == (False, pytest.approx(listed["gone_ms"], abs=1_000))
    (found,) = [each for each in await health(cluster) if each["subject"] == "brokers"]
    assert (found["found"], found["names"]) == (f"1 broker is dead: {dead.name}", [dead.name])
    assert found["since_ms"] == pytest.approx(listed["gone_ms"], abs=1_000)


async def test_a_broker_that_drained_before_it_ended_is_not_dead(cluster: Cluster) -> None:
    await cluster.start(2)
    left = cluster.brokers[1]
    left.node.stop()
    await left.running
    cluster.brokers.remove(left)
    await cluster.until(lambda: left.name not in cluster.brokers[0].node.membership.peers)
    assert [each["broker"] for each in (await cluster.ask("GET", "/v1/brokers"))[1]] == [cluster.brokers[0].name]
    assert await health(cluster) == []


@pytest.mark.parametrize("looked_at", [health_of.BUNDLES_LOOKED_AT, 0])
async def test_bundles_that_no_broker_may_take_are_an_error_with_its_reason(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, looked_at: int
) -> None:
    """However few bundles are looked at."""
    monkeypatch.setattr(health_of, "BUNDLES_LOOKED_AT", looked_at)
    await cluster.start(2)
    bundle = (await cluster.create("t/n"))[0]
    node = cluster.brokers[0].node
    await node.policies.put(Kind.BUNDLE, str(bundle), BundlePolicy(quarantined="it killed three"), author="ann")
    (locked,) = await health(cluster)
    assert (locked["severity"], locked["found"]) == ("error", "1 bundle is quarantined, and no broker may take it")
    assert (locked["why"], locked["names"]) == ("it killed three", [str(bundle)])
    assert locked["advice"] == f"loadmanager bundles release-quarantine {bundle}"
    assert locked["since_ms"] is not None
    for broker in cluster.brokers:
        status, _, _ = await cluster.ask("PUT", f"/v1/brokers/{broker.name}/drain?by_policy=true&force=true")
        assert status in (202, 409)
    for broker in cluster.brokers:
        await broker.node.drain(1.0)
    await cluster.until(lambda: not node.membership.eligible())
    unowned, *_ = await health(cluster)
    assert unowned["found"] == "4 bundles have no owner, and no broker may take one"
    assert unowned["why"] == "no broker takes bundles: 2 are draining"
    assert "brokers drain HOST:PORT --cancel" in unowned["advice"]


async def test_an_unloaded_bundle_without_a_lookup_is_a_warning_with_its_time(cluster: Cluster) -> None:
    await cluster.start()
    bundle = await cluster.assign("persistent://t/n/x") if (await cluster.create("t/n")) else None
    status, *_ = await cluster.ask("PUT", f"/admin/v2/namespaces/t/n/{str(bundle).rpartition('/')[2]}/unload")
    assert status == 204
    (found,) = await health(cluster)
    assert (found["severity"], found["names"]) == ("warning", [str(bundle)])
    assert found["found"] == "1 bundle has lost its owner"  # the other three never had one
    assert found["since_ms"] is not None
    assert "the next lookup assigns each" in found["advice"]


async def test_a_quarantined_bundle_that_lost_its_owner_is_not_promised_to_the_next_lookup(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    bundle = await cluster.assign("persistent://t/n/x")
    node = cluster.brokers[0].node
    await node.policies.put(Kind.BUNDLE, str(bundle), BundlePolicy(quarantined="it killed three"), author="ann")
    await node.current.operations.unload(bundle)
    await cluster.agree()
    assert [each["subject"] for each in await health(cluster)] == ["quarantine"]


async def test_pauses_come_after_errors_with_the_command_that_ends_them(cluster: Cluster) -> None:
    await cluster.start()
    bundle = (await cluster.create("t/n"))[0]
    for body in ({"namespace": "t/n", "reason": "release night"}, {"reason": "audit"}):
        assert (await cluster.ask("POST", "/v1/balancing/pause", json=body))[0] == 200
    node = cluster.brokers[0].node
    await node.policies.put(Kind.BUNDLE, str(bundle), BundlePolicy(quarantined="why not"), author="ann")
    found = await health(cluster)
    assert [each["severity"] for each in found] == ["error", "warning", "warning"]
    told = [(each["found"], each["why"], each["advice"]) for each in found[1:]]
    assert told == [
        ("balancing of the cluster is paused", "audit", "loadmanager resume"),
        ("balancing of 1 namespace is paused: t/n", "release night", "loadmanager resume --namespace t/n"),
    ]


async def test_only_a_viewer_of_the_cluster_sees_it(guarded: Guarded) -> None:
    await guarded.start()
    await guarded.grant(AccessRole.VIEWER, "ann", "t/n")
    await guarded.grant(AccessRole.VIEWER, "bob", "*")
    assert (await guarded.ask("ann", "GET", "/v1/health"))[0] == 403
    assert (await guarded.ask("bob", "GET", "/v1/health"))[:2] == (200, [])


async def test_bundles_of_a_dead_broker_are_an_error_until_others_have_them(cluster: Cluster) -> None:
    await cluster.start(2)
    dead, bundles = cluster.brokers[1], await cluster.create("t/n")
    for bundle in bundles[:3]:
        await cluster.brokers[0].node.current.operations.transfer(bundle, dead.name)
    await cluster.agree()
    await kill(cluster, dead)
    subjects = {each["subject"]: each for each in await health(cluster)}
    assert subjects["bundles"]["found"] == "3 bundles belong to dead brokers, and no broker serves them"
    assert subjects["bundles"]["severity"] == subjects["brokers"]["severity"] == "error"
    assert subjects["bundles"]["since_ms"] is not None
    assert subjects["brokers"]["why"] == "the session ended without a drain; 3 bundles wait to be taken over"
