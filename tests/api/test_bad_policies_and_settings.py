"""Bad input to the endpoints of policies and settings: refused in words, and nothing is changed by it."""

from __future__ import annotations

import io
import json

import pytest

from loadmanager.model.policies.model import NO_POLICIES
from tests.api.conftest import Cluster

JSON = {"Content-Type": "application/json"}
BUNDLE = "/v1/policies/bundle/shop/x/0x00000000_0x80000000"
PAY = "/v1/policies/isolation/pay?force=true"
ISOLATION = "/admin/v2/clusters/standalone/namespaceIsolationPolicies/pay?force=true"
WIDE = json.dumps(
    {"namespaces": ["n" * 997] * 1000, "primary": ["p" * 997] * 48 + ["q" * 500]}, separators=(",", ":")
).encode()
"""Just what a body may have, and more than an entry of the log."""
FRACTION = (
    b'{"namespaces": ["x"], "primary": [".*"], "auto_failover_policy": {"policy_type": "min_available", '
    b'"parameters": {"min_limit": 1.9}}}'
)

BAD: list[tuple[int, str, str, bytes]] = [
    (412, "PUT", "/v1/config/balancing_moves_per_round", b'{"value": 1000000000000000000000000000000}'),
    (412, "PUT", "/v1/config/namespace_max_bundles", b'{"value": 1000000000000000000000000000000}'),
    (412, "PUT", "/v1/config/balancing_strategy", b'{"value": "\\ud800"}'),
    (412, "PUT", "/v1/config/loadBalancerSheddingIntervalMinutes", b'{"value": true}'),
    (412, "PUT", "/v1/config/balancing_interval_s", b'{"value": 1e-9}'),
    (412, "PUT", "/v1/config/audit_retention_s", b'{"value": 1e300}'),
    (412, "PATCH", BUNDLE, b'{"pin": "\\ud800"}'),
    (412, "PATCH", BUNDLE, b'{"typo": null}'),
    (412, "PATCH", BUNDLE, b'{"weight": 1e300}'),
    (412, "PUT", BUNDLE, b'{"settings": {"split_algorithm": "specified_positions_divide"}}'),
    (412, "PUT", BUNDLE, b'{"settings": {"split_max_keys": 100000000000000000000000000}}'),
    (412, "PUT", "/v1/policies/broker/127.0.0.1:7001", b'{"capacity": {"cpu": 1e-300}}'),
    (412, "PUT", "/v1/policies/broker/127.0.0.1:99999", b"{}"),
    (412, "PUT", PAY, b'{"namespaces": ["(?!a)b"], "primary": ["z"]}'),
    (412, "POST", ISOLATION, b'{"namespaces": ["(?!a)b"], "primary": ["z"]}'),
    (412, "POST", ISOLATION, FRACTION),
    (413, "PUT", PAY, WIDE),
]


@pytest.mark.slow
async def test_what_is_bad_is_refused_in_words_and_changes_nothing(cluster: Cluster) -> None:
    assert (1 << 20) - 100 < len(WIDE) <= 1 << 20
    await cluster.start()
    await cluster.create("shop/x", 2)
    node = cluster.brokers[0].node
    before = node.settings
    for status, method, path, body in BAD:
        found, answer, _ = await cluster.ask(method, path, data=io.BytesIO(body), headers=JSON)
        assert found == status, (path, body[:80], answer)
        assert len(answer["detail"]) > 20
    assert node.policies.current() == NO_POLICIES
    assert node.settings == before


@pytest.mark.parametrize("force", ["", "?force=true"])
async def test_the_last_that_some_namespace_may_be_on_is_deleted_only_by_force(cluster: Cluster, force: str) -> None:
    await cluster.start(2)
    await cluster.create("shop/x", 1)
    a = cluster.brokers[0].name
    shop = {"namespaces": ["shop/.*"], "primary": [a]}
    assert (await cluster.ask("PUT", "/v1/policies/isolation/shop", json=shop))[0] == 200
    everybody = {"namespaces": ["pay/.*"], "primary": [".*"]}
    assert (await cluster.ask("PUT", "/v1/policies/isolation/all", json=everybody))[0] == 200
    status, answer, _ = await cluster.ask("DELETE", "/v1/policies/isolation/shop" + force)
    if force:
        assert (status, len(answer["forced"])) == (200, 1)
    else:
        assert (status, "without isolation policy 'shop' no broker may own shop/x" in answer["detail"]) == (409, True)
