"""`/v1/bundles/{…}/history` and `loadmanager bundles history`: what happened to a bundle, and why."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from loadmanager.channel import replay_queue
from loadmanager_api import state
from loadmanager_api.cli.main import main
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId, Record, Subject
from statechannel.ports import Payload
from tests.api.conftest import Cluster, Refused

STRANGER = BrokerId("stranger:1", 1)


async def history(cluster: Cluster, bundle: Bundle, *, at: int = 0, **query: Any) -> Any:
    params = {name: str(value) for name, value in query.items()}
    status, body, _ = await cluster.ask("GET", f"/v1/bundles/{bundle}/history", at=at, params=params)
    assert status == 200, body
    return body


async def refused_history(cluster: Cluster, bundle: str, **query: Any) -> str:
    status, body, _ = await cluster.ask("GET", f"/v1/bundles/{bundle}/history", params=query)
    assert status == 404
    return body["detail"]


async def loadmanager(cluster: Cluster, *arguments: str) -> Result:
    env = {"LOADMANAGER_ADMIN_URL": cluster.brokers[0].url}
    return await asyncio.to_thread(CliRunner().invoke, main, arguments, None, env)


async def usurp(cluster: Cluster, bundle: Bundle) -> None:
    """A stranger wants to own it, who saw what is no more."""
    record = Record("", Action.OWN, STRANGER, subjects=(Subject(bundle, 0),), to=STRANGER, reason="it wants it")
    await cluster.brokers[0].node.channel.publish(record)


async def test_every_record_is_told_newest_first(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    first = cluster.owner(bundle)
    await cluster.brokers[0].node.current.operations.transfer(bundle, cluster.other(first).name)
    await usurp(cluster, bundle)
    await cluster.agree()
    found = await history(cluster, bundle, at=1)
    entries = found["entries"]
    assert [e["action"] for e in entries[1:]] == [
        "return", "release", "ready", "transfer", "return", "own", "create-namespace",
    ]  # fmt: skip
    assert [(e["before"], e["after"]) for e in entries[4:]] == [
        ("assigned", "transferring"), ("assigning", "assigned"), ("unassigned", "assigning"), (None, "unassigned"),
    ]  # fmt: skip
    assert [e["offset"] for e in entries] == sorted((e["offset"] for e in entries), reverse=True)
    refused = entries[0]
    assert (refused["accepted"], refused["refused"], refused["reason"]) == (False, "stale", "it wants it")
    assert refused["winner"]["offset"] == entries[1]["offset"]
    assert refused["winner"]["action"] == "return"
    assert entries[4]["role"] == "admin"
    assert entries[4]["target"].startswith(cluster.other(first).name)
    assert entries[-1]["boundaries"][0] == "0x00000000"
    assert (found["exists"], found["state"], found["next"], found["note"]) == (True, "assigned", None, None)


async def test_split_and_merged_bundle_knows_its_origins_and_successors(cluster: Cluster) -> None:
    await cluster.start()
    (parent, *_) = await cluster.create("t/n", 2)
    operations = cluster.brokers[0].node.current.operations
    for at in range(20):
        await cluster.assign(f"t/n/{at}")
    children = await operations.split(parent)
    gone = await history(cluster, parent)
    assert gone["exists"] is False
    assert gone["entries"][0]["children"] == [str(child) for child in children]
    assert gone["entries"][0]["after"] is None
    child = await history(cluster, children[0])
    assert child["entries"][-1]["parents"] == [str(parent)]
    assert await operations.merge(children) == parent
    again = await history(cluster, parent)
    assert again["exists"] is True
    assert again["entries"][0]["parents"] == [str(child) for child in children]
    assert (await history(cluster, children[1]))["entries"][0]["children"] == [str(parent)]


async def test_bundle_of_a_recreated_namespace_has_both_lives(cluster: Cluster) -> None:
    await cluster.start()
    (bundle, *_) = await cluster.create("t/n", 2)
    await cluster.brokers[0].node.current.operations.delete_namespace("t/n")
    assert [e["action"] for e in (await history(cluster, bundle))["entries"]] == [
        "delete-namespace",
        "create-namespace",
    ]
    await cluster.create("t/n", 2)
    found = await history(cluster, bundle)
    assert [e["action"] for e in found["entries"]] == ["create-namespace", "delete-namespace", "create-namespace"]
    assert [(e["before"], e["after"]) for e in found["entries"]] == [
        (None, "unassigned"), ("unassigned", None), (None, "unassigned"),
    ]  # fmt: skip


async def test_a_copy_of_a_record_is_told_to_be_one(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    node = cluster.brokers[0].node
    home, own = node.channel.table.partition_of("t/n"), (await history(cluster, bundle))["entries"][1]
    async for batch in node.world.log.read("bundle-state", home, own["offset"]):
        value = batch[0].value
        break
    await node.world.log.append("bundle-state", home, [Payload(None, value)])
    found = await history(cluster, bundle)
    assert (found["entries"][0]["accepted"], found["entries"][0]["copy_of"]) == (False, own["offset"])


async def test_pages_follow_each_other(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    for _ in range(3):
        await usurp(cluster, bundle)
    whole = (await history(cluster, bundle))["entries"]
    pages, before = [], None
    while True:
        page = await history(cluster, bundle, limit=2, **({} if before is None else {"cursor": before}))
        pages += page["entries"]
        before = page["next"]
        if before is None:
            break
    assert pages == whole
    assert len(whole) == 6


async def test_only_what_is_younger_is_told_if_that_is_asked_for(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    now_ms = cluster.brokers[0].node.world.wall_ms()
    await cluster.until(lambda: cluster.brokers[0].node.world.wall_ms() > now_ms + 5)
    await usurp(cluster, bundle)
    assert [e["actor"] for e in (await history(cluster, bundle, since_ms=now_ms + 5))["entries"]] == [str(STRANGER)]
    assert "no record names" in (await refused_history(cluster, "t/n/0x00000000_0x00000001", since_ms=now_ms))


async def test_what_was_trimmed_is_said_and_the_rest_is_judged_as_before(cluster: Cluster) -> None:
    await cluster.start(snapshot_records=5, log_retention_s=0.0)
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    node = cluster.brokers[0].node
    home = node.channel.table.partition_of("t/n")
    keepers = node.current.channel_owner.keepers
    revision = node.channel.table.get(bundle).revision  # type: ignore[union-attr]
    while not (home in keepers and keepers[home].begin > revision):
        await node.channel.read_back(home, node.current.me)
        await asyncio.sleep(0.05)
    found = await history(cluster, bundle)
    assert found["entries"] == []
    assert found["state"] == "assigned"
    assert f"begins at offset {found['log_begin']}" in found["note"]
    await usurp(cluster, bundle)
    [entry] = (await history(cluster, bundle))["entries"]
    assert (entry["refused"], entry["winner"]["offset"]) == ("stale", revision)
    assert (await history(cluster, bundle, since_ms=node.world.wall_ms() + 1_000))["note"] is None
    shown = await loadmanager(cluster, "bundles", "history", str(bundle))
    assert "older records were trimmed" in shown.stderr


async def test_what_nobody_heard_of_and_what_makes_no_sense_is_refused(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    await cluster.create("t/n")
    path = "/v1/bundles/t/n/0x00000000_0x00000001/history"
    assert "no record names" in (await refused(404, "GET", path))["detail"]
    assert "no namespace" in (await refused(404, "GET", "/v1/bundles/t/x/0x00000000_0x40000000/history"))["detail"]
    await refused(412, "GET", "/v1/bundles/t/n/0x1_0x2/history")
    known = "/v1/bundles/t/n/0x00000000_0x40000000/history"
    for query in ({"limit": "0"}, {"limit": "1001"}, {"since_ms": "-1"}, {"since_ms": "x"}):
        await refused(400, "GET", known, params=query)
    await refused(400, "GET", known, params={"cursor": "-1"})
    await refused(405, "DELETE", known)


async def test_a_log_that_takes_too_long_is_not_waited_for(
    cluster: Cluster, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "TIMEOUT_S", 0.0)
    await cluster.start()
    await cluster.create("t/n")
    path = "/v1/bundles/t/n/0x00000000_0x40000000/history"
    assert "could not be read again" in (await refused(503, "GET", path))["detail"]
    monkeypatch.setattr(replay_queue, "WAITING_AT_MOST", -1)
    assert "requests wait already to read the log" in (await refused(503, "GET", path))["detail"]


async def test_history_on_the_command_line(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    children = await cluster.brokers[0].node.current.operations.split(bundle)
    await usurp(cluster, bundle)
    shown = await loadmanager(cluster, "bundles", "history", str(bundle))
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert lines[0].startswith(f"{bundle} is gone; newest first")
    assert "no-bundle" in shown.stdout
    assert f"into {children[0].range}, {children[1].range}" in shown.stdout
    asked = await loadmanager(cluster, "bundles", "history", str(bundle), "--limit", "2", "-o", "json")
    assert [e["action"] for e in json.loads(asked.stdout)["entries"]] == ["own", "create"]
    assert "--cursor" in (await loadmanager(cluster, "bundles", "history", str(bundle), "--limit", "2")).stderr
    young = await loadmanager(cluster, "bundles", "history", str(bundle), "--since", "1h", "-o", "json")
    assert len(json.loads(young.stdout)["entries"]) == 6
    assert (await loadmanager(cluster, "bundles", "history", str(bundle), "--since", "soon")).exit_code == 2
    unknown = await loadmanager(cluster, "bundles", "history", "t/n/0x00000000_0x00000001")
    assert (unknown.exit_code, "no record names" in unknown.stderr) == (1, True)
