"""Members, tenants, drains: `/admin/v2/brokers`, `/admin/v2/tenants`, `/v1/brokers`."""

from __future__ import annotations

import pytest

from tests.api.conftest import Cluster, Refused


async def test_brokers_are_listed_for_this_cluster_only(cluster: Cluster, refused: Refused) -> None:
    await cluster.start(2)
    names = sorted(broker.name for broker in cluster.brokers)
    assert (await cluster.ask("GET", "/admin/v2/brokers"))[1] == names
    assert (await cluster.ask("GET", "/admin/v2/brokers/standalone", at=1))[1] == names
    assert "standalone" in (await refused(404, "GET", "/admin/v2/brokers/elsewhere"))["detail"]


async def test_the_leader_is_named_by_all(cluster: Cluster) -> None:
    await cluster.start(2)
    answers = [(await cluster.ask("GET", "/admin/v2/brokers/leaderBroker", at=at))[1] for at in (0, 1)]
    assert answers[0] == answers[1]
    assert answers[0]["serviceUrl"] == cluster.of(answers[0]["brokerId"]).url


async def test_no_leader_is_not_found(cluster: Cluster, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    await cluster.start()
    node = cluster.brokers[0].node
    monkeypatch.setattr(node, "_judge", lambda: None)  # or the next news of the members would clear the broker
    node.membership.suspected[node.current.me] = "refuses connections"
    assert "there is no leader" in (await refused(404, "GET", "/admin/v2/brokers/leaderBroker"))["detail"]


async def test_health_readiness_life_and_version(cluster: Cluster) -> None:
    await cluster.start()
    for what in ("health", "ready", "live"):
        status, body, headers = await cluster.ask("GET", f"/admin/v2/brokers/{what}")
        assert (status, body) == (200, "ok")
        assert headers["Content-Type"].startswith("text/plain")
    assert (await cluster.ask("GET", "/admin/v2/brokers/version"))[1].count(".") == 2


async def test_a_broker_without_a_fresh_proof_is_not_healthy(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    node = cluster.brokers[0].node
    node.current._proofs.fence()
    assert "proof" in (await refused(503, "GET", "/admin/v2/brokers/health"))["detail"]


async def test_a_tenant_exists_by_its_namespaces(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    assert (await cluster.ask("PUT", "/admin/v2/tenants/t", json={"allowedClusters": ["standalone"]}))[0] == 204
    assert (await cluster.ask("GET", "/admin/v2/tenants"))[1] == []
    await refused(404, "GET", "/admin/v2/tenants/t")
    await cluster.create("t/n")
    assert (await cluster.ask("GET", "/admin/v2/tenants"))[1] == ["t"]
    assert (await cluster.ask("GET", "/admin/v2/tenants/t"))[1]["allowedClusters"] == ["standalone"]
    assert "t/n" in (await refused(409, "DELETE", "/admin/v2/tenants/t"))["detail"]
    await cluster.ask("DELETE", "/admin/v2/namespaces/t/n")
    assert "nothing to delete" in (await refused(404, "DELETE", "/admin/v2/tenants/t"))["detail"]
    await refused(412, "PUT", "/admin/v2/tenants/no%20tenant")


async def test_brokers_are_shown_with_what_they_registered_hold_and_report(cluster: Cluster) -> None:
    await cluster.start(2, capacity={"cpu": 2.0})
    await cluster.create("t/n", 8)
    for i in range(40):
        await cluster.assign(f"t/n/topic-{i}")
    views = cluster.brokers[0].node.views.brokers
    await cluster.until(lambda: all(b.name in views for b in cluster.brokers))
    shown = (await cluster.ask("GET", "/v1/brokers"))[1]
    assert [broker["broker"] for broker in shown] == sorted(broker.name for broker in cluster.brokers)
    assert sum(broker["leader"] for broker in shown) == 1
    for broker in shown:
        running = cluster.of(broker["broker"])
        assert broker["registered"]
        assert broker["live"]
        assert not broker["draining"]
        assert broker["suspected"] is None
        assert broker["bundles"] == len(running.host.held)
        assert broker["admin_url"] == running.url
        assert broker["urls"]["http"] == f"http://{running.name}"
        assert broker["capacity"] == {"cpu": 2.0}
        assert broker["load"]["broker"] == [running.name, running.node.current.me.incarnation]
        assert broker["load"]["io"].keys() == {
            f"{what}_bytes_s" for what in ("disk_read", "disk_write", "network_in", "network_out")
        }
        assert (await cluster.ask("GET", f"/v1/brokers/{running.name}"))[1]["incarnation"] == broker["incarnation"]


async def test_an_unknown_broker_is_not_found(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    for method, path in (("GET", ""), ("GET", "/drain"), ("PUT", "/drain"), ("DELETE", "/drain")):
        problem = await refused(404, method, f"/v1/brokers/127.0.0.1:1{path}")
        assert cluster.brokers[0].name in problem["detail"], "the brokers that there are"


async def test_a_drain_moves_everything_away_and_can_be_called_off(cluster: Cluster) -> None:
    await cluster.start(2)
    bundles = await cluster.create("t/n", 8)
    for i in range(40):
        await cluster.assign(f"t/n/topic-{i}")
    drained, other = cluster.brokers
    path = f"/v1/brokers/{drained.name}/drain"
    assert drained.host.held

    status, _, headers = await cluster.ask("PUT", path, at=1)
    assert (status, headers["Location"]) == (307, f"{drained.url}{path}"), "the broker does it itself"
    status, begun, _ = await cluster.ask("PUT", path, at=1, allow_redirects=True)
    assert status == 202
    assert begun["draining"]
    await cluster.until(lambda: len(other.host.held) == len(bundles))
    await cluster.until(lambda: not drained.node.current.drain.progress().left)
    progress = (await cluster.ask("GET", path))[1]
    assert progress["draining"]
    assert progress["done"]
    assert progress["left"] == 0
    assert not drained.host.held
    assert (await cluster.ask("GET", f"/v1/brokers/{drained.name}"))[1]["bundles"] == 0

    assert (await cluster.ask("DELETE", path, at=1, allow_redirects=True))[0] == 204
    assert (await cluster.ask("GET", path))[1] == {
        "broker": drained.name,
        "draining": False,
        "running": False,
        "total": 0,
        "left": 0,
        "done": False,
    }
    await cluster.until(lambda: not other.node.membership.peers[drained.name].registration.draining)
    await other.node.current.operations.transfer(bundles[0], drained.name)


async def test_the_only_broker_is_drained_by_force_only(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    path = f"/v1/brokers/{cluster.brokers[0].name}/drain"
    assert "force=true" in (await refused(409, "PUT", path))["detail"]
    await refused(400, "PUT", path, params={"timeout_s": "-1"})
    assert (await cluster.ask("PUT", path, params={"force": "true"}))[0] == 202
    await cluster.until(lambda: cluster.owner(bundle) is None)
