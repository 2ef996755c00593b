"""`/v1/policies`: documents with versions, a dry run before a change, and only the difference moving."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.api.conftest import Broker, Cluster, Refused

ONLY_RULES: dict[str, Any] = {"weight_cpu": 0.0, "capacity": {"rate_msg_s": 1e9}}
"""Nobody has any load to speak of, so nothing moves but what a rule moves."""

PAY = "/v1/policies/isolation/pay"


def isolation(*primary: str, **more: Any) -> dict[str, Any]:
    return {"namespaces": ["pay/.*"], "primary": list(primary), **more}


async def test_a_document_has_versions_and_a_history(cluster: Cluster) -> None:
    await cluster.start(2)
    a, b = (broker.name for broker in cluster.brokers)
    status, written, headers = await cluster.ask("PUT", PAY, json=isolation(a), headers={"X-Author": "ann"})
    assert (status, written["version"], headers["ETag"]) == (200, 1, '"1"')
    assert written["notes"] == ["no namespace matches pay/.* at present"]
    status, written, _ = await cluster.ask(
        "PUT", PAY + "?reason=moved+house", json=isolation(b), headers={"If-Match": '"1"', "X-Author": "ben"}
    )
    assert (status, written["version"]) == (200, 2)

    def known(broker: Broker) -> bool:
        pay = broker.node.policies.current().isolation.get("pay")
        return pay is not None and pay.primary == (b,)

    await cluster.until(lambda: all(map(known, cluster.brokers)))
    status, shown, headers = await cluster.ask("GET", PAY, at=1)
    assert (status, shown["version"], shown["author"], shown["reason"]) == (200, 2, "ben", "moved house")
    assert shown["policy"] == {"namespaces": ["pay/.*"], "primary": [b]}
    assert (await cluster.ask("DELETE", PAY + "?seen=2"))[0] == 200
    history = (await cluster.ask("GET", PAY + "/history"))[1]
    assert [(each["version"], each["author"], each["policy"] is None) for each in history] == [
        (1, "ann", False),
        (2, "ben", False),
        (3, "somebody at 127.0.0.1", True),
    ]
    assert (await cluster.ask("GET", "/v1/policies"))[1]["policies"] == []


async def test_policies_are_listed_beside_the_control_loop(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await cluster.start()
    documents, threads = cluster.brokers[0].node.policies.documents, set[int]()
    newest = documents.newest

    def counted() -> Any:
        threads.add(threading.get_ident())
        return newest()

    monkeypatch.setattr(documents, "newest", counted)
    assert (await cluster.ask("GET", "/v1/policies"))[0] == 200
    assert threads
    assert threading.get_ident() not in threads, "the node runs on the test's own loop"


async def test_a_history_can_only_be_read(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    await cluster.create("t/history", 1)
    for method in ("PUT", "PATCH", "DELETE"):
        for path in (f"{PAY}/history", "/v1/policies/namespace/t/history/history"):
            refusal = await refused(405, method, path, json=isolation(".*"))
            assert "use GET, HEAD, OPTIONS" in refusal["detail"]
    named = "/v1/policies/namespace/t/history"
    assert (await cluster.ask("PUT", named, json={"weight": 2.0}))[0] == 200
    assert (await cluster.ask("GET", named))[1]["policy"] == {"weight": 2.0}
    assert [each["version"] for each in (await cluster.ask("GET", f"{named}/history"))[1]] == [1]
    alike = "/v1/policies/failure-domain/history"
    assert (await cluster.ask("PUT", alike, json={"brokers": [cluster.brokers[0].name]}))[0] == 200
    assert (await cluster.ask("GET", alike))[1]["name"] == "history"


async def test_nobody_overwrites_what_he_has_not_seen(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    a = cluster.brokers[0].name
    wanted = isolation("nobody:1", a)
    assert (await cluster.ask("PUT", PAY + "?seen=0", json=wanted))[0] == 200
    lost = await refused(409, "PUT", PAY + "?seen=0", json=wanted)
    assert "version 1" in lost["detail"]
    await refused(412, "DELETE", PAY, headers={"If-Match": '"7"'})
    await refused(412, "DELETE", PAY, headers={"If-Match": "yesterday"})
    await refused(412, "DELETE", PAY + "?seen=1", headers={"If-Match": '"2"'})
    await refused(404, "GET", "/v1/policies/isolation/other")
    await refused(404, "DELETE", "/v1/policies/isolation/other")
    await refused(404, "GET", "/v1/policies/isolation/other/history")


async def test_bad_policies_are_refused_by_the_name_of_the_rule(cluster: Cluster, refused: Refused) -> None:
    await cluster.start(2)
    a = cluster.brokers[0].name
    await cluster.create("shop/x", 1)
    bad = await refused(412, "PUT", PAY, json=isolation("a(b"))
    assert "primary: 'a(b' is not a regular expression" in bad["detail"]
    nobody = await refused(409, "PUT", PAY, json=isolation("nobody:1"))
    assert "isolation policy 'pay': no registered broker matches" in nobody["detail"]
    homeless = await refused(409, "PUT", PAY, json=isolation(".*"))
    assert "leaves no shared broker, so that no broker may own shop/x" in homeless["detail"]
    both = {"pin": a, "exclude": [a]}
    pinned = await refused(412, "PUT", "/v1/policies/bundle/shop/x/0x00000000_0xffffffff", json=both)
    assert f"pin and exclude both name {a}" in pinned["detail"]
    await refused(404, "PUT", "/v1/policies/bundle/shop/x/0x00000000_0x40000000", json={"pin": a})
    await refused(404, "PUT", "/v1/policies/namespace/no/such", json={"paused": True})
    await refused(412, "PUT", "/v1/policies/namespace/shop/x", json={"pausd": True})
    json_type = {"Content-Type": "application/json"}
    await refused(412, "PUT", "/v1/policies/namespace/shop/x", data=b"{", headers=json_type)
    await refused(400, "PUT", "/v1/policies/colour/shop/x", json={})
    forced = await cluster.ask("PUT", PAY + "?force=true", json=isolation("nobody:1"), headers={"X-Author": "ann"})
    assert forced[0] == 200
    assert "no registered broker matches" in forced[1]["forced"][0]
    shown = (await cluster.ask("GET", PAY))[1]
    assert shown["reason"].startswith("forced by ann: isolation policy 'pay'")


async def test_a_dry_run_lists_what_would_move_and_changes_nothing(cluster: Cluster) -> None:
    await cluster.start(2, balancing_interval_s=3600)
    a, b = cluster.brokers
    bundles = await cluster.create("pay/x", 4)
    other = await cluster.create("shop/x", 4)
    for at, bundle in enumerate((*bundles, *other)):
        await a.node.current.operations.transfer(bundle, (a, b)[at % 2].name)
    await cluster.until(lambda: {a.name, b.name} <= a.node.views.brokers.keys())  # or nobody knows where there is room
    status, found, _ = await cluster.ask("PUT", PAY + "?dry_run=true", json=isolation(a.name))
    assert (status, found["dry_run"], found["version"]) == (200, True, 1)
    wrong = {(str(bundles[1]), b.name), (str(bundles[3]), b.name), (str(other[0]), a.name), (str(other[2]), a.name)}
    preview = found["preview"]
    assert {(each["bundle"], each["broker"]) for each in preview["misplaced"]} == wrong
    assert preview["misplaced_total"] == 4
    assert {(move["bundle"], move["source"]) for move in preview["moves"]} == wrong
    assert {move["stage"] for move in preview["moves"]} == {"policy"}
    assert (await cluster.ask("GET", "/v1/policies"))[1]["policies"] == []


async def test_a_changed_policy_moves_only_what_is_misplaced(cluster: Cluster) -> None:
    await cluster.start(3, balancing_interval_s=0.3, load_top_bundles=1, **ONLY_RULES)
    a, b, _ = cluster.brokers
    bundles = await cluster.create("pay/x", 6)
    other = await cluster.create("shop/x", 6)
    for at, bundle in enumerate((*bundles, *other)):
        await a.node.current.operations.transfer(bundle, (b if at < 6 else cluster.brokers[1 + at % 2]).name)
    stayed = bundles[0]
    await a.node.current.operations.transfer(stayed, a.name)
    before = {bundle: a.node.channel.table.get(bundle).revision for bundle in (*other, stayed)}  # type: ignore[union-attr]
    assert (await cluster.ask("PUT", PAY, json=isolation(a.name)))[0] == 200
    await cluster.until(lambda: all(cluster.owner(bundle) == a.name for bundle in bundles))
    after = {bundle: a.node.channel.table.get(bundle).revision for bundle in (*other, stayed)}  # type: ignore[union-attr]
    assert after == before


async def test_an_unassigned_bundle_goes_only_where_policies_allow_it(cluster: Cluster, refused: Refused) -> None:
    await cluster.start(2, lookup_timeout_s=0.5)
    b = cluster.brokers[1].name
    await cluster.create("pay/x", 4)
    await cluster.ask("PUT", PAY, json=isolation(b))
    await cluster.until(lambda: all(x.node.policies.current().isolation for x in cluster.brokers))
    for at in range(8):
        assert cluster.owner(await cluster.assign(f"persistent://pay/x/{at}")) == b
    await cluster.create("shop/x", 1)
    await cluster.ask("PUT", "/v1/policies/isolation/all?force=true", json={"namespaces": ["no/.*"], "primary": [".*"]})
    await cluster.until(lambda: "all" in cluster.brokers[0].node.policies.current().isolation)
    nowhere = await refused(503, "GET", "/lookup/v2/topic/persistent/shop/x/t")
    assert "reserved by isolation policy 'all' refuses" in nowhere["detail"]


async def test_a_quarantined_bundle_is_assigned_to_nobody_and_the_lookup_says_why(
    cluster: Cluster, refused: Refused
) -> None:
    await cluster.start()
    (bundle,) = await cluster.create("shop/x", 1)
    at = f"/v1/policies/bundle/{bundle}"
    await cluster.ask("PUT", at, json={"quarantined": "3 brokers died while taking it"})
    barred = await refused(503, "GET", "/lookup/v2/topic/persistent/shop/x/t")
    assert "quarantined, so no broker gets it: 3 brokers died while taking it" in barred["detail"]
    assert barred["retry_after_s"] == 30
    assert (await cluster.ask("DELETE", at))[0] == 200
    assert (await cluster.ask("GET", "/lookup/v2/topic/persistent/shop/x/t"))[0] == 200


async def test_a_transfer_against_the_rules_is_refused_by_the_rule_unless_forced(
    cluster: Cluster, refused: Refused
) -> None:
    await cluster.start(2, balancing=False)
    a, b = (broker.name for broker in cluster.brokers)
    (bundle,) = await cluster.create("pay/x", 1)
    await cluster.ask("PUT", PAY, json=isolation(a))
    await cluster.assign("persistent://pay/x/t")
    path = f"/admin/v2/namespaces/{bundle}/unload?destinationBroker={b}"
    body = await refused(409, "PUT", path)
    assert f"{bundle} may not go to {b}: isolation policy 'pay'" in body["detail"]
    status, *_ = await cluster.ask("PUT", path + "&force=true", headers={"X-Author": "ann"})
    assert status == 204
    assert cluster.owner(bundle) == b
    history = (await cluster.ask("GET", f"/v1/bundles/{bundle}/history"))[1]
    assert "forced by ann: isolation policy 'pay'" in [entry["reason"] for entry in history["entries"]]


async def test_cold_namespaces_that_join_one_group_are_moved_apart(cluster: Cluster) -> None:
    await cluster.start(3, balancing_interval_s=0.3, load_top_bundles=1, **ONLY_RULES)
    names = ("db/one", "db/two", "db/three")
    bundles = [bundle for name in names for bundle in await cluster.create(name, 2)]
    a = cluster.brokers[0]
    for bundle in bundles:
        await a.node.current.operations.transfer(bundle, a.name)
    for name in names:
        assert (await cluster.ask("PATCH", f"/v1/policies/namespace/{name}", json={"anti_affinity_group": "db"}))[
            0
        ] == 200

    def apart() -> bool:
        homes = [{cluster.owner(bundle) for bundle in bundles if bundle.namespace == name} for name in names]
        return all(len(home) == 1 for home in homes) and len(set.union(*homes)) == 3  # type: ignore[arg-type]

    await cluster.until(apart)
