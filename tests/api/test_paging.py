"""Lists come in pages: following `Link` gives every entry once; a parameter that does not exist is refused."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from tests.api import declared
from tests.api.conftest import Cluster, Refused

ELSEWHERE = {"/v1/channel/digests"}
"""Lists whose pages are looked at in test_verify.py: each page is of another moment."""


@pytest.fixture
async def filled(cluster: Cluster) -> Cluster:
    """Three brokers, five bundles, five audit entries, three plans, some rounds."""
    await cluster.start(3, balancing_interval_s=0.05)
    bundles = await cluster.create("t/n", 5)
    for number in range(30):
        await cluster.assign(f"t/n/{number}")
    for number in range(3):
        wish = {"namespace": "t/n", "review": True, "reason": str(number)}
        await cluster.ask("POST", "/v1/plans/unload", json=wish, headers={"Idempotency-Key": str(number)})
    for to in (1, 2, 1):
        query = urlencode({"destinationBroker": cluster.brokers[to].name})
        await cluster.ask("PUT", f"/admin/v2/namespaces/t/n/{bundles[0].range}/unload?{query}")
    await cluster.ask("POST", "/v1/balancing/pause", json={})
    return cluster


def entries(body: Any) -> list[Any]:
    return body if isinstance(body, list) else next(each for each in body.values() if isinstance(each, list))


async def pages(cluster: Cluster, path: str) -> list[list[Any]]:
    found: list[list[Any]] = []
    following = f"{path}?limit=2"
    while following:
        status, body, headers = await cluster.ask("GET", following)
        assert status == 200, body
        found.append(entries(body))
        following = headers.get("Link", "").removeprefix("<").removesuffix('>; rel="next"')
        if isinstance(body, dict) and "next" in body:
            assert (body["next"] is None) == (not following), "`next` and `Link` agree"
    return found


LISTS = sorted(
    each.path
    for each in declared.operations()
    if any(parameter["name"] == "cursor" for parameter in each.parameters) and each.path not in ELSEWHERE
)


def test_every_list_that_may_be_long_has_pages() -> None:
    assert LISTS == [
        "/v1/audit",
        "/v1/brokers",
        "/v1/bundles",
        "/v1/bundles/{tenant}/{namespace}/{hash_range}/history",
        "/v1/decisions",
        "/v1/operations",
        "/v1/plans",
    ]


async def test_following_the_links_gives_every_entry_once(filled: Cluster) -> None:
    bundle = filled.brokers[0].node.channel.table.namespace("t/n").bundles[0]  # pyright: ignore[reportOptionalMemberAccess]
    await filled.ask("PUT", "/v1/config/balancing", json={"value": False})  # no more rounds
    for template in LISTS:
        path = template.replace("{tenant}/{namespace}/{hash_range}", str(bundle))
        whole = entries((await filled.ask("GET", path))[1])
        found = await pages(filled, path)
        assert [len(page) for page in found[:-1]] == [2] * (len(found) - 1), path
        assert len(found) > 1, path
        keyed = [each for page in found for each in page]
        names = [each.get("id") or each.get("offset") or each.get("bundle") or each["broker"] for each in keyed]
        assert len(set(names)) == len(names), path
        assert names == [each.get("id") or each.get("offset") or each.get("bundle") or each["broker"] for each in whole]


async def test_lists_are_filtered(filled: Cluster) -> None:
    async def count(path: str) -> int:
        return len(entries((await filled.ask("GET", path))[1]))

    assert [await count(f"/v1/plans?state={state}") for state in ("proposed", "running")] == [3, 0]
    assert [await count(f"/v1/plans?kind={kind}") for kind in ("unload", "advice")] == [3, 0]
    assert [await count(f"/v1/brokers?registered={given}") for given in ("true", "false")] == [3, 0]
    assert await count("/v1/brokers?domain=nowhere") == 0


@pytest.mark.parametrize(
    ("method", "path", "says"),
    [
        ("GET", "/v1/bundles?ownr=x", "query.ownr: there is no such parameter; did you mean owner?"),
        ("GET", "/v1/me?x=1", "query.x: there is no such parameter"),
        ("PUT", "/v1/policies/namespace/t/n?dryrun=true", "did you mean dry_run?"),
        ("PUT", "/admin/v2/namespaces/t/n/0x00000000_0x40000000/unload?destinationBrokr=x", "destinationBroker?"),
    ],
)
async def test_an_unknown_parameter_is_refused(
    cluster: Cluster, refused: Refused, method: str, path: str, says: str
) -> None:
    await cluster.start()
    await cluster.create("t/n")
    assert says in (await refused(400, method, path))["detail"]


async def test_parameters_of_pulsars_tools_are_ignored(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    path = "/admin/v2/namespaces/t/n/0x00000000_0x40000000/unload?authoritative=false"
    assert (await cluster.ask("PUT", path))[0] == 204
