"""Names that URLs and file systems take for places, `.` and `..`: refused at the endpoints, and by no replay."""

from __future__ import annotations

import asyncio
import os
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from yarl import URL

from loadmanager.diagnostics.support_bundle import file_name
from loadmanager_api.cli.main import main
from statechannel.law.bundle import Bundle, Key, even_boundaries
from statechannel.law.record import NEVER, Action, Record, Role
from statechannel.law.verdict import Change
from tests.api.conftest import Cluster
from tests.api.test_terminal import liar


async def command(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, arguments)


async def test_a_namespace_is_not_called_so(cluster: Cluster, subtests: pytest.Subtests):
    await cluster.start()
    at = cluster.brokers[0].url
    for name in ["../x", "x/..", "./x", "x/.", "../.."]:
        with subtests.test(name=name):
            path = "/".join(part.replace(".", "%2e") for part in name.split("/"))
            async with cluster.session.put(URL(f"{at}/admin/v2/namespaces/{path}", encoded=True), json={}) as answer:
                assert answer.status == 412
                assert "neither part may be . or .." in (await answer.json())["reason"]
            told = await command("--admin-url", at, "namespaces", "create", name)
            assert told.exit_code == 2
            assert "neither part may be . or .." in told.stderr
            assert not cluster.brokers[0].node.channel.table.namespaces()


async def test_a_topic_is_not_called_so(cluster: Cluster, subtests: pytest.Subtests):
    await cluster.start()
    await cluster.create("t/n")
    for name in ["..", ".", "a/../b", "../a", "a/."]:
        with subtests.test(name=name):
            _, body, _ = await cluster.ask("POST", "/v1/lookup", json={"topics": [f"t/n/{name}"]})
            assert body["answers"][0]["error"]["status"] == 412
            assert "must not be . or .." in body["answers"][0]["error"]["detail"]
            told = await command("--admin-url", cluster.brokers[0].url, "topics", "lookup", f"t/n/{name}")
            assert told.exit_code == 2
            assert "must not be . or .." in told.stderr


@pytest.mark.parametrize("name", ["t/n/a..b", "t/n/...", "t/n/.a", "t/n/a./b"])
def test_dots_within_a_name_are_fine(name: str):
    assert Key.parse(name).full_name == f"persistent://{name}"


async def test_policies_groups_and_clusters_are_not_called_so(cluster: Cluster):
    await cluster.start()
    await cluster.create("t/n")
    at = cluster.brokers[0].url
    for kind, body in (
        ("isolation", {"namespaces": ["x"], "primary": [".*"]}),
        ("failure-domain", {"brokers": ["a:1"]}),
    ):
        async with cluster.session.put(URL(f"{at}/v1/policies/{kind}/%2e%2e", encoded=True), json=body) as answer:
            assert answer.status == 412
            assert "is not a valid name" in (await answer.json())["reason"]
    status, body, _ = await cluster.ask("PUT", "/v1/policies/namespace/t/n", json={"anti_affinity_group": ".."})
    assert status == 412
    assert "is not a valid name for a group" in body["reason"]
    told = await command("check", "--cluster", "..")
    assert told.exit_code == 2
    assert "must not be . or .." in told.stderr


async def test_what_the_log_has_is_replayed_as_ever(cluster: Cluster):
    """The law is older than this rule."""
    await cluster.start()
    node = cluster.brokers[0].node
    create, edges = Action.CREATE_NAMESPACE, even_boundaries(2)
    record = Record("", create, node.current.me, Role.ADMIN, namespace="../..", boundaries=edges, seen_namespace=NEVER)
    assert isinstance(await node.channel.publish(record), Change)
    await cluster.start()
    assert "../.." in cluster.brokers[1].node.channel.table.namespaces()
    found = Bundle.parse("../../0x00000000_0x80000000")
    assert cluster.brokers[1].node.channel.table.get(found) is not None


# --- files of a support bundle


@pytest.mark.parametrize(("said", "file"), [("..", "__"), (".", "_"), ("a/../b", "a_.._b"), ("a:1", "a_1")])
def test_what_a_broker_calls_itself_is_a_directory_of_one_step(said: str, file: str):
    assert file_name(said) == file


async def test_no_name_leads_out_of_a_support_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "here" / "loadmanager-x").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    answers = {"/v1/settings": {"cluster": "x/../../out"}, "*": {}}
    async with liar(200, answers) as url:
        answers["/v1/brokers"] = [{"broker": "..", "admin_url": url}, {"broker": "../../y", "admin_url": url}]
        told = await command("--admin-url", url, "doctor", "--no-check")
    assert told.exit_code == 0, told.output
    assert os.listdir(tmp_path) == ["here"]
    (written,) = sorted(set(os.listdir(tmp_path / "here")) - {"loadmanager-x"})
    with tarfile.open(tmp_path / "here" / written) as packed:
        assert not [name for name in packed.getnames() if ".." in name.split("/")]
