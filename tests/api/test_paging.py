"""Lists come in pages: following `Link` gives every entry once; a parameter that does not exist is refused."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from tests.api import declared
from tests.api.conftest import Cluster, Refused

GROUP = "/v1/groups/{tenant}/{namespace}/{consumer_group}"
ELSEWHERE = {
    "/v1/channel/digests": "partition=0&namespace=t/n",
    "/v1/groups": "coordinated=true",
    f"{GROUP}/members": "",
    f"{GROUP}/rebalances": "",
    "/v1/backlog/topics": "group=t/n/g",
    "/v1/backlog/partitions": "group=t/n/g",
}
"""Lists whose pages other tests look at, with parameters that are right: in test_verify.py each page is of another
moment, those of groups are in test_groups.py."""


@pytest.fixture
async def filled(cluster: Cluster) -> Cluster:
    """Three brokers, five bundles, five readers, documents with versions, audit entries, three plans, some rounds."""
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
    for number in range(5):
        at = f"/v1/channel/readers/{'old' if number < 2 else 'new'}-{number}"
        assert (await cluster.ask("PUT", at, json={}))[0] == 200
    for percent in (0.1, 0.2, 0.3):
        await cluster.ask("PUT", "/v1/config/balancing_tolerance", json={"value": percent})
        domain = {"brokers": [f"{percent}:1"]}
        await cluster.ask("PUT", "/v1/policies/failure-domain/d", json=domain, headers={"X-Author": "ann"})
    await cluster.ask("PUT", "/v1/policies/namespace/t/n", json={"weight": 2}, headers={"X-Author": "ben"})
    await cluster.agree()
    return cluster


PARTS = {
    "{tenant}/{namespace}/{hash_range}": "t/n/0x00000000_0x33333333",
    "/config/{name}/": "/config/balancing_tolerance/",
    "{kind}/{name}": "failure-domain/d",
}
"""What stands in the lists' paths: the first bundle, and documents with several versions."""


def path_of(template: str) -> str:
    for part, value in PARTS.items():
        template = template.replace(part, value)
    return template


def name_of(entry: Any) -> Any:
    named = next((entry[field] for field in ("id", "offset", "bundle", "broker") if field in entry), None)
    return named or tuple(entry.get(field) for field in ("kind", "name", "version", "at_ms", "text"))


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


PAGED = sorted(
    each.path for each in declared.operations() if any(parameter["name"] == "cursor" for parameter in each.parameters)
)
LISTS = [path for path in PAGED if path not in ELSEWHERE]

BOUNDED = {
    GROUP: "topics of one group: each member names 1,000 at most",
    "/v1/me": "roles of one principal",
    "/v1/config/{name}": "one setting",
    "/v1/bundles/{tenant}/{namespace}/{hash_range}": "one bundle",
    "/v1/brokers/{broker}": "one broker",
    "/v1/channel": "partitions, the last skipped entries, names of at most 100 readers",
    "/v1/channel/readers/{name}": "one reader: an offset for each partition",
    "/v1/health": "one finding of each kind, with the first names",
    "/v1/usage": "one hour in half minutes: a chart needs all brokers",
    "/v1/balancing": "one round and the moves under way, within their limits",
    "/v1/plans/{plan_id}": "one plan",
    "/v1/explain/bundles/{tenant}/{namespace}/{hash_range}": "one explanation",
    "/v1/explain/brokers/{broker}": "one explanation",
    "/v1/decisions/{decision_id}": "one round, within the limits of moves",
    "/v1/decisions/{decision_id}/again": "differences in one round",
    "/v1/plan": "one round",
    "/v1/splitting": "a summary: `limit` bounds each part",
    "/v1/history": "one result for each job",
    "/v1/history/analyses": "one for each analysis",
    "/v1/history/analyses/{name}": "a file: its job bounds the rows",
    "/v1/history/{name}": "a file: its job bounds the rows",
}
"""Answers with lists or mappings that have no pages, and why."""


def test_every_list_that_may_be_long_has_pages() -> None:
    whole = {
        each.path
        for each in declared.operations()
        if each.method == "GET" and each.path not in PAGED and declared.holds_lists(each)
    }
    pulsars = {path for path in whole if path.startswith("/admin/v2/")}
    assert whole - pulsars == set(BOUNDED), "give it a cursor, or say here what bounds it"
    assert not {path for path in PAGED if path.startswith("/admin/")}, "Pulsar's tools read no pages"
    for each in declared.operations():
        names = {parameter["name"] for parameter in each.parameters}
        if each.method == "GET" and each.path in LISTS:
            assert {"cursor", "limit"} <= names, each.path


@pytest.mark.slow
async def test_following_the_links_gives_every_entry_once(filled: Cluster) -> None:
    await filled.ask("PUT", "/v1/config/balancing_interval_s", json={"value": 3_000})  # no more rounds
    await filled.until(lambda: all(broker.node.settings.balancing_interval_s == 3_000 for broker in filled.brokers))
    for path in map(path_of, LISTS):
        whole = entries((await filled.ask("GET", path))[1])
        found = await pages(filled, path)
        assert [len(page) for page in found[:-1]] == [2] * (len(found) - 1), path
        assert len(found) > 1, path
        keyed = [each for page in found for each in page]
        names = [name_of(each) for each in keyed]
        assert len(set(names)) == len(names), path
        assert names == [name_of(each) for each in whole], path


async def test_what_is_no_cursor_is_refused(cluster: Cluster, refused: Refused) -> None:
    await cluster.start(balancing=False)
    await cluster.create("t/n")
    await cluster.ask("PUT", "/v1/policies/failure-domain/d", json={"brokers": ["a:1"]})
    for template in PAGED:
        if "group" in template or "backlog" in template:
            continue  # in test_groups.py
        query = f"?{ELSEWHERE.get(template, '')}&cursor=-!"
        assert "cursor of this list" in (await refused(400, "GET", path_of(template) + query))["detail"], template


@pytest.mark.slow
async def test_lists_are_filtered(filled: Cluster) -> None:
    async def count(path: str) -> int:
        return len(entries((await filled.ask("GET", path))[1]))

    assert [await count(f"/v1/plans?state={state}") for state in ("proposed", "running")] == [3, 0]
    assert [await count(f"/v1/plans?kind={kind}") for kind in ("unload", "advice")] == [3, 0]
    assert [await count(f"/v1/brokers?registered={given}") for given in ("true", "false")] == [3, 0]
    assert await count("/v1/brokers?domain=nowhere") == 0

    found = (await filled.ask("GET", "/v1/config?prefix=balancing_&live=true"))[1]["settings"]
    assert found
    assert all(each["name"].startswith("balancing_") and each["live"] for each in found)
    assert [each["name"] for each in (await filled.ask("GET", "/v1/config?source=cluster"))[1]["settings"]] == [
        "balancing_tolerance"
    ]
    theirs = (await filled.ask("GET", "/v1/config?prefix=loadBalancer"))[1]["settings"]
    assert theirs
    assert all(any(name.startswith("loadBalancer") for name in each["pulsar"]) for each in theirs)
    assert [await count(f"/v1/policies?{query}") for query in ("kind=namespace", "prefix=d", "by=ben", "by=none")] == [
        *[1] * 3,
        0,
    ]
    assert [await count(f"/v1/channel/readers?prefix={prefix}") for prefix in ("old-", "new-", "none")] == [2, 3, 0]
    (noted,) = (await filled.ask("GET", "/v1/notes?about=started%20as"))[1]["notes"]
    assert "started as" in noted["text"]

    for path in ("/v1/config/balancing_tolerance/history", "/v1/policies/failure-domain/d/history"):
        versions = (await filled.ask("GET", path))[1]
        at_ms = versions[1]["at_ms"]
        since = (await filled.ask("GET", f"{path}?since_ms={at_ms}"))[1]
        assert since == [each for each in versions if each["at_ms"] >= at_ms]
        assert await count(f"{path}?since_ms={2**53}") == 0
    for path in ("/v1/notes", "/v1/policies", "/v1/channel/readers"):
        assert [bool(await count(f"{path}?since_ms={since_ms}")) for since_ms in (0, 2**53)] == [True, False], path


UNKNOWN: list[tuple[str, str, str]] = [
    ("GET", "/v1/bundles?ownr=x", "query.ownr: there is no such parameter; did you mean owner?"),
    ("GET", "/v1/me?x=1", "query.x: there is no such parameter"),
    (
        "GET",
        f"/admin/v2/brokers?{'&'.join(map(str, range(101)))}",
        "the query has 101 parameters, at most 100 are read",
    ),
    ("PUT", "/v1/policies/namespace/t/n?dryrun=true", "did you mean dry_run?"),
    ("PUT", "/admin/v2/namespaces/t/n/0x00000000_0x40000000/unload?destinationBrokr=x", "destinationBroker?"),
]


async def test_an_unknown_parameter_is_refused(cluster: Cluster, refused: Refused, subtests: pytest.Subtests) -> None:
    await cluster.start()
    await cluster.create("t/n")
    for method, path, says in UNKNOWN:
        with subtests.test(method=method, path=path, says=says):
            assert says in (await refused(400, method, path))["detail"]


async def test_parameters_of_pulsars_tools_are_ignored(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    path = "/admin/v2/namespaces/t/n/0x00000000_0x40000000/unload?authoritative=false"
    assert (await cluster.ask("PUT", path))[0] == 204
