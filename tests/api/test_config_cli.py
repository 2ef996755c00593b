"""`loadmanager config`, and the same in pulsar-admin's words, against a running cluster."""

from __future__ import annotations

import pytest

from loadmanager_api.cli.client import ask, ask_all
from loadmanager_api.cli.remote import Remote
from tests.api.conftest import Cluster
from tests.api.test_cli import as_json, loadmanager


@pytest.mark.slow
async def test_a_setting_is_set_shown_and_left_to_each_broker_again(cluster: Cluster) -> None:
    await cluster.start(2)
    said = await loadmanager(cluster, "config", "set", "balancing_budget", "0.1", "--reason", "a quiet night")
    assert said.stdout == "balancing_budget is 0.1 (version 1)\n"
    await cluster.until(lambda: cluster.brokers[1].node.settings.balancing_budget == 0.1)
    listed = (await loadmanager(cluster, "config", "list", at=1)).stdout
    assert "balancing_budget" in listed
    assert "cluster" in listed
    assert "bundle_rest_s" not in listed
    assert "bundle_rest_s" in (await loadmanager(cluster, "config", "list", "--all")).stdout
    shown = (await loadmanager(cluster, "config", "get", "balancing_budget")).stdout
    assert "version 1 by" in shown
    assert "a quiet night" in shown
    assert "> 0, <= 1" in shown
    assert (await loadmanager(cluster, "config", "unset", "balancing_budget")).exit_code == 0
    history = (await loadmanager(cluster, "config", "history", "balancing_budget")).stdout
    assert "a quiet night" in history
    assert "unset" in history
    assert [each["old"] for each in await as_json(cluster, "config", "history", "balancing_budget")] == [None, 0.1]


@pytest.mark.slow
async def test_lists_and_histories_are_filtered(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await cluster.start()
    for value in ("0.1", "0.2"):
        assert (await loadmanager(cluster, "config", "set", "balancing_budget", value)).exit_code == 0
    one = [each["name"] for each in await as_json(cluster, "config", "list", "--source", "cluster")]
    assert one == ["balancing_budget"]
    named = [each["name"] for each in await as_json(cluster, "config", "list", "-a", "--prefix", "load_")]
    assert named
    assert all(name.startswith("load_") for name in named)
    first, second = await as_json(cluster, "config", "history", "balancing_budget")
    assert await as_json(cluster, "config", "history", "balancing_budget", "--since", "1h") == [first, second]
    assert await as_json(cluster, "config", "history", "balancing_budget", "--since", "2999-01-01") == []

    monkeypatch.setenv("LOADMANAGER_AUTHOR", "ann")
    for name in ("t/a", "t/b", "u/a"):
        await cluster.create(name)
        said = await loadmanager(cluster, "policies", "set", "namespace", name, '{"weight": 2}')
        assert said.exit_code == 0, said.output

    async def listed(*filters: str) -> list[str]:
        return [each["name"] for each in (await as_json(cluster, "policies", "list", *filters))["policies"]]

    assert await listed("--prefix", "t/") == ["t/a", "t/b"]
    assert await listed("--by", "ann", "--since", "1h") == ["t/a", "t/b", "u/a"]
    assert await listed("--by", "ben") == await listed("--since", "2999-01-01") == []


async def test_a_list_of_several_pages_is_read_whole(cluster: Cluster) -> None:
    await cluster.start()
    remote = Remote(admin_urls=[cluster.brokers[0].url])
    whole = await ask(remote, "GET", "/v1/config")
    assert await ask_all(remote, "/v1/config", {"limit": "50"}) == whole
    assert len(whole["settings"]) > 50
    for value in (0.1, 0.2, 0.3):
        await cluster.ask("PUT", "/v1/config/balancing_budget", json={"value": value})
    history = "/v1/config/balancing_budget/history"
    found = await ask_all(remote, history, {"limit": "2"})
    assert [each["version"] for each in found] == [1, 2, 3]


async def test_refusals_say_what_to_do(cluster: Cluster) -> None:
    await cluster.start()
    assert (await loadmanager(cluster, "config", "set", "split", "false", "--version", "0")).exit_code == 0
    late = await loadmanager(cluster, "config", "set", "split", "true", "--version", "0")
    assert late.exit_code == 1
    assert "try again with 1" in late.stderr
    assert "did you mean" in (await loadmanager(cluster, "config", "get", "spilt")).stderr
    fixed = await loadmanager(cluster, "config", "set", "cluster", "other")
    assert "where the broker is started" in fixed.stderr
    wrong = await loadmanager(cluster, "config", "set", "placement", "dice")
    assert "set it to one of: " in wrong.stderr


async def test_pulsars_commands_are_there(cluster: Cluster) -> None:
    await cluster.start()
    name = "loadBalancerSheddingIntervalMinutes"
    assert (await loadmanager(cluster, "brokers", "update-dynamic-config", "-c", name, "-v", "2")).exit_code == 0
    assert (await as_json(cluster, "config", "get", "balancing_interval_s"))["value"] == 120.0
    assert (await as_json(cluster, "brokers", "get-all-dynamic-config"))[name] == "2"
    assert name in await as_json(cluster, "brokers", "list-dynamic-config")
    assert (await as_json(cluster, "brokers", "get-runtime-config"))[name] == "2"
    assert (await loadmanager(cluster, "brokers", "delete-dynamic-config", "-c", name)).exit_code == 0
    assert await as_json(cluster, "brokers", "get-all-dynamic-config") == {}
