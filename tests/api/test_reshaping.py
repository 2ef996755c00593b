"""Splitting, merging and calling off, over Pulsar's endpoints, ours, and the command line."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from loadmanager_api.cli.main import main
from statechannel.law.bundle import Bundle
from tests.api.conftest import Cluster, Refused

PULSAR = "/admin/v2/namespaces/t/n"
FIRST, SECOND = "0x00000000_0x40000000", "0x40000000_0x80000000"


async def boundaries(cluster: Cluster, at: int = 0) -> list[str]:
    """As that broker knows them: ask the one that has answered the change, others hear of it a moment later."""
    return (await cluster.ask("GET", f"{PULSAR}/bundles", at=at))[1]["boundaries"]


async def owned(cluster: Cluster, brokers: int = 1, **settings: Any) -> tuple[Bundle, ...]:
    """Four bundles, all at the first broker, as every broker knows."""
    await cluster.start(brokers, **settings)
    bundles = await cluster.create("t/n")
    for bundle in bundles:
        await cluster.brokers[0].node.current.operations.transfer(bundle, cluster.brokers[0].name)
    await cluster.agree()
    return bundles


# --- REST


async def test_a_bundle_is_split_in_two_as_pulsars_admin_tool_asks(cluster: Cluster) -> None:
    await owned(cluster)
    path = f"{PULSAR}/{FIRST}/split"
    assert (await cluster.ask("PUT", path, params={"unload": "false", "authoritative": "false"}))[0] == 204
    assert (await boundaries(cluster))[:3] == ["0x00000000", "0x20000000", "0x40000000"]


@pytest.mark.parametrize("body", [[0x50000000, 0x60000000], ["0x50000000", "0x60000000"]])
async def test_pulsars_route_splits_at_the_positions_in_the_body(cluster: Cluster, body: list[object]) -> None:
    await owned(cluster)
    params = {"splitAlgorithmName": "specified_positions_divide"}
    assert (await cluster.ask("PUT", f"{PULSAR}/{SECOND}/split", params=params, json=body))[0] == 204
    assert (await boundaries(cluster))[1:5] == ["0x40000000", "0x50000000", "0x60000000", "0x80000000"]


async def test_with_unload_the_children_are_assigned_by_the_next_lookup(cluster: Cluster) -> None:
    await owned(cluster)
    assert (await cluster.ask("PUT", f"{PULSAR}/{FIRST}/split", params={"unload": "true"}))[0] == 204
    left, right = Bundle.of("t/n", "0x00000000_0x20000000"), Bundle.of("t/n", "0x20000000_0x40000000")
    assert [cluster.owner(left), cluster.owner(right)] == [None, None]


async def test_our_own_route_splits_into_parts_and_names_them(cluster: Cluster) -> None:
    await owned(cluster)
    status, body, _ = await cluster.ask("POST", f"/v1/bundles/t/n/{FIRST}/split", json={"parts": 4})
    assert status == 200
    assert body["children"] == [f"t/n/0x{i << 28:08x}_0x{i + 1 << 28:08x}" for i in range(4)]
    assert all(cluster.owner(Bundle.parse(child)) == cluster.brokers[0].name for child in body["children"])
    status, body, _ = await cluster.ask("POST", "/v1/bundles/merge", json={"bundles": body["children"]})
    assert (status, body) == (200, {"bundle": f"t/n/{FIRST}"})


async def test_any_broker_splits_and_merges_what_another_one_owns(cluster: Cluster) -> None:
    await owned(cluster, 2)
    children = (await cluster.ask("POST", f"/v1/bundles/t/n/{FIRST}/split", at=1))[1]["children"]
    assert len(children) == 2
    await cluster.agree()
    assert (await cluster.ask("POST", "/v1/bundles/merge", json={"bundles": children}))[0] == 200
    await cluster.agree()
    assert (await cluster.ask("PUT", f"{PULSAR}/{FIRST}/split", at=1))[0] == 204


async def test_a_transfer_under_way_is_called_off(cluster: Cluster) -> None:
    await owned(cluster, 2)
    there = cluster.brokers[1]
    there.host.gate.clear()
    moving = asyncio.ensure_future(
        cluster.ask("PUT", f"{PULSAR}/{FIRST}/unload", params={"destinationBroker": there.name})
    )
    first = Bundle.of("t/n", FIRST)
    await cluster.until(lambda: cluster.brokers[0].node.current.operations.bundle(first).target is not None)
    assert (await cluster.ask("POST", f"/v1/bundles/t/n/{FIRST}/cancel"))[0] == 204
    status, body, _ = await moving
    assert (status, "after cancel" in body["detail"]) == (409, True)
    assert cluster.owner(first) == cluster.brokers[0].name


REFUSED: list[tuple[int, str, str, Any, str]] = [
    (412, "PUT", f"{PULSAR}/{FIRST}/split?splitAlgorithmName=magic", None, "there are range_equally_divide"),
    (
        412,
        "PUT",
        f"{PULSAR}/{FIRST}/split?splitAlgorithmName=specified_positions_divide",
        None,
        "at least one position",
    ),
    (412, "PUT", f"{PULSAR}/{FIRST}/split", [0x40000000], "does not lie inside"),
    (412, "PUT", f"{PULSAR}/{FIRST}/split", [9, 5], "strictly upwards"),
    (412, "PUT", f"{PULSAR}/first/split", None, "is not a hash range"),
    (404, "PUT", f"{PULSAR}/0x00000000_0x80000000/split", None, "no bundle"),
    (409, "PUT", f"{PULSAR}/0xc0000000_0xffffffff/split", None, "no broker owns"),
    (400, "PUT", f"{PULSAR}/{FIRST}/split", [2**32], "less than or equal"),
    (400, "PUT", f"{PULSAR}/{FIRST}/split", [True], "integer"),
    (400, "PUT", f"{PULSAR}/{FIRST}/split", ["5"], "integer"),
    (400, "PUT", f"{PULSAR}/{FIRST}/split", list(range(300)), "at most 256"),
    (412, "POST", f"/v1/bundles/t/n/{FIRST}/split", {"parts": 257}, "2 to 256 parts"),
    (400, "POST", f"/v1/bundles/t/n/{FIRST}/split", {"part": 2}, "part"),
    (400, "POST", "/v1/bundles/merge", {"bundles": ["t/n/" + FIRST]}, "at least 2"),
    (412, "POST", "/v1/bundles/merge", {"bundles": ["first", "second"]}, "is not a bundle"),
    (412, "POST", "/v1/bundles/merge", {"bundles": [f"t/n/{FIRST}", "t/n/0x80000000_0xc0000000"]}, "no neighbours"),
    (409, "POST", f"/v1/bundles/t/n/{FIRST}/cancel", None, "nothing to cancel"),
]


async def test_what_makes_no_sense_is_refused_and_changes_nothing(
    cluster: Cluster, refused: Refused, subtests: pytest.Subtests
) -> None:
    bundles = await owned(cluster)
    await cluster.brokers[0].node.current.operations.unload(bundles[-1])
    for status, method, path, body, says in REFUSED:
        with subtests.test(path=path, says=says):
            options = {} if body is None else {"json": body}
            assert says in (await refused(status, method, path, **options))["detail"]


async def test_bundles_of_two_owners_are_not_merged_and_it_says_what_to_transfer(
    cluster: Cluster, refused: Refused
) -> None:
    bundles = await owned(cluster, 2)
    other = cluster.brokers[1].name
    await cluster.brokers[0].node.current.operations.transfer(bundles[1], other)
    body = {"bundles": [str(bundle) for bundle in bundles[:3]]}
    detail = (await refused(409, "POST", "/v1/bundles/merge", json=body))["detail"]
    assert f"first transfer the others to {cluster.brokers[0].name}: {SECOND} (at {other}#1)" in detail


async def test_a_split_by_keys_of_a_service_that_does_not_tell_them_says_so(cluster: Cluster) -> None:
    await owned(cluster)
    status, body, _ = await cluster.ask(
        "PUT", f"{PULSAR}/{FIRST}/split", params={"splitAlgorithmName": "topic_count_equally_divide"}
    )
    assert status == 409
    assert "has no `positions`" in body["detail"]
    assert len(await boundaries(cluster)) == 5


async def test_a_namespace_is_deleted_and_made_anew_while_it_is_looked_up(cluster: Cluster) -> None:
    await owned(cluster, 2)
    tokens = [(await _looked_up(cluster))["token"]]
    assert (await cluster.ask("PUT", f"{PULSAR}/{FIRST}/split"))[0] == 204
    for count in (1, 8):
        await cluster.agree()
        assert (await cluster.ask("DELETE", PULSAR, at=1))[0] == 204
        await cluster.agree()
        assert (await cluster.ask("PUT", PULSAR, json={"numBundles": count}))[0] == 204
        tokens.append((await _looked_up(cluster))["token"])
        assert len(await boundaries(cluster)) == count + 1
    assert tokens == sorted(set(tokens)), "the token of a key only grows, also over a namespace's end"


async def _looked_up(cluster: Cluster) -> dict[str, Any]:
    (answer,) = (await cluster.ask("POST", "/v1/lookup", json={"topics": ["t/n/a"]}))[1]["answers"]
    assert answer["error"] is None
    return answer


# --- the command line


async def loadmanager(cluster: Cluster, *arguments: str) -> Result:
    """Run the command in a thread: its own loop asks this one."""
    environment = {"LOADMANAGER_ADMIN_URL": cluster.brokers[0].url}
    return await asyncio.to_thread(CliRunner().invoke, main, arguments, None, environment)


async def test_bundles_are_split_and_merged_on_the_command_line(cluster: Cluster) -> None:
    await owned(cluster)
    split = await loadmanager(cluster, "namespaces", "split-bundle", "t/n", "-b", FIRST, "--parts", "3", "-o", "json")
    assert split.exit_code == 0, split.output
    children = json.loads(split.stdout)["children"]
    assert len(children) == 3
    ranges = ",".join(child.rpartition("/")[2] for child in children)
    merged = await loadmanager(cluster, "namespaces", "merge-bundles", "t/n", "-b", ranges)
    assert merged.stdout == f"3 bundles of t/n are now t/n/{FIRST}\n"


async def test_pulsars_own_options_are_understood(cluster: Cluster) -> None:
    await owned(cluster)
    cut = ("-san", "specified_positions_divide", "-sb", "268435456, 0x20000000", "-u")
    split = await loadmanager(cluster, "namespaces", "split-bundle", "t/n", "-b", FIRST, *cut)
    assert split.exit_code == 0, split.output
    assert "into 0x00000000_0x10000000, 0x10000000_0x20000000, 0x20000000_0x40000000" in split.stdout
    assert cluster.owner(Bundle.of("t/n", "0x00000000_0x10000000")) is None


async def test_a_move_is_called_off_on_the_command_line(cluster: Cluster) -> None:
    await owned(cluster, 2)
    there, first = cluster.brokers[1], Bundle.of("t/n", FIRST)
    there.host.gate.clear()
    moving = asyncio.ensure_future(cluster.brokers[0].node.current.operations.transfer(first, there.name))
    await cluster.until(lambda: cluster.brokers[0].node.current.operations.bundle(first).target is not None)
    done = await loadmanager(cluster, "bundles", "cancel", str(first))
    assert (done.exit_code, done.stdout) == (0, f"the transfer or split of {first} is cancelled\n")
    assert "after cancel" in str((await asyncio.gather(moving, return_exceptions=True))[0])
    again = await loadmanager(cluster, "bundles", "cancel", str(first))
    assert again.exit_code == 1
    assert "there is nothing to cancel" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("split-bundle", "t/n"), "either --bundle or --bundle-type"),
        (("split-bundle", "t/n", "-b", "first"), "is not a hash range"),
        (("split-bundle", "t/n", "-b", FIRST, "--parts", "1"), "2<=x<=256"),
        (("split-bundle", "t/n", "-b", FIRST, "--positions", "5,x"), "'x' is not a position"),
        (("split-bundle", "t/n", "-b", FIRST, "-san", "magic"), "range_equally_divide"),
        (("merge-bundles", "t/n", "-b", FIRST), "two or more"),
        (("merge-bundles", "t/n", "-b", f"{FIRST},x"), "is not a hash range"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_asked(arguments: tuple[str, ...], says: str) -> None:
    result = CliRunner().invoke(main, ["namespaces", *arguments], env={"LOADMANAGER_ADMIN_URL": "http://127.0.0.1:1"})
    assert result.exit_code == 2
    assert says in result.stderr
