"""`loadmanager channel verify`: an auditor that believes only the log, against real brokers and snapshots."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from loadmanager.channel.audit.verification import Outcome, PartitionAudit
from loadmanager_api.cli.main import main
from loadmanager_api.routes import channel
from statechannel.adapters.sqlite.coordination import SqliteCoordination
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.errors import NewerRecord
from statechannel.law.bundle import Bundle
from statechannel.law.partition import PartitionState
from statechannel.law.record import BrokerId as Incarnation
from statechannel.law.snapshot import SnapshotInfo, closing, encode
from statechannel.ports import Log, LogEntry, Payload
from tests.api.conftest import Broker, Cluster
from tests.api.test_watch import Writer
from tests.loadmanager.client.test_another_cluster import Address

SOMEBODY = Incarnation("somebody:1", 9)


async def verify(cluster: Cluster, *more: str) -> Result:
    log = cluster.brokers[0].node.settings.log
    return await asyncio.to_thread(CliRunner().invoke, main, ["channel", "verify", "--log", log, *more])


async def differing(cluster: Cluster) -> list[dict[str, Any]]:
    result = await verify(cluster, "-o", "json")
    assert result.exit_code == 1, result.output
    return [finding for finding in json.loads(result.stdout) if finding["outcome"] == "differs"]


def falsify(broker: Broker, bundle: Bundle, **wrong: Any) -> None:
    """The broker's table says something else of a bundle."""
    namespace = broker.node.channel.table.namespace(bundle.namespace)
    assert namespace is not None
    entry = namespace.get(bundle)
    assert entry is not None
    namespace.put(msgspec.structs.replace(entry, **wrong))


def home(cluster: Cluster, namespace: str) -> int:
    return cluster.brokers[0].node.channel.table.partition_of(namespace)


@pytest.mark.slow
async def test_brokers_that_read_the_same_log_agree_while_they_work(cluster: Cluster) -> None:
    await cluster.start(3, snapshot_records=5, log_retention_s=0.0)
    writer = Writer(cluster, 1)
    writing = asyncio.create_task(writer.run())
    at_work: list[Result] = []
    while writer.done < 20 or len(at_work) < 4 or "snapshot" not in at_work[-1].stdout:
        at_work.append(await verify(cluster))
    writer.stop()
    await writing
    assert {"DIFFERS" in result.stdout for result in at_work} == {False}, at_work
    result = await verify(cluster, "-o", "json")
    assert result.exit_code == 0, result.output
    findings = json.loads(result.stdout)
    for who in ("log", *(str(broker.node.current.me) for broker in cluster.brokers)):
        told = [finding for finding in findings if finding["who"] == who]
        assert [(finding["partition"], finding["outcome"]) for finding in told] == [(p, "agrees") for p in range(4)]


@pytest.mark.parametrize("page", [channel.BUNDLES_AT_MOST, 1])
async def test_a_replica_that_diverged_is_found_with_the_bundle(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(channel, "NAMESPACES_AT_MOST", page)
    monkeypatch.setattr(channel, "BUNDLES_AT_MOST", page)
    await cluster.start(2)
    for name in ("t/a", "t/b", "t/c", "t/n"):
        await cluster.create(name)
    bundle = await cluster.assign("t/n/a")
    falsify(cluster.brokers[1], bundle, holder=SOMEBODY)
    [found] = await differing(cluster)
    assert found["who"] == str(cluster.brokers[1].node.current.me)
    assert found["partition"] == home(cluster, "t/n")
    assert f"{bundle}: the log says assign" in found["detail"]
    assert f"at {SOMEBODY}" in found["detail"].partition("it says")[2]
    shown = (await verify(cluster)).stdout
    assert "DIFFERS" in shown
    assert "1 differ," in shown


async def test_a_replica_that_lost_a_namespace_or_knows_one_too_many_is_found(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    table = cluster.brokers[0].node.channel.table
    part = table._partitions[home(cluster, "t/n")]
    lost = part.namespaces.pop("t/n")
    [found] = await differing(cluster)
    assert "t/n/0x00000000_0x40000000: the log says unassigned" in found["detail"]
    assert "it says there is none" in found["detail"]
    part.namespaces["t/n"] = lost
    part.incarnations["nobody:1"] = 3
    assert "incarnations" in (await differing(cluster))[0]["detail"]


async def test_a_snapshot_that_says_something_else_is_found(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    node, partition = cluster.brokers[0].node, home(cluster, "t/n")
    state = node.channel.table.cut(partition)
    wrong = [
        msgspec.structs.replace(e, holder=SOMEBODY) if e.bundle == bundle else e for e in state.namespaces[-1].entries
    ]
    falsified = msgspec.structs.replace(state.namespaces[-1], entries=wrong)
    await write_snapshot(cluster, msgspec.structs.replace(state, namespaces=(*state.namespaces[:-1], falsified)))
    [found] = await differing(cluster)
    assert found["who"] == "snapshot forged"
    assert f"{bundle}: the log says" in found["detail"]


async def test_a_snapshot_that_is_damaged_or_beyond_the_log_is_found(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    node, partition = cluster.brokers[0].node, home(cluster, "t/n")
    state = node.channel.table.cut(partition)
    await write_snapshot(cluster, msgspec.structs.replace(state, next_offset=state.next_offset + 50))
    [found] = await differing(cluster)
    assert "the log lost its end" in found["detail"]
    writer = await node.world.log.exclusive("vandal")
    await writer.commit("bundle-state-snapshots", partition, [Payload(b"forged/0", b"rubbish")])
    await writer.close()
    [found] = await differing(cluster)
    assert "forged" in found["detail"]


async def write_snapshot(cluster: Cluster, state: PartitionState) -> None:
    """As a channel owner would that has gone astray, and now: behind an old one the log would be trimmed at once."""
    node = cluster.brokers[0].node
    *chunks, info = encode(state, "forged", node.world.wall_ms())
    assert isinstance(info, SnapshotInfo)
    assert node.channel.table.cluster_identity is not None
    writer = await node.world.log.exclusive("astray")
    payloads = [chunk for chunk in chunks if isinstance(chunk, Payload)]
    index = closing(None, node.channel.table.cluster_identity, state.partition, info, ())
    await writer.commit("bundle-state-snapshots", state.partition, [*payloads, *index])
    await writer.close()


class Holed:
    """A log in which one entry of a partition is missing."""

    def __init__(self, log: Log, missing: int) -> None:
        self._log = log
        self._missing = missing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def read(self, topic: str, partition: int, start: int) -> AsyncGenerator[Sequence[LogEntry]]:
        async for batch in self._log.read(topic, partition, start):
            yield [entry for entry in batch if topic != "bundle-state" or entry.offset != self._missing]


async def test_a_hole_in_the_log_is_found_by_those_who_saw_what_is_missing(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    node, partition = cluster.brokers[0].node, home(cluster, "t/n")
    entry = node.channel.table.get(bundle)
    assert entry is not None
    holed = Holed(node.world.log, entry.revision - 1)  # its `own`
    findings = await PartitionAudit(holed, "bundle-state", partition, 4, ()).run()  # type: ignore[arg-type]
    [problem] = [f for f in findings if f.outcome is Outcome.DIFFERS]
    assert f"had seen revision {entry.revision - 1}" in problem.detail
    assert "entries were lost" in problem.detail


async def test_a_log_whose_beginning_nobody_knows_is_found(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    partition = home(cluster, "t/n")
    await cluster.brokers[0].node.world.log.trim("bundle-state", partition, 2)
    [found] = await differing(cluster)
    assert "no snapshot says what came before" in found["detail"]


async def test_who_cannot_be_asked_is_told_apart_from_who_agrees(cluster: Cluster) -> None:
    await cluster.start()
    node = cluster.brokers[0].node
    await node.world.coordination.register(
        node.current.me, msgspec.structs.replace(node.registration, admin_url="http://127.0.0.1:1").encode()
    )
    result = await verify(cluster)
    assert result.exit_code == 3, result.output
    assert "does not answer" in result.stdout
    assert "4 could not be checked" in result.stdout


async def test_a_token_goes_only_to_what_names_the_cluster_of_the_log(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.start()
    node, address = cluster.brokers[0].node, Address()
    url = await address.begin()
    try:
        await node.world.coordination.register(
            node.current.me, msgspec.structs.replace(node.registration, admin_url=url).encode()
        )
        monkeypatch.setenv("LOADMANAGER_TOKEN", "secret")
        for address.cluster, why in ("", "names no cluster"), ("green/1/0", "belongs to cluster 'green/1/0'"):
            result = await verify(cluster)
            assert result.exit_code == 3, result.output
            assert why in " ".join(result.stdout.split())
        assert address.tokens == []
        address.cluster = f"{node.settings.cluster}/1/0"
        await verify(cluster)
        assert address.tokens == [address.cluster]
    finally:
        await address.runner.cleanup()


async def test_replica_that_stopped_reading_does_not_agree_by_its_old_offset(cluster: Cluster) -> None:
    await cluster.start()
    # a record of a newer release would stop the auditor too
    cluster.brokers[0].node.channel.replica.stopped_by = NewerRecord("written by a newer release")
    result = await verify(cluster)
    assert result.exit_code == 3, result.output
    assert "reads no further: written by a newer release" in " ".join(result.stdout.split())


async def test_what_is_not_there_is_not_created(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.start()
    missing = tmp_path / "missing.db"
    result = await asyncio.to_thread(CliRunner().invoke, main, ["channel", "verify", "--log", f"sqlite:{missing}"])
    assert result.exit_code == 1
    assert "--log" in result.stderr
    assert not missing.exists()
    other = tmp_path / "other.db"
    unused, coordination = SqliteLog(other), SqliteCoordination(tmp_path / "other.db.coordination")
    await unused.start(5)
    await coordination.start(5)
    await unused.close()
    await coordination.close()
    empty = await asyncio.to_thread(CliRunner().invoke, main, ["channel", "verify", "--log", f"sqlite:{other}"])
    assert (empty.exit_code, "no cluster has begun" in empty.stderr) == (1, True), empty.output
    foreign = await verify(cluster, "--cluster", "other")
    assert (foreign.exit_code, "--cluster" in foreign.stderr) == (1, True)


async def test_digests_are_asked_for_in_pages(cluster: Cluster) -> None:
    await cluster.start()
    names = sorted(f"t/{letter}" for letter in "abcdefgh")
    for name in names:
        await cluster.create(name)
    found = []
    for partition in range(4):
        body = (await cluster.ask("GET", f"/v1/channel/digests?partition={partition}"))[1]
        assert body["next"] is None
        found += [namespace["namespace"] for namespace in body["namespaces"]]
    assert sorted(found) == names
    query = f"partition={home(cluster, 't/a')}&namespace=t/a"
    first = (await cluster.ask("GET", f"/v1/channel/digests?{query}"))[1]
    assert len(first["bundles"]) == 4
    rest = (await cluster.ask("GET", f"/v1/channel/digests?{query}&cursor=0x40000000_0x80000000"))[1]
    assert rest["bundles"] == first["bundles"][2:]


async def test_digests_that_make_no_sense_are_refused(cluster: Cluster, refused: Any) -> None:
    await cluster.start()
    assert "0 to 3" in (await refused(404, "GET", "/v1/channel/digests?partition=4"))["detail"]
    await refused(400, "GET", "/v1/channel/digests")
    await refused(400, "GET", "/v1/channel/digests?partition=-1")
    await refused(400, "GET", "/v1/channel/digests?partition=x")
    await refused(412, "GET", "/v1/channel/digests?partition=0&namespace=none")
