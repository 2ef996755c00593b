"""What a broker exposes fits what the pages say, and a move is counted once, with its gap, by its new owner."""

from __future__ import annotations

import re

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadmanager.cluster import agreed_time
from tests.api.conftest import Cluster
from tests.api.test_own_routes import ROOT, samples

PAGE = ROOT / "docs" / "metrics.md"
PULSARS = {
    *(f"brk_lb_{what}_usage" for what in ("cpu", "memory", "directMemory", "bandwidth_in", "bandwidth_out")),
    *(f"brk_lb_{what}" for what in ("resource_usage", "resource_usage_stats")),
    *(f"brk_lb_unload_{what}_total" for what in ("broker", "bundle", "broker_breakdown")),
    *(f"brk_lb_{what}_total" for what in ("bundles_split", "bundles_split_breakdown", "assign_broker_breakdown")),
    *(f"brk_lb_ignored_{what}_total" for what in ("send", "ack")),
    *(f"brk_lb_{what}_latency_ms" for what in ("unload", "assign", "release", "disconnect")),
    *(f"brk_sunit_state_chn_{what}_total" for what in (
        "owner_lookup", "event_publish_ops", "subscribe_ops", "cleanup_ops", "inactive_broker_cleanup_ops",
        "orphan_su_cleanup_ops", "su_tombstone_cleanup_ops", "owned_su",
    )),
    *(f"pulsar_broker_lookup{what}" for what in ("", "_redirects", "_failures", "_answers", "_pending_requests")),
    "pulsar.broker.request.topic.lookup.duration",
}  # fmt: skip
"""All metrics of Pulsar 4.0.8 about load management."""


def mapping() -> dict[str, str]:
    """The page's table: Pulsar's name to what it says of ours."""
    part = PAGE.read_text().partition("## Pulsar's metrics")[2]
    return dict(re.findall(r"^\| `([\w.]+)` \| (.+) \|$", part, re.MULTILINE))


async def test_each_of_pulsars_metrics_has_one_that_exists_or_a_reason(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.until(lambda: cluster.brokers[0].name in cluster.brokers[0].node.views.brokers)
    text = (await cluster.ask("GET", "/metrics"))[1]
    exposed = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE loadmanager_")}
    table = mapping()
    assert table.keys() == PULSARS
    for theirs, ours in table.items():
        named = set(re.findall(r"loadmanager_\w+", ours))
        assert named <= exposed, f"{theirs}: no broker exposes {sorted(named - exposed)}"
        assert named or ours.startswith("none, because "), theirs


async def test_a_move_is_counted_once_by_its_new_owner(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    await cluster.until(lambda: bundle in cluster.of(cluster.owner(bundle)).host.held)
    old, new = cluster.of(cluster.owner(bundle)), cluster.other(cluster.owner(bundle))
    status, _, _ = await cluster.ask(
        "PUT", f"/admin/v2/namespaces/{bundle.namespace}/{bundle.range}/unload?destinationBroker={new.name}"
    )
    assert status == 204
    await cluster.agree()
    found = {b.name: samples((await cluster.ask("GET", "/metrics", at=i))[1]) for i, b in enumerate(cluster.brokers)}
    at_old, at_new = found[old.name], found[new.name]
    for what in ("duration", "gap"):
        count = f'loadmanager_move_{what}_seconds_count{{kind="transfer"}}'
        assert (at_old[count], at_new[count]) == (0, 1)
    gap_s, took_s = (at_new[f'loadmanager_move_{w}_seconds_sum{{kind="transfer"}}'] for w in ("gap", "duration"))
    assert 0 < gap_s <= took_s
    assert at_old['loadmanager_hook_duration_seconds_count{hook="release",result="ok"}'] == 1
    assert at_new['loadmanager_hook_duration_seconds_count{hook="acquire",result="ok"}'] == 1
    assert at_new['loadmanager_channel_publishes_total{action="ready",result="accepted"}'] == 1
    assert at_old['loadmanager_channel_changes_total{action="release"}'] == 1
    assert at_new["loadmanager_channel_publish_duration_seconds_count"] >= 2


async def test_figures_that_depend_on_time_are_there(cluster: Cluster) -> None:
    await cluster.start(monitor_interval_s=0.1, proof_validity_s=6.0)
    node = cluster.brokers[0].node
    await cluster.until(lambda: node.settings.advertised in node.views.brokers and len(node.channel.ends) > 0)
    found = samples((await cluster.ask("GET", "/metrics"))[1])
    assert found["loadmanager_proof_validity_seconds"] == 6
    assert 0 <= found['loadmanager_proof_age_seconds{partition="0"}'] <= 6
    assert found["loadmanager_proof_lapses_total"] == 0
    assert found['loadmanager_channel_lag_records{partition="0"}'] == 0
    assert found["loadmanager_members_without_load"] == found["loadmanager_bundles_orphaned"] == 0
    assert 0 <= found["loadmanager_load_oldest_age_seconds"] < 60
    assert found["loadmanager_load_usage_ratio"] >= 0


async def test_a_wrong_clock_shows_while_no_broker_writes_to_the_channel(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start(3)
    names, view = [broker.name for broker in cluster.brokers], cluster.brokers[0].node.views.brokers
    await cluster.until(lambda: all(name in view for name in names))
    monkeypatch.setattr(agreed_time, "FRESH_S", 0.0)  # the records of the start count no more
    for name, off_ms in zip(names, (0, 100_000, 0), strict=True):
        load = view[name]
        await view.put(name, msgspec.structs.replace(load, sampled_ms=load.sampled_ms + off_ms))
    await view.catch_up()

    async def offset_s() -> float:
        return samples((await cluster.ask("GET", "/metrics", at=1))[1])["loadmanager_clock_offset_seconds"]

    other = cluster.brokers[1].node.views.brokers
    await other.catch_up()
    assert 95 < await offset_s() < 105
    await view.delete(names[1])
    await other.catch_up()
    assert await offset_s() == 0


async def test_histograms_are_as_prometheus_reads_them(cluster: Cluster) -> None:
    await cluster.start()
    text = (await cluster.ask("GET", "/metrics"))[1]
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {family.type for family in families.values()} <= {"counter", "gauge", "histogram"}
    for family in families.values():
        buckets = [s for s in family.samples if s.name.endswith("_bucket")]
        assert (family.type == "histogram") == bool(buckets), family.name
        if buckets:
            assert {"+Inf"} <= {s.labels["le"] for s in buckets}
            assert {s.name for s in family.samples} == {f"{family.name}_{x}" for x in ("bucket", "sum", "count")}
