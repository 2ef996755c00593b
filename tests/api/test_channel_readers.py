"""`/v1/channel/readers`, and `loadmanager channel readers`."""

from __future__ import annotations

import asyncio

import msgspec
from click.testing import CliRunner

from loadmanager_api.cli.main import main
from tests.api.conftest import Cluster, Refused

PATH = "/v1/channel/readers"


async def test_a_reader_registers_moves_on_and_is_removed(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n")
    ends = list(await cluster.brokers[0].node.world.log.ends("bundle-state"))
    status, body, _ = await cluster.ask("PUT", f"{PATH}/history", json={})
    assert (status, body["positions"]) == (200, [0, 0, 0, 0])
    assert body["until_ms"] > body["registered_ms"]
    await cluster.until(lambda: all("history" in b.node.views.readers for b in cluster.brokers))
    assert (await cluster.ask("PUT", f"{PATH}/history", json={"positions": ends}, at=1))[0] == 200
    views = [b.node.views.readers for b in cluster.brokers]
    await cluster.until(lambda: all(list(view["history"].positions) == ends for view in views))
    assert (await cluster.ask("GET", f"{PATH}/history", at=1))[1]["positions"] == ends
    assert [reader["name"] for reader in (await cluster.ask("GET", PATH))[1]["readers"]] == ["history"]
    assert (await cluster.ask("DELETE", f"{PATH}/history"))[0] == 204
    await cluster.until(lambda: all("history" not in view for view in views))
    assert (await cluster.ask("GET", PATH, at=1))[1] == {"readers": [], "next": None}


async def test_registrations_that_make_no_sense_are_refused(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    end = (await cluster.brokers[0].node.world.log.ends("bundle-state"))[1]
    assert "4 partitions" in (await refused(412, "PUT", f"{PATH}/a", json={"positions": [0]}))["detail"]
    beyond = {"positions": [0, end + 1_000, 0, 0]}
    assert "partition 1 ends at" in (await refused(412, "PUT", f"{PATH}/a", json=beyond))["detail"]
    await refused(400, "PUT", f"{PATH}/a", json={"positions": [-1, 0, 0, 0]})
    await refused(400, "PUT", f"{PATH}/a", json={"positions": "begin"})
    await refused(412, "PUT", f"{PATH}/a%20b", json={})
    await refused(412, "PUT", f"{PATH}/{'a' * 101}", json={})
    assert "none" in (await refused(404, "GET", f"{PATH}/a"))["detail"]
    await refused(404, "DELETE", f"{PATH}/a")


async def test_what_was_trimmed_cannot_be_asked_for_any_more(cluster: Cluster, refused: Refused) -> None:
    await cluster.start(snapshot_records=1, log_retention_s=0.0)
    await cluster.create("t/n")
    node = cluster.brokers[0].node
    await cluster.until(lambda: any(keeper.begin > 0 for keeper in node.current.channel_owner.keepers.values()))
    body = await refused(409, "PUT", f"{PATH}/a", json={"positions": [0, 0, 0, 0]})
    assert "begins at" in body["detail"]
    assert "a" not in node.views.readers


async def test_readers_on_the_command_line(cluster: Cluster) -> None:
    await cluster.start()
    node = cluster.brokers[0].node

    async def loadmanager(*args: str) -> str:
        command = ["--admin-url", cluster.brokers[0].url, "channel", "readers", *args]
        result = await asyncio.to_thread(CliRunner().invoke, main, command)
        assert result.exit_code == 0, result.output
        return result.output

    assert "no readers" in await loadmanager("list")
    assert await loadmanager("add", "audit") == "audit is registered at 0 0 0 0\n"
    await cluster.until(lambda: "audit" in node.views.readers)
    assert await loadmanager("add", "audit", "1", "0", "0", "0") == "audit is registered at 1 0 0 0\n"
    await cluster.until(lambda: node.views.readers["audit"].positions == (1, 0, 0, 0))
    assert "1 0 0 0" in await loadmanager("list")
    assert msgspec.json.decode(await loadmanager("list", "-o", "json"))["readers"][0]["name"] == "audit"
    assert await loadmanager("remove", "audit") == "audit is removed\n"
    await cluster.until(lambda: "audit" not in node.views.readers)
