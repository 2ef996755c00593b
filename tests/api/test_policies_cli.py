"""The commands about policies, against a running cluster in this process."""

from __future__ import annotations

import pytest

from loadmanager.model.policies.model import BundlePolicy
from statechannel.law.bundle import Bundle
from tests.api.conftest import Cluster
from tests.api.test_cli import as_json, loadmanager


def policies_of(cluster: Cluster):
    return cluster.brokers[0].node.policies.current()


@pytest.mark.slow
async def test_isolation_as_pulsar_admin_sets_it(cluster: Cluster) -> None:
    await cluster.start(2)
    a, b = (broker.name for broker in cluster.brokers)
    command = ("ns-isolation-policy", "set", "standalone", "pay", "--namespaces", "pay/.*,money/.*")
    params = ("--auto-failover-policy-type", "min_available", "--auto-failover-policy-params", "min_limit=2")
    made = await loadmanager(cluster, *command, "--primary", a, "--secondary", b, *params, "--unload-scope", "changed")
    assert made.stdout == "isolation policy pay is set\n"
    policy = policies_of(cluster).isolation["pay"]
    assert (policy.namespaces, policy.primary, policy.secondary) == (("pay/.*", "money/.*"), (a,), (b,))
    assert (policy.min_available, policy.usage_threshold_percent) == (2, 100)
    shown = await loadmanager(cluster, "ns-isolation-policy", "get", "standalone", "pay")
    assert "pay/.*, money/.*" in shown.stdout
    assert list(await as_json(cluster, "ns-isolation-policy", "list", "standalone")) == ["pay"]
    assert (await as_json(cluster, "ns-isolation-policy", "brokers", "standalone"))[0]["policyName"] == "pay"
    one = await loadmanager(cluster, "ns-isolation-policy", "broker", "standalone", "--broker", b)
    assert b in one.stdout
    refused = await loadmanager(cluster, *command, "--primary", "nobody:1")
    assert refused.exit_code == 1
    assert "no registered broker matches" in refused.output
    assert (await loadmanager(cluster, *command, "--primary", "nobody:1", "--force")).exit_code == 0
    wrong = await loadmanager(cluster, *command, "--primary", a, "--auto-failover-policy-params", "most=1")
    assert wrong.exit_code == 2
    assert (await loadmanager(cluster, "ns-isolation-policy", "delete", "standalone", "pay")).exit_code == 0
    assert not policies_of(cluster).isolation


async def test_failure_domains_and_groups_as_pulsar_admin_sets_them(cluster: Cluster) -> None:
    await cluster.start()
    (a,) = (broker.name for broker in cluster.brokers)
    await cluster.create("db/one", 1)
    domain = ("standalone", "--domain-name", "rack-1")
    assert (await loadmanager(cluster, "clusters", "create-failure-domain", *domain, "--broker-list", a)).exit_code == 0
    both = f"{a},other:1"
    assert (
        await loadmanager(cluster, "clusters", "update-failure-domain", *domain, "--broker-list", both)
    ).exit_code == 0
    assert (await as_json(cluster, "clusters", "get-failure-domain", *domain)) == {"brokers": [a, "other:1"]}
    assert "rack-1" in (await loadmanager(cluster, "clusters", "list-failure-domains", "standalone")).stdout
    assert (await loadmanager(cluster, "clusters", "delete-failure-domain", *domain)).exit_code == 0
    assert (await loadmanager(cluster, "namespaces", "set-anti-affinity-group", "db/one", "-g", "db")).exit_code == 0
    assert (await loadmanager(cluster, "namespaces", "get-anti-affinity-group", "db/one")).stdout == "db\n"
    group = ("-p", "db", "-c", "standalone", "-g", "db")
    assert await as_json(cluster, "namespaces", "get-anti-affinity-namespaces", *group) == ["db/one"]
    assert (await loadmanager(cluster, "namespaces", "delete-anti-affinity-group", "db/one")).exit_code == 0
    assert not policies_of(cluster).namespaces, "a policy that says nothing any more is deleted"


@pytest.mark.slow
async def test_single_bundles_are_pinned_excluded_and_quarantined(cluster: Cluster) -> None:
    await cluster.start(2)
    a, b = (broker.name for broker in cluster.brokers)
    (bundle,) = await cluster.create("shop/x", 1)

    def policy() -> BundlePolicy | None:
        return policies_of(cluster).bundles.get(bundle)

    def some_policy() -> BundlePolicy:
        found = policy()
        assert found is not None
        return found

    assert (await loadmanager(cluster, "bundles", "pin", str(bundle), b)).stdout == f"{bundle} is pinned to {b}\n"
    assert (await loadmanager(cluster, "bundles", "exclude", str(bundle), a)).exit_code == 0
    assert (some_policy().pin, some_policy().exclude) == (b, (a,)), "neither takes the other away"
    refused = await loadmanager(cluster, "bundles", "exclude", str(bundle), a, b)
    assert f"pin and exclude both name {b}" in refused.output
    assert cluster.owner(await cluster.assign("persistent://shop/x/t")) == b
    assert (await loadmanager(cluster, "bundles", "unpin", str(bundle))).exit_code == 0
    assert (await loadmanager(cluster, "bundles", "exclude", str(bundle))).exit_code == 0
    assert policy() is None
    again = await loadmanager(cluster, "bundles", "unpin", str(bundle))
    assert "it was so already" in again.output
    held = await loadmanager(cluster, "bundles", "quarantine", str(bundle), "--reason", "it kills brokers")
    assert held.exit_code == 0
    assert some_policy().quarantined == "it kills brokers"
    assert (await loadmanager(cluster, "bundles", "release-quarantine", str(bundle))).exit_code == 0
    assert policy() is None


async def test_a_kept_drain_empties_a_broker_and_outlives_it(cluster: Cluster) -> None:
    await cluster.start(2, balancing_interval_s=0.2)
    a, b = cluster.brokers
    bundles = await cluster.create("shop/x", 8)
    for bundle in bundles:
        await a.node.current.operations.transfer(bundle, b.name)
    kept = await loadmanager(cluster, "brokers", "drain", b.name, "--keep")
    assert kept.exit_code == 0, kept.output
    await cluster.until(lambda: all(cluster.owner(bundle) == a.name for bundle in bundles))
    shown = {each["broker"]: each["draining"] for each in await as_json(cluster, "brokers", "list")}
    assert shown == {a.name: False, b.name: True}
    refused = await loadmanager(cluster, "brokers", "drain", a.name, "--keep")
    assert f"drain of {a.name}: no other broker takes bundles" in refused.output
    assert (await loadmanager(cluster, "brokers", "drain", b.name, "--keep", "--cancel")).exit_code == 0
    assert not policies_of(cluster).brokers


async def test_every_policy_is_shown_set_and_deleted_with_its_history(cluster: Cluster) -> None:
    await cluster.start(2)
    a, b = (broker.name for broker in cluster.brokers)
    bundles = await cluster.create("shop/x", 2)
    await cluster.brokers[0].node.current.operations.transfer(bundles[0], a)
    at = ("bundle", str(bundles[0]))
    dry = await loadmanager(cluster, "policies", "set", *at, f'{{"pin": "{b}"}}', "--dry-run")
    assert "nothing was changed; 1 bundles would have to move" in dry.stdout
    assert str(bundles[0]) in dry.stdout
    assert not policies_of(cluster).bundles
    made = await loadmanager(cluster, "policies", "set", *at, f'{{"pin": "{b}"}}', "--seen", "0", "--reason", "test")
    assert made.stdout == f"bundle {bundles[0]}: version 1\n"
    assert (await as_json(cluster, "policies", "list"))["policies"][0]["policy"] == {"pin": b}
    assert '"' + b in (await loadmanager(cluster, "policies", "show", *at)).stdout
    assert (await loadmanager(cluster, "policies", "delete", *at, "--seen", "7")).exit_code == 1
    assert (await loadmanager(cluster, "policies", "delete", *at, "--seen", "1")).exit_code == 0
    history = await as_json(cluster, "policies", "history", *at)
    assert [each["policy"] for each in history] == [{"pin": b}, None]
    assert (await loadmanager(cluster, "policies", "set", *at, "{")).exit_code == 2
    assert (await loadmanager(cluster, "policies", "set", *at)).exit_code == 2
    assert Bundle.parse(history[0]["name"]) == bundles[0]


async def test_a_quarantined_bundle_without_an_owner_says_why_it_waits_and_what_ends_it(cluster: Cluster) -> None:
    await cluster.start()
    (bundle,) = await cluster.create("shop/x", 1)
    await loadmanager(cluster, "bundles", "quarantine", str(bundle), "--reason", "brokers died")
    listed = await loadmanager(cluster, "bundles", "list")
    assert "none (quarantined)" in listed.output
    end = f"loadmanager bundles release-quarantine {bundle}"
    assert f"waits: quarantined: brokers died; to end it: {end}" in " ".join(listed.output.split())
    async with cluster.session.get(f"{cluster.brokers[0].url}/metrics") as answer:
        assert "loadmanager_bundles_locked 1.0" in await answer.text()
    await loadmanager(cluster, "bundles", "release-quarantine", str(bundle))
    assert "quarantine" not in (await loadmanager(cluster, "bundles", "list")).output


async def test_a_bundle_waits_while_all_brokers_drain(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("shop/x", 1)
    node = cluster.brokers[0].node
    await node.drain(5.0)
    await cluster.until(lambda: not node.membership.eligible())
    listed = " ".join((await loadmanager(cluster, "bundles", "list")).output.split())
    assert "none (waits)" in listed
    assert "waits: no broker takes bundles: " in listed


async def test_a_child_is_released_with_what_its_parent_was_quarantined_for(cluster: Cluster) -> None:
    await cluster.start()
    (bundle,) = await cluster.create("shop/x", 1)
    await loadmanager(cluster, "bundles", "quarantine", str(bundle), "--reason", "brokers died")
    child = f"{bundle.namespace}/0x00000000_0x80000000"
    released = await loadmanager(cluster, "bundles", "release-quarantine", child)
    assert f"this ends the quarantine of {bundle}" in released.stdout
    assert not policies_of(cluster).bundles
