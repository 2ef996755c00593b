"""Isolation policies, failure domains and anti-affinity groups as Pulsar's tools send them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import Cluster, Refused

AT = "/admin/v2/clusters/standalone"
ISOLATION = f"{AT}/namespaceIsolationPolicies"


def pulsars(primary: str, **more: Any) -> dict[str, Any]:
    """As pulsar-admin 4 sends it."""
    return {
        "namespaces": ["pay/.*"],
        "primary": [primary],
        "secondary": [],
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": "1", "usage_threshold": "80"},
        },
        "unload_scope": "changed",
        **more,
    }


async def test_an_isolation_policy_is_set_shown_and_deleted(cluster: Cluster, refused: Refused) -> None:
    await cluster.start(2)
    a, b = (broker.name for broker in cluster.brokers)
    assert (await cluster.ask("POST", f"{ISOLATION}/pay", json=pulsars(a, secondary=[b])))[0] == 204
    status, shown, _ = await cluster.ask("GET", f"{ISOLATION}/pay")
    assert status == 200
    assert shown == pulsars(a, secondary=[b], unload_scope=None)
    assert (await cluster.ask("GET", ISOLATION))[1] == {"pay": shown}
    of_brokers = (await cluster.ask("GET", f"{ISOLATION}/brokers"))[1]
    assert of_brokers == [
        {"brokerName": a, "policyName": "pay", "primary": True, "namespaceRegex": ["pay/.*"]},
        {"brokerName": b, "policyName": "pay", "primary": False, "namespaceRegex": ["pay/.*"]},
    ]
    assert (await cluster.ask("GET", f"{ISOLATION}/brokers/{a}"))[1] == of_brokers[0]
    assert (await cluster.ask("DELETE", f"{ISOLATION}/pay"))[0] == 204
    await refused(404, "GET", f"{ISOLATION}/pay")
    await refused(404, "DELETE", f"{ISOLATION}/pay")


BAD: list[tuple[int, dict[str, Any], str]] = [
    (412, {"namespaces": ["pay/(.*"]}, "namespaces: 'pay/(.*' is not a regular expression"),
    (412, {"namespaces": []}, "namespaces is empty"),
    (412, {"primary": []}, "primary is empty"),
    (409, {"primary": ["nobody:1"]}, "no registered broker matches"),
    (400, {"unload_scope": "everything"}, "unload_scope"),
    (400, {"colour": "red"}, "there is no such field"),
    (400, {"auto_failover_policy": {"policy_type": "luck", "parameters": {}}}, "policy_type"),
    (412, {"auto_failover_policy": {"parameters": {"min_limit": "none"}}}, "min_limit: 'none' is not a number"),
    (412, {"auto_failover_policy": {"parameters": {"min_limit": "0"}}}, "min_available is 0"),
    (412, {"auto_failover_policy": {"parameters": {"usage_threshold": "120"}}}, "usage_threshold_percent is 120"),
]


async def test_a_bad_isolation_policy_is_refused(cluster: Cluster, refused: Refused, subtests: pytest.Subtests) -> None:
    await cluster.start()
    for status, changed, words in BAD:
        with subtests.test(changed=changed):
            body = await refused(
                status, "POST", f"{ISOLATION}/pay", json={**pulsars(cluster.brokers[0].name), **changed}
            )
            assert words in body["detail"]


async def test_another_cluster_is_not_known_here(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    for path in ("namespaceIsolationPolicies", "failureDomains", "namespaceIsolationPolicies/brokers"):
        await refused(404, "GET", f"/admin/v2/clusters/elsewhere/{path}")


async def test_failure_domains_are_disjoint(cluster: Cluster, refused: Refused) -> None:
    await cluster.start(2)
    a, b = (broker.name for broker in cluster.brokers)
    assert (await cluster.ask("POST", f"{AT}/failureDomains/rack-1", json={"brokers": [a]}))[0] == 204
    taken = await refused(409, "POST", f"{AT}/failureDomains/rack-2", json={"brokers": [a, b]})
    assert f"failure domain 'rack-1' has {a} already" in taken["detail"]
    assert (await cluster.ask("POST", f"{AT}/failureDomains/rack-2", json={"brokers": [b]}))[0] == 204
    assert (await cluster.ask("GET", f"{AT}/failureDomains"))[1] == {
        "rack-1": {"brokers": [a]},
        "rack-2": {"brokers": [b]},
    }
    assert (await cluster.ask("GET", f"{AT}/failureDomains/rack-2"))[1] == {"brokers": [b]}
    assert (await cluster.ask("DELETE", f"{AT}/failureDomains/rack-2"))[0] == 204
    await refused(404, "GET", f"{AT}/failureDomains/rack-2")


async def test_namespaces_of_a_group_are_kept_apart(cluster: Cluster, refused: Refused) -> None:
    await cluster.start(3, balancing=False)
    for name in ("db/one", "db/two", "db/three"):
        await cluster.create(name, 1)
        assert (await cluster.ask("POST", f"/admin/v2/namespaces/{name}/antiAffinity", json="db"))[0] == 204
    assert (await cluster.ask("GET", "/admin/v2/namespaces/db/one/antiAffinity"))[1] == "db"
    in_group = (await cluster.ask("GET", "/admin/v2/namespaces/standalone/antiAffinity/db?tenant=x"))[1]
    assert in_group == ["db/one", "db/three", "db/two"]
    owners = {cluster.owner(await cluster.assign(f"persistent://{name}/t")) for name in in_group}
    assert len(owners) == 3
    one = "db/one/0x00000000_0xffffffff"
    other = cluster.owner(await cluster.assign("persistent://db/two/t"))
    crowded = await refused(409, "PUT", f"/admin/v2/namespaces/{one}/unload?destinationBroker={other}")
    assert "anti-affinity group 'db'" in crowded["detail"]
    for _ in range(2):
        assert (await cluster.ask("DELETE", "/admin/v2/namespaces/db/one/antiAffinity"))[0] == 204
    assert (await cluster.ask("GET", "/admin/v2/namespaces/db/one/antiAffinity"))[1] == ""
    await refused(404, "POST", "/admin/v2/namespaces/no/such/antiAffinity", json="db")
    await refused(412, "POST", "/admin/v2/namespaces/db/one/antiAffinity", json="a b")
