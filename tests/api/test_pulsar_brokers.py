"""What Pulsar's tools ask of brokers, clusters and topics, besides lists."""

from __future__ import annotations

import pytest

from loadmanager.cluster import told_topics
from loadmanager.model.host import BundleLoad
from statechannel.law.bundle import Bundle, Key
from tests.api.conftest import Cluster, Host, Refused

V2 = "/admin/v2"
TOPICS = f"{V2}/persistent/t/n"


async def test_a_brokers_bundles_are_listed_with_their_assignment(cluster: Cluster) -> None:
    await cluster.start(2)
    for namespace in ("t/n", "iso/n"):
        await cluster.create(namespace, 2)
    bundle = await cluster.assign("t/n/a")
    owner = cluster.owner(bundle)
    path = f"{V2}/brokers/standalone/{owner}/ownedNamespaces"
    shared = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    assert (await cluster.ask("GET", path))[1] == {str(bundle): shared}
    isolation = {
        "namespaces": ["t/.*"],
        "primary": [str(owner)],
        "secondary": [],
        "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1"}},
    }
    set_ = f"{V2}/clusters/standalone/namespaceIsolationPolicies/p"
    assert (await cluster.ask("POST", set_, json=isolation))[0] == 204
    found = (await cluster.ask("GET", path))[1][str(bundle)]
    assert (found["broker_assignment"], found["is_controlled"]) == ("primary", True)
    other = cluster.other(owner).name
    assert (await cluster.ask("GET", f"{V2}/brokers/standalone/{other}/ownedNamespaces"))[1] == {}


async def test_unknown_brokers_and_clusters_are_404(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    name = cluster.brokers[0].name
    await refused(404, "GET", f"{V2}/brokers/standalone/nobody:1/ownedNamespaces")
    await refused(404, "GET", f"{V2}/brokers/elsewhere/{name}/ownedNamespaces")
    await refused(404, "GET", f"{V2}/clusters/elsewhere")
    assert (await cluster.ask("GET", f"{V2}/clusters"))[1] == ["standalone"]
    assert (await cluster.ask("GET", f"{V2}/clusters/standalone"))[1]["serviceUrl"] == cluster.brokers[0].url


async def test_a_policy_may_leave_others_without_a_broker_as_in_pulsar(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    policy = {"namespaces": ["iso/.*"], "primary": ["127.0.0.1"], "secondary": []}
    pulsars = {**policy, "auto_failover_policy": {"policy_type": "min_available", "parameters": {}}}
    ours = await cluster.ask("PUT", "/v1/policies/isolation/p", json=policy)
    assert (ours[0], "leaves no shared broker" in ours[1]["detail"]) == (409, True)
    assert (await cluster.ask("POST", f"{V2}/clusters/standalone/namespaceIsolationPolicies/p", json=pulsars))[0] == 204
    history = (await cluster.ask("GET", "/v1/policies/isolation/p/history"))[1]
    assert "no broker may own t/n" in history[0]["reason"], "the history says what it does to others"


async def test_the_coordination_service_is_shown_without_credentials(cluster: Cluster) -> None:
    await cluster.start()
    found = (await cluster.ask("GET", f"{V2}/brokers/internal-configuration"))[1]
    assert found["metadataStoreUrl"].startswith("sqlite:")
    assert found["metadataStoreUrl"] == found["zookeeperServers"]


async def test_shutdown_is_a_drain(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    at = cluster.brokers.index(cluster.of(cluster.owner(bundle)))
    assert (await cluster.ask("POST", f"{V2}/brokers/shutdown?maxConcurrentUnloadPerSec=1", at=at))[0] == 204
    await cluster.until(lambda: cluster.owner(bundle) not in (None, cluster.brokers[at].name))
    assert (await cluster.ask("GET", f"{V2}/brokers/ready", at=at))[0] == 200, "the process goes on"


async def test_statistics_are_those_of_the_broker(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def load(host: Host) -> dict[Bundle, BundleLoad]:
        return {held: BundleLoad(keys=3, in_rate_msg_s=10, hottest_keys=(("t/n/a", 8.0),)) for held in host.held}

    monkeypatch.setattr(Host, "load", load)
    await cluster.start()
    broker = cluster.brokers[0]
    await cluster.create("t/n", 2)
    bundle = await cluster.assign("t/n/a")
    await cluster.until(lambda: any(each.hottest_keys for each in broker.node.current.load.loads.values()))
    await cluster.until(lambda: bool(broker.node.views.brokers[broker.name].keys))
    report = (await cluster.ask("GET", f"{V2}/broker-stats/load-report"))[1]
    assert (report["name"], report["bundles"]) == (broker.name, [str(bundle)])
    assert report["numTopics"] == 3
    topics = (await cluster.ask("GET", f"{V2}/broker-stats/topics"))[1]
    assert topics == {"t/n": {bundle.range: {"persistent": {"persistent://t/n/a": {"msgRate": 8.0}}}}}
    metrics = (await cluster.ask("GET", f"{V2}/broker-stats/metrics"))[1]
    assert any("loadmanager_bundles" in name for each in metrics for name in each["metrics"])
    quota = (await cluster.ask("GET", f"{V2}/resource-quotas"))[1]
    assert quota["dynamic"] is True
    assert (await cluster.ask("GET", TOPICS))[1] == ["persistent://t/n/a"], "its service reports its hottest keys"


async def test_topics_are_kept_listed_and_forgotten(cluster: Cluster, refused: Refused) -> None:
    await cluster.start(2)
    await cluster.create("t/n")
    assert (await cluster.ask("PUT", f"{TOPICS}/a", json={}))[0] == 204
    assert (await cluster.ask("PUT", f"{TOPICS}/p/partitions", json=2))[0] == 204
    assert (await cluster.ask("PUT", f"{V2}/non-persistent/t/n/b"))[0] == 204
    names = [f"persistent://t/n/{name}" for name in ("a", "p-partition-0", "p-partition-1")]
    await cluster.until(lambda: len(cluster.brokers[1].node.told_topics.all()) == 3)
    for at in (0, 1):
        assert (await cluster.ask("GET", TOPICS, at=at))[1] == names
    assert (await cluster.ask("GET", f"{V2}/non-persistent/t/n"))[1] == ["non-persistent://t/n/b"]
    for name, partitions in (("a", 0), ("p", 2), ("never-heard-of", 0)):
        assert (await cluster.ask("GET", f"{TOPICS}/{name}/partitions"))[1]["partitions"] == partitions
    await refused(409, "PUT", f"{TOPICS}/a", json={})
    await refused(404, "DELETE", f"{TOPICS}/never-heard-of")
    await refused(404, "PUT", f"{V2}/persistent/no/such/a", json={})
    await refused(400, "PUT", f"{TOPICS}/q/partitions", json=0)
    assert (await cluster.ask("DELETE", f"{TOPICS}/p/partitions"))[0] == 204
    assert (await cluster.ask("DELETE", f"{TOPICS}/a?force=false&deleteSchema=true"))[0] == 204
    assert (await cluster.ask("GET", TOPICS))[1] == []
    assert (await cluster.ask("PUT", f"{TOPICS}/a", json={}))[0] == 204, "it can come again"


async def test_not_more_topics_are_kept_than_can_be_listed(
    cluster: Cluster, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(told_topics, "TOLD_AT_MOST", 3)
    await cluster.start()
    await cluster.create("t/n")
    assert (await cluster.ask("PUT", f"{TOPICS}/p/partitions", json=2))[0] == 204
    problem = await refused(409, "PUT", f"{TOPICS}/q/partitions", json=2)
    assert "needs no creation" in problem["detail"]
    assert (await cluster.ask("PUT", f"{TOPICS}/q", json={}))[0] == 204


async def test_all_namespaces_together_have_a_bound(
    cluster: Cluster, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(told_topics, "TOLD_IN_ALL", 1)
    await cluster.start()
    await cluster.create("t/n")
    await cluster.create("t/nn")
    assert (await cluster.ask("PUT", f"{TOPICS}/q", json={}))[0] == 204
    problem = await refused(409, "PUT", f"{V2}/persistent/t/nn/q", json={})
    assert "of all namespaces" in problem["detail"]


async def test_a_topic_that_was_created_again_meanwhile_is_not_forgotten(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    told = cluster.brokers[0].node.told_topics
    assert (await cluster.ask("PUT", f"{TOPICS}/a", json={}))[0] == 204
    before = told.versions("t/n")
    assert (await cluster.ask("DELETE", f"{TOPICS}/a"))[0] == 204
    await told.forget_all(before, "ann")
    assert (await cluster.ask("PUT", f"{TOPICS}/a", json={}))[0] == 204
    await told.forget_all(before, "ann")
    assert list(told.of("t/n")) == ["persistent://t/n/a"]


async def test_topics_end_with_their_namespace(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    await cluster.create("t/n")
    await cluster.create("t/nn")
    for path in ("persistent/t/n/a", "non-persistent/t/n/b", "persistent/t/nn/c"):
        assert (await cluster.ask("PUT", f"{V2}/{path}", json={}))[0] == 204
    assert (await cluster.ask("DELETE", f"{V2}/namespaces/t/n"))[0] == 204
    assert list(cluster.brokers[0].node.told_topics.all()) == ["persistent://t/nn/c"]
    await refused(404, "DELETE", f"{TOPICS}/a")


async def test_what_a_deletion_left_can_be_deleted_and_does_not_come_back(cluster: Cluster) -> None:
    await cluster.start()
    told = cluster.brokers[0].node.told_topics
    for name in ("a", "b"):
        await told.tell(Key.parse(f"persistent://t/n/{name}"), 0, "ann")
    assert (await cluster.ask("DELETE", f"{TOPICS}/a"))[0] == 204
    assert list(told.all()) == ["persistent://t/n/b"]
    assert (await cluster.ask("PUT", f"{V2}/namespaces/t/n", json={"numBundles": 2}))[0] == 204
    assert (await cluster.ask("GET", TOPICS))[1] == []


async def test_namespaces_share_no_bound_of_topics(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told_topics, "TOLD_AT_MOST", 1)
    await cluster.start()
    for namespace in ("t/n", "t/m"):
        await cluster.create(namespace)
        assert (await cluster.ask("PUT", f"{V2}/persistent/{namespace}/a", json={}))[0] == 204


async def test_what_a_topic_contains_is_the_services(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    for method, more in (("GET", "stats"), ("GET", "subscriptions"), ("POST", "subscription/s/skip_all")):
        status, problem, _ = await cluster.ask(method, f"{TOPICS}/a/{more}")
        assert (status, "Ask the service" in problem["detail"]) == (501, True)


MATTERS = [
    ("GET", "retention"),
    ("POST", "retention"),
    ("DELETE", "messageTTL"),
    ("POST", "clearBacklog"),
    ("POST", "clearBacklog/sub"),
    ("POST", "0x00000000_0x40000000/clearBacklog"),
    ("GET", "permissions"),
    ("POST", "permissions/ann"),
    ("GET", "backlogQuotaMap"),
    ("PUT", "properties"),
]


async def test_what_a_namespace_says_of_messages_is_the_services(
    cluster: Cluster, subtests: pytest.Subtests, refused: Refused
) -> None:
    await cluster.start()
    await cluster.create("t/n")
    for method, matter in MATTERS:
        with subtests.test(method=method, matter=matter):
            detail = (await refused(501, method, f"/admin/v2/namespaces/t/n/{matter}", json={}))["detail"]
            assert detail.startswith(f"{matter} of namespace t/n")
            assert "Ask the service" in detail
    for method, path in (("POST", "t/n/bundles"), ("GET", "t/n/unload"), ("GET", "t/n/0x00000000_0x40000000/split")):
        with subtests.test(method=method, path=path):
            assert (await cluster.ask(method, f"/admin/v2/namespaces/{path}", json={}))[0] == 405
    assert (await cluster.ask("GET", "/admin/v2/namespaces/t/n/Nothing"))[0] == 404


async def test_positions_of_topics_are_those_of_the_ring(cluster: Cluster) -> None:
    await cluster.start()
    (low, high) = await cluster.create("t/n", 2)
    for name in "abcd":
        await cluster.ask("PUT", f"{TOPICS}/{name}", json={})
    found: dict[str, int] = {}
    for bundle in (low, high):
        answer = (await cluster.ask("GET", f"{V2}/namespaces/t/n/{bundle.range}/topicHashPositions"))[1]
        assert (answer["namespace"], answer["bundle"]) == ("t/n", bundle.range)
        assert all(position in bundle for position in answer["topicHashPositions"].values())
        found |= answer["topicHashPositions"]
    assert found == {f"persistent://t/n/{name}": Key.parse(f"t/n/{name}").position for name in "abcd"}
    named = f"{V2}/namespaces/t/n/0x00000000_0x80000000/topicHashPositions?topics=t/n/x&topics=t/n/y&topics=u/m/z"
    answer = (await cluster.ask("GET", named))[1]
    assert set(answer["topicHashPositions"]) <= {"persistent://t/n/x", "persistent://t/n/y"}


async def test_a_group_may_come_bare_or_as_json(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    await cluster.create("t/n")
    path = f"{V2}/namespaces/t/n/antiAffinity"
    json = {"Content-Type": "application/json"}
    for body, group in ((b"g1", "g1"), (b'"g2"', "g2")):
        assert (await cluster.ask("POST", path, data=body, headers=json))[0] == 204
        assert (await cluster.ask("GET", path))[1] == group
    for body in (b"", b'"', b"x" * 201):
        await refused(412, "POST", path, data=body, headers=json)
    first = "/admin/namespaces/standalone/antiAffinity/g2?property=t"
    assert (await cluster.ask("GET", first))[1] == ["t/n"]


async def test_a_tenant_can_be_updated_without_effect(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    await cluster.create("t/n")
    body = {"adminRoles": ["x"], "allowedClusters": ["standalone"]}
    assert (await cluster.ask("POST", f"{V2}/tenants/t", json=body))[0] == 204
    await refused(404, "POST", f"{V2}/tenants/u", json=body)
