"""`/admin/v2/namespaces`: what Pulsar's admin tool asks for."""

from __future__ import annotations

import asyncio

import pytest

from tests.api.conftest import Cluster, Refused

HALVES = ["0x00000000", "0x80000000", "0xffffffff"]


async def test_a_namespace_is_created_listed_shown_and_deleted(cluster: Cluster) -> None:
    await cluster.start()
    assert (await cluster.ask("PUT", "/admin/v2/namespaces/t/n"))[0] == 204
    assert (await cluster.ask("GET", "/admin/v2/namespaces/t"))[1] == ["t/n"]
    quarters = ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]
    status, policies, _ = await cluster.ask("GET", "/admin/v2/namespaces/t/n")
    assert status == 200
    assert policies["bundles"] == {"boundaries": quarters, "numBundles": 4}
    assert (await cluster.ask("GET", "/admin/v2/namespaces/t/n/bundles"))[1] == policies["bundles"]
    assert (await cluster.ask("DELETE", "/admin/v2/namespaces/t/n"))[0] == 204
    assert (await cluster.ask("GET", "/admin/v2/namespaces/t"))[1] == []


async def test_the_body_says_which_bundles(cluster: Cluster, subtests: pytest.Subtests) -> None:
    await cluster.start()
    bodies: list[object] = [
        {"bundles": {"boundaries": HALVES, "numBundles": 2}},
        {"bundles": {"boundaries": HALVES}},
        {
            "bundles": {"numBundles": 2, "boundaries": None},
            "replication_clusters": ["ignored"],
            "clusterThatCanDeleteNamespace": None,
        },
        {"numBundles": 2},
    ]
    for number, body in enumerate(bodies):
        with subtests.test(body=body):
            path = f"/admin/v2/namespaces/t/n{number}"
            assert (await cluster.ask("PUT", path, json=body))[0] == 204
            assert (await cluster.ask("GET", f"{path}/bundles"))[1] == {"boundaries": HALVES, "numBundles": 2}


IMPOSSIBLE: list[tuple[object, str]] = [
    ({"bundles": {"boundaries": ["0x00000000", "0x8", "0xffffffff"]}}, "0x40000000"),
    ({"bundles": {"boundaries": ["0x00000000", "0x80000000"]}}, "end with 0xffffffff"),
    ({"bundles": {"boundaries": ["0x00000000", "0x90000000", "0x80000000", "0xffffffff"]}}, "increasing"),
    ({"bundles": {"boundaries": HALVES, "numBundles": 7}}, "make 2 bundles, not 7"),
    ({"numBundles": 0}, "1 to 65536"),
    ({"numBundles": 10**9}, "1 to 65536"),
]


async def test_impossible_bundles_are_refused(cluster: Cluster, refused: Refused, subtests: pytest.Subtests) -> None:
    await cluster.start()
    for body, says in IMPOSSIBLE:
        with subtests.test(body=body, says=says):
            assert says in (await refused(412, "PUT", "/admin/v2/namespaces/t/n", json=body))["detail"]


async def test_a_body_that_is_no_json_is_refused(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    json = {"Content-Type": "application/json"}
    path = "/admin/v2/namespaces/t/n"
    assert "not JSON" in (await refused(400, "PUT", path, data=b"{numBundles", headers=json))["detail"]
    assert "application/json" in (await refused(415, "PUT", path, data=b"numBundles=4"))["detail"]
    assert "numBundles" in (await refused(400, "PUT", path, json={"numBundles": "many"}))["detail"]


async def test_a_name_that_means_nothing_is_refused_and_creates_nothing(
    cluster: Cluster, refused: Refused, subtests: pytest.Subtests
) -> None:
    await cluster.start()
    before = cluster.history()
    for body in [{"bundle": 4}, {"numBundles": 4, "bundle": {}}, {"bundle": 4, "persistence": {}}]:
        with subtests.test(body=body):
            assert "unknown: bundle;" in (await refused(400, "PUT", "/admin/v2/namespaces/t/n", json=body))["detail"]
            assert cluster.history() == before


async def test_a_namespace_that_exists_is_a_conflict(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    await cluster.create("t/n")
    assert "exists" in (await refused(409, "PUT", "/admin/v2/namespaces/t/n"))["detail"]


async def test_an_unknown_namespace_is_not_found(cluster: Cluster, refused: Refused, subtests: pytest.Subtests) -> None:
    await cluster.start()
    for method in ["GET", "DELETE"]:
        with subtests.test(method=method):
            assert "t/none" in (await refused(404, method, "/admin/v2/namespaces/t/none"))["detail"]


async def test_a_name_that_is_none_is_refused(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    assert "tenant/namespace" in (await refused(412, "PUT", "/admin/v2/namespaces/t/n%20n"))["detail"]


async def test_a_bundle_is_transferred_to_the_destination(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    to = cluster.other(cluster.owner(bundle))
    path = f"/admin/v2/namespaces/{bundle.namespace}/{bundle.range}/unload"
    for at in (0, 1):  # whoever is asked does it, there is no redirect to the owner
        assert (await cluster.ask("PUT", path, at=at, params={"destinationBroker": to.name}))[0] == 204
        await cluster.until(lambda: all(cluster.owner(bundle, b) == to.name for b in cluster.brokers))  # noqa: B023
        assert bundle in to.host.held
        to = cluster.other(to.name)


async def test_an_unowned_bundle_is_given_to_the_destination(cluster: Cluster) -> None:
    await cluster.start(2)
    bundle = (await cluster.create("t/n"))[0]
    to = cluster.brokers[1]
    path = f"/admin/v2/namespaces/t/n/{bundle.range}/unload"
    assert (await cluster.ask("PUT", path, params={"destinationBroker": to.name}))[0] == 204
    assert cluster.owner(bundle) == to.name


async def test_unloaded_bundle_has_no_owner_and_unloading_again_changes_nothing(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    path = f"/admin/v2/namespaces/t/n/{bundle.range}/unload"
    assert (await cluster.ask("PUT", path))[0] == 204
    assert cluster.owner(bundle) is None
    before = cluster.history()
    assert (await cluster.ask("PUT", path))[0] == 204
    assert cluster.history() == before


async def test_a_whole_namespace_is_unloaded(cluster: Cluster) -> None:
    await cluster.start(2)
    bundles = await cluster.create("t/n", 8)
    for i in range(40):
        await cluster.assign(f"t/n/topic-{i}")
    assert (await cluster.ask("PUT", "/admin/v2/namespaces/t/n/unload"))[0] == 204
    assert [cluster.owner(bundle) for bundle in bundles] == [None] * 8


async def test_a_topic_is_moved_with_its_bundle(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/some/topic")
    to = cluster.other(cluster.owner(bundle))
    path = "/admin/v2/persistent/t/n/some%2Ftopic/unload"
    assert (await cluster.ask("PUT", path, params={"destinationBroker": to.name}))[0] == 204
    assert cluster.owner(bundle) == to.name
    assert (await cluster.ask("PUT", path))[0] == 204
    assert cluster.owner(bundle) is None


async def test_moves_that_cannot_be_done_change_nothing(cluster: Cluster, refused: Refused) -> None:
    await cluster.start(2)
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    owner = cluster.owner(bundle)
    move = f"/admin/v2/namespaces/t/n/{bundle.range}/unload"
    to = {"destinationBroker": cluster.other(owner).name}

    problem = await refused(409, "PUT", move, params={"destinationBroker": owner})
    assert "owns" in problem["detail"]
    problem = await refused(409, "PUT", move, params={"destinationBroker": "127.0.0.1:1"})
    assert owner in problem["detail"], "the brokers that there are"
    problem = await refused(404, "PUT", "/admin/v2/namespaces/t/none/0x00000000_0x40000000/unload", params=to)
    assert "t/none" in problem["detail"]
    problem = await refused(404, "PUT", "/admin/v2/namespaces/t/n/0x00000000_0x10000000/unload", params=to)
    assert bundle.range in problem["detail"], "the bundles that there are"
    for malformed in ("0x0_0x4", "0x40000000", "0x40000000_0x10000000", "LARGEST"):
        problem = await refused(412, "PUT", f"/admin/v2/namespaces/t/n/{malformed}/unload", params=to)
        assert malformed in problem["detail"]
    await refused(404, "PUT", "/admin/v2/persistent/t/none/a/unload", params=to)
    await refused(400, "PUT", "/admin/v2/transient/t/n/a/unload", params=to)
    problem = await refused(412, "PUT", "/admin/v2/namespaces/t/n/unload", params=to)
    assert "one bundle" in problem["detail"]


async def test_nothing_is_moved_to_a_draining_broker(cluster: Cluster, refused: Refused) -> None:
    await cluster.start(2)
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    to = cluster.other(cluster.owner(bundle))
    assert (await cluster.ask("PUT", f"/v1/brokers/{to.name}/drain", allow_redirects=True))[0] == 202
    await cluster.until(lambda: cluster.brokers[0].node.membership.peers[to.name].registration.draining)
    move = f"/admin/v2/namespaces/t/n/{bundle.range}/unload"
    problem = await refused(409, "PUT", move, params={"destinationBroker": to.name})
    assert "draining" in problem["detail"]


async def test_nothing_is_moved_to_a_broker_that_does_not_answer(cluster: Cluster, refused: Refused) -> None:
    await cluster.start(2)
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    to = cluster.other(cluster.owner(bundle)).node.current.me
    at = cluster.brokers.index(cluster.of(cluster.owner(bundle)))
    suspected = cluster.brokers[at].node.membership.suspected
    suspected[to] = f"{to} refuses connections"
    move = f"/admin/v2/namespaces/t/n/{bundle.range}/unload"
    problem = await refused(409, "PUT", move, at=at, params={"destinationBroker": to.name})
    assert "refuses connections" in problem["detail"]


async def test_late_move_is_unavailable_and_may_still_happen(cluster: Cluster) -> None:
    await cluster.start(2, in_flight_timeout_s=0.3, host_acquire_timeout_s=10)
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    to = cluster.other(cluster.owner(bundle))
    to.host.gate.clear()
    move = f"/admin/v2/namespaces/t/n/{bundle.range}/unload"
    status, body, headers = await cluster.ask("PUT", move, params={"destinationBroker": to.name})
    assert status in (409, 503), body  # cancelled by the leader's deadline, or ours
    assert status == 409 or int(headers["Retry-After"]) >= 1


async def test_concurrent_creations_of_one_namespace_succeed_once(cluster: Cluster) -> None:
    await cluster.start(2)
    answers = await asyncio.gather(*(cluster.ask("PUT", "/admin/v2/namespaces/t/n", at=i % 2) for i in range(10)))
    assert sorted(status for status, _, _ in answers) == [204] + [409] * 9
