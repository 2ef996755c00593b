"""`/v1/bundles`, `/v1/channel`, notes, settings, metrics."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from loadmanager.consumers.backlog.metrics import backlog_metrics
from statechannel.law.bundle import Bundle
from statechannel.law.codec import NEWEST_VERSION
from statechannel.law.record import Action, Record, Subject
from statechannel.law.verdict import Unknown
from statechannel.ports import Payload
from tests.api.conftest import Cluster, Refused
from tests.loadmanager.embedded import PATIENT

ROOT = Path(__file__).parents[2]


async def test_bundles_are_paged_in_the_order_of_their_names(cluster: Cluster) -> None:
    await cluster.start()
    wanted = [str(b) for name in ("a/b", "a/c", "b/a") for b in await cluster.create(name, 7)]
    found: list[str] = []
    after = None
    pages = 0
    while pages == 0 or after:
        params = {"limit": "5"} | ({"cursor": after} if after else {})
        page = (await cluster.ask("GET", "/v1/bundles", params=params))[1]
        found += [bundle["bundle"] for bundle in page["bundles"]]
        after = page["next"]
        pages += 1
    assert found == wanted
    assert pages == 5


async def test_bundles_are_filtered_by_namespace_state_and_owner(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n")
    await cluster.create("t/m")
    bundle = await cluster.assign("t/n/a")
    owner = cluster.owner(bundle)

    async def names(**params: str) -> list[str]:
        return [b["bundle"] for b in (await cluster.ask("GET", "/v1/bundles", params=params))[1]["bundles"]]

    assert await names(state="assigned") == [str(bundle)]
    assert await names(owner=str(owner)) == [str(bundle)]
    assert await names(owner=str(cluster.of(owner).node.current.me)) == [str(bundle)]
    assert await names(owner="127.0.0.1:1") == []
    assert len(await names(namespace="t/m")) == 4
    assert len(await names(namespace="t/n", state="unassigned")) == 3


async def test_one_bundle_is_shown_with_its_load(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    broker = cluster.brokers[0]
    views = broker.node.views.bundles
    await cluster.until(lambda: broker.name in views and bool(views[broker.name].bundles))
    status, shown, _ = await cluster.ask("GET", f"/v1/bundles/{bundle}")
    assert status == 200
    assert shown["bundle"] == str(bundle)
    assert shown["state"] == "assigned"
    assert shown["owner"] == broker.name
    assert shown["owner_live"]
    assert shown["served_here"]
    assert shown["token"] == str(broker.host.held[bundle])
    assert (shown["last_action"], shown["last_actor"]) == ("return", str(broker.node.current.me))
    assert shown["load"]["keys"] == 1


async def test_bundles_that_there_are_not_are_refused(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    await cluster.create("t/n")
    await refused(404, "GET", "/v1/bundles/t/none/0x00000000_0x40000000")
    assert "0xc0000000_0xffffffff" in (await refused(404, "GET", "/v1/bundles/t/n/0x00000000_0x10000000"))["detail"]
    await refused(412, "GET", "/v1/bundles/t/n/first")
    await refused(404, "GET", "/v1/bundles?namespace=t/none")
    await refused(400, "GET", "/v1/bundles?state=lost")
    await refused(400, "GET", "/v1/bundles?limit=0")
    await refused(400, "GET", "/v1/bundles?cursor=somewhere")


async def test_the_channel_is_shown_and_replicas_agree(cluster: Cluster) -> None:
    await cluster.start(2)
    bundle = (await cluster.create("t/n"))[0]
    node = cluster.brokers[0].node
    stale = Record("", Action.OWN, node.current.me, subjects=(Subject(bundle, 0),), to=node.current.me)
    await node.channel.publish(stale)
    await node.world.log.append("bundle-state", 0, [Payload(None, b"no record")])
    await cluster.until(lambda: all(len(b.node.channel.skipped) for b in cluster.brokers))
    for broker in cluster.brokers:
        await broker.node.channel.catch_up(10)
    shown = [(await cluster.ask("GET", "/v1/channel?digest=true", at=at))[1] for at in (0, 1)]
    for channel in shown:
        assert channel["cluster"] == "standalone"
        assert channel["refused"] == {"stale": 1}
        assert channel["skipped"] == len(channel["skipped_entries"]) == 1
        assert channel["skipped_entries"][0]["partition"] == 0
        assert channel["connection"] == "connected"
        assert channel["safe_mode"] is None
        assert channel["write_version"] == NEWEST_VERSION
        assert channel["bundles"]["unassigned"] == 4
        assert all(partition["epoch"] for partition in channel["partitions"])
    digests = [[p["digest"] for p in channel["partitions"]] for channel in shown]
    assert digests[0] == digests[1]
    assert (await cluster.ask("GET", "/v1/channel"))[1]["partitions"][0]["digest"] is None


async def test_a_late_verdict_can_be_asked_for(cluster: Cluster, refused: Refused) -> None:
    await cluster.start(publish_timeout_s=1.0)
    node = cluster.brokers[0].node
    append, held = node.world.log.append, []

    async def later(topic: str, partition: int, payloads: list[Payload]) -> None:
        held.append((topic, partition, payloads)) if topic == "bundle-state" else await append(
            topic, partition, payloads
        )

    node.world.log.append = later  # type: ignore[method-assign]
    status, body, headers = await cluster.ask("PUT", "/admin/v2/namespaces/t/n")
    node.world.log.append = append  # type: ignore[method-assign]
    assert status == 503
    assert "Retry-After" in headers
    assert "may still be done" in body["detail"]
    path = f"/v1/channel/records/{body['record_id']}"
    assert "not been read back" in (await refused(404, "GET", path))["detail"]
    for topic, partition, payloads in held:
        await append(topic, partition, payloads)
    await cluster.until(lambda: "t/n" in node.channel.table.namespaces())
    status, late, _ = await cluster.ask("GET", path)
    assert (status, late["verdict"]) == (200, "accepted")
    await refused(404, "GET", "/v1/channel/records/nobodys-1")
    assert Unknown  # the verdict that the 503 stands for


async def test_notes_and_settings_are_shown_without_secrets(cluster: Cluster) -> None:
    await cluster.start(kafka={"sasl.password": "secret"})
    notes = (await cluster.ask("GET", "/v1/notes"))[1]["notes"]
    assert any("started as" in note["text"] for note in notes)
    (last,) = (await cluster.ask("GET", "/v1/notes?limit=1"))[1]["notes"]
    assert last == notes[0] or last not in notes, "the newest, which may have come since"
    settings = (await cluster.ask("GET", "/v1/settings"))[1]
    assert settings["proof_validity_s"] == PATIENT["proof_validity_s"]
    assert settings["kafka"] == {"sasl.password": "***"}
    assert "secret" not in str(settings)


def samples(text: str) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    }


async def test_metrics_show_what_the_node_knows(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    at = cluster.brokers.index(cluster.of(cluster.owner(bundle)))
    serving = cluster.brokers[at].node.serving
    assert serving is not None
    await cluster.until(lambda: serving.claim(bundle) is not None)  # on a busy machine a proof may be late
    await cluster.ask("GET", "/lookup/v2/topic/persistent/t/n/a", at=at)
    status, text, headers = await cluster.ask("GET", "/metrics", at=at)
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    found = samples(text)
    partition = cluster.brokers[0].node.channel.table.partition_of("t/n")
    assert found["loadmanager_ready"] == 1
    assert found['loadmanager_owned_bundles{state="assigned"}'] == 1
    assert found['loadmanager_bundles{state="unassigned"}'] == 3
    assert found["loadmanager_served_bundles"] == 1
    assert found['loadmanager_lookups_total{outcome="answered"}'] >= 1
    assert found["loadmanager_members"] == 2
    assert 0 < found[f'loadmanager_proof_remaining_seconds{{partition="{partition}"}}'] <= PATIENT["proof_validity_s"]
    assert found[f'loadmanager_channel_next_offset{{partition="{partition}"}}'] >= 3
    assert found['loadmanager_channel_records_total{outcome="accepted",reason=""}'] > 3
    assert found["process_resident_memory_bytes"] > 1e6


async def test_every_metric_is_documented_and_nothing_else_is(cluster: Cluster) -> None:
    await cluster.start()
    name = cluster.brokers[0].name
    await cluster.until(lambda: name in cluster.brokers[0].node.views.brokers)
    text = (await cluster.ask("GET", "/metrics"))[1]
    exposed = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE loadmanager_")}
    documented = set(re.findall(r"^\| `(loadmanager_\w+)", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE))
    assert exposed | {metric.name for metric in backlog_metrics([], 0)} == documented, "the latter of a coordinator"


async def test_a_broker_that_is_not_ready_still_has_metrics_and_notes(cluster: Cluster) -> None:
    await cluster.start()
    node = cluster.brokers[0].node
    incarnation, node.incarnation = node.incarnation, None
    node.ready.clear()
    try:
        text = (await cluster.ask("GET", "/metrics"))[1]
        assert samples(text)["loadmanager_ready"] == 0
        assert (await cluster.ask("GET", "/v1/notes"))[0] == 200
        for path in ("/v1/bundles", "/v1/brokers", "/v1/channel", "/admin/v2/brokers", "/admin/v2/brokers/health"):
            status, body, headers = await cluster.ask("GET", path)
            assert (status, headers["Retry-After"]) == (503, "1"), path
            assert "starting" in body["detail"]
    finally:
        node.incarnation = incarnation
        node.ready.set()


def test_a_bundle_in_a_path_is_written_as_it_is_printed() -> None:
    bundle = Bundle("t/n", 0, 0x40000000)
    assert Bundle.parse(str(bundle)) == bundle
    assert msgspec.json.encode(str(bundle)) == b'"t/n/0x00000000_0x40000000"'
