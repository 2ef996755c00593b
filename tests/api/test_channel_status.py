"""`/v1/channel` and `loadmanager channel status|watch`: the channel as people look at it."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from loadmanager.channel import log_status
from loadmanager.channel.log_status import SnapshotLists
from loadmanager.channel.watch import Watch, Watching
from loadmanager_api.cli import channel as cli_watching
from loadmanager_api.cli.channel import size, told_refusals
from loadmanager_api.cli.main import main
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.law.record import Action, BrokerId, Record, Role
from statechannel.law.verdict import Change
from statechannel.ports import Payload
from tests.api.conftest import WAIT_S, Cluster


async def loadmanager(cluster: Cluster, *arguments: str, at: int = 0) -> Result:
    url = cluster.brokers[at].url
    return await asyncio.to_thread(CliRunner().invoke, main, arguments, None, {"LOADMANAGER_ADMIN_URL": url})


async def snapshots_written(cluster: Cluster, home: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while not (await shown(cluster))["partitions"][home]["snapshots"]:
            await asyncio.sleep(0.05)


async def shown(cluster: Cluster, at: int = 0) -> Any:
    status, body, _ = await cluster.ask("GET", "/v1/channel", at=at)
    assert status == 200, body
    return body


async def test_the_channel_tells_what_the_log_holds_and_who_writes_its_snapshots(cluster: Cluster) -> None:
    await cluster.start(2, snapshot_records=3)
    await cluster.create("t/n")
    home = cluster.brokers[0].node.channel.table.partition_of("t/n")
    await cluster.assign("t/n/a")
    await cluster.brokers[0].node.current.operations.unload_namespace("t/n")
    for at in (0, 1):
        async with asyncio.timeout(WAIT_S):
            while True:
                found = (await shown(cluster, at))["partitions"][home]
                if found["lag"] == 0 and found["snapshots"] and found["snapshots"][0]["bundles"] == 4:
                    break
                await asyncio.sleep(0.05)
        assert found["begin"] == 0
        assert (found["end"], found["lag"]) == (found["next_offset"], 0)
        assert found["owner"].rpartition("#")[0] in {broker.name for broker in cluster.brokers}
        newest = found["snapshots"][0]
        assert newest["size_bytes"] > 0
        assert abs(newest["at_ms"] - time.time() * 1000) < 60_000
        assert found["since_snapshot"] == found["next_offset"] - newest["next_offset"]


async def test_what_the_log_says_that_all_brokers_agree_on_is_shown(cluster: Cluster) -> None:
    await cluster.start()
    node = cluster.brokers[0].node
    agreement = node.channel.table.agreed(0).agreement
    assert agreement is not None
    assert (await shown(cluster))["agreement"] == msgspec.to_builtins(agreement)
    table = (await loadmanager(cluster, "channel", "status")).output
    assert agreement.root in table
    assert f"proof_validity_s {node.settings.proof_validity_s:g}, clock_drift {node.settings.clock_drift:g}" in table
    assert f"margin_s {node.settings.margin_s:g}, {node.channel.table.partitions} partitions" in table
    following = msgspec.structs.replace(agreement, proof_validity_s=77.0)
    record = Record("", Action.AMEND, BrokerId("admin", 0), role=Role.ADMIN, agreement=following,
                    seen_agreement=node.channel.table.agreed(1).revision)  # fmt: skip
    assert isinstance(await node.channel.publish(record, 1), Change)
    found = await shown(cluster)
    assert found["agreement_following"] == msgspec.to_builtins(following)
    assert "proof_validity_s 77" in (await loadmanager(cluster, "channel", "status")).output


async def test_the_index_is_found_behind_many_tombstones_and_read_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start(snapshot_records=3)
    await cluster.create("t/n")
    node = cluster.brokers[0].node
    home = node.channel.table.partition_of("t/n")
    await cluster.assign("t/n/a")
    await snapshots_written(cluster, home)
    writer = await node.world.log.exclusive("test")
    await writer.commit("bundle-state-snapshots", home, [Payload(f"old/{n}".encode(), None) for n in range(50)])
    await writer.close()
    monkeypatch.setattr(log_status, "FIRST_LOOK", 4)
    lists, reads = SnapshotLists(node.world.log, "bundle-state"), list[int]()
    reading = SqliteLog.read

    def counted(log: SqliteLog, topic: str, partition: int, start: int) -> Any:
        if partition == home:
            reads.append(start)
        return reading(log, topic, partition, start)

    monkeypatch.setattr(SqliteLog, "read", counted)
    first = (await lists.all())[home]
    assert first is not None
    assert len(reads) > 1
    assert reads == sorted(reads, reverse=True)
    reads.clear()
    assert (await lists.all())[home] == first
    assert reads == []


async def test_a_log_that_does_not_answer_hides_nothing_else(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.start()
    (tmp_path / "lm.db").rename(tmp_path / "elsewhere.db")
    found = await shown(cluster)
    assert "the file was removed" in found["log_problem"]
    assert found["partitions"][0]["next_offset"] > 0
    assert found["partitions"][0]["lag"] is None
    assert "the file was removed" in (await loadmanager(cluster, "channel", "status")).stdout


@pytest.mark.slow
async def test_the_status_page(cluster: Cluster) -> None:
    await cluster.start(2, snapshot_records=3)
    await cluster.create("t/n")
    home = cluster.brokers[0].node.channel.table.partition_of("t/n")
    await cluster.assign("t/n/a")
    await snapshots_written(cluster, home)
    page = (await loadmanager(cluster, "channel", "status", "--all", "--digest")).stdout
    found = await shown(cluster)
    for text in ("reloads", "readers", "generation 0", "snapshot at", "records since", "most behind in", "reads on"):
        assert text in page
    assert all(str(broker.node.current.me) in page for broker in cluster.brokers)
    assert size(found["partitions"][home]["snapshots"][0]["size_bytes"]) in page
    answer = json.loads((await loadmanager(cluster, "channel", "status", "--all", "-o", "json")).stdout)
    assert [broker["error"] for broker in answer["brokers"]] == [None, None]
    assert answer["brokers"][1]["channel"]["broker"] == str(cluster.brokers[1].node.current.me)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 40, "5120.0 GiB")],
)
def test_sizes_are_shown_in_the_unit_that_says_most(size_bytes: int, text: str) -> None:
    assert size(size_bytes) == text


async def test_watching_prints_the_table_and_then_its_changes(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n", 2)
    await cluster.create("u/n", 2)
    lines = (await loadmanager(cluster, "channel", "watch", "-n", "t/n", "--limit", "3")).stdout.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [
        ["is", "t/n/0x00000000_0x80000000"],
        ["is", "t/n/0x80000000_0xffffffff"],
    ]
    revision = lines[2].split()[1]
    bundle = await cluster.assign("t/n/a")
    again = ("channel", "watch", "-n", "t/n", "--since", revision, "--limit", "2")
    lines = (await loadmanager(cluster, *again)).stdout.splitlines()
    assert all(str(bundle) in line for line in lines)
    assert "assigning" in lines[0]
    assert "own by 127.0.0.1:7001#1 (lookup)" in lines[0]
    [first, _] = [json.loads(line) for line in (await loadmanager(cluster, *again, "-o", "json")).stdout.splitlines()]
    assert (first["event"], first["data"]["action"]) == ("change", "own")
    rest = await loadmanager(cluster, "channel", "watch", "-n", "t/n", "--since", first["id"], "--limit", "1")
    assert rest.stdout.splitlines() == lines[1:]


async def test_a_watch_that_makes_no_sense_ends_with_the_reason(cluster: Cluster) -> None:
    await cluster.start()
    refused = await loadmanager(cluster, "channel", "watch", "--since", "x")
    assert (refused.exit_code, "is not a revision" in refused.stderr) == (1, True)


async def test_a_watch_goes_on_after_a_broken_connection(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection ends after a moment of silence; the command comes back and misses nothing."""
    monkeypatch.setattr(cli_watching, "AGAIN_S", 0.05)
    monkeypatch.setattr(cli_watching, "SILENCE_S", 0.5)
    begin, resumed = Watching.begin, 0

    async def counted(watching: Watching, namespace: str | None, since: str | None) -> Watch:
        nonlocal resumed
        resumed += since is not None  # it has seen the whole table before
        return await begin(watching, namespace, since)

    monkeypatch.setattr(Watching, "begin", counted)
    await cluster.start()
    await cluster.create("t/n", 2)
    watch = ["channel", "watch", "--limit", "7", "--admin-url", cluster.brokers[0].url]
    watching = asyncio.create_task(asyncio.to_thread(CliRunner().invoke, main, watch))
    await cluster.until(lambda: resumed >= 2)
    monkeypatch.setattr(cli_watching, "SILENCE_S", WAIT_S)  # now let it hear the rest
    bundle = await cluster.assign("t/n/a")
    await cluster.brokers[0].node.current.operations.unload(bundle)
    result = await asyncio.wait_for(watching, WAIT_S)
    assert result.exit_code == 0
    assert "did not answer in time; trying again" in result.stderr
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["is", "is", "revision"]
    assert [line.split()[2] for line in lines[3:]] == ["assigning", "assigned", "releasing", "unassigned"]


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        ({}, "none"),
        ({"foreign-cluster": 2, "stale": 16}, "2 foreign-cluster, 16 stale: normal, another broker was first"),
        ({"stale": 1, "illegal": 3}, "1 stale, 3 illegal"),
    ],
)
def test_refusals_that_a_healthy_cluster_has_are_said_to_be_usual(refused: dict[str, int], told: str) -> None:
    assert told_refusals(refused) == told
