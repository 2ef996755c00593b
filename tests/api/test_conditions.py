"""`ETag`, `If-None-Match` and `If-Match`: nobody changes what they have not seen, or fetches again what they have."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.api.conftest import Cluster, Refused

POLICY = "/v1/policies/namespace/t/n"
SETTING = "/v1/config/balancing_tolerance"
FIRST = {POLICY: {"anti_affinity_group": "g"}, SETTING: {"value": 0.2}}
SECOND = {POLICY: {"anti_affinity_group": "h"}, SETTING: {"value": 0.3}}
OUTDATED = "urn:loadmanager:problem:precondition-failed"

things = pytest.mark.parametrize("thing", [POLICY, SETTING])


@pytest.fixture
async def made(cluster: Cluster, thing: str) -> Cluster:
    await cluster.start()
    await cluster.create("t/n")
    status, found, _ = await cluster.ask("PUT", thing, json=FIRST[thing])
    assert (status, found["version"]) == (200, 1)
    return cluster


async def tag(cluster: Cluster, path: str) -> str:
    return (await cluster.ask("GET", path))[2]["ETag"]


@things
async def test_a_change_of_what_was_seen_is_made(made: Cluster, thing: str) -> None:
    seen = await tag(made, thing)
    assert seen.startswith('"1-')
    status, found, headers = await made.ask("PUT", thing, json=SECOND[thing], headers={"If-Match": seen})
    assert (status, found["version"], headers["ETag"]) == (200, 2, '"2"')
    assert (await made.ask("DELETE", thing, headers={"If-Match": headers["ETag"]}))[0] == 200


@things
@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
async def test_a_change_of_what_was_changed_since_is_refused(
    made: Cluster, refused: Refused, thing: str, method: str
) -> None:
    if (method, thing) == ("PATCH", SETTING):
        pytest.skip("a setting has no parts")
    seen = await tag(made, thing)
    await made.ask("PUT", thing, json=SECOND[thing])
    now = (await made.ask("GET", thing))[1]
    for options in ({}, {"params": {"dry_run": "true"}}) if thing == POLICY else ({},):
        options = {**options, "json": FIRST[thing]} if method != "DELETE" else options
        found = await refused(412, method, thing, headers={"If-Match": seen}, **options)
        assert found["type"] == OUTDATED
        assert "version 2" in found["detail"]
    assert (await made.ask("GET", thing))[1] == now


@things
async def test_of_many_who_saw_the_same_one_changes_it(made: Cluster, thing: str) -> None:
    seen = await tag(made, thing)
    asked = [made.ask("PUT", thing, json=SECOND[thing], headers={"If-Match": seen}) for _ in range(8)]
    assert sorted([each[0] for each in await asyncio.gather(*asked)]) == [200, *[412] * 7]
    assert (await made.ask("GET", thing))[1]["version"] == 2


@things
async def test_a_star_asks_whether_there_is_one(made: Cluster, refused: Refused, thing: str) -> None:
    create, replace = {"If-None-Match": "*"}, {"If-Match": "*"}
    assert (await refused(412, "PUT", thing, json=SECOND[thing], headers=create))["type"] == OUTDATED
    assert (await made.ask("PUT", thing, json=SECOND[thing], headers=replace))[0] == 200
    assert (await made.ask("DELETE", thing))[0] == 200
    assert (await refused(412, "PUT", thing, json=SECOND[thing], headers=replace))["type"] == OUTDATED
    assert (await made.ask("PUT", thing, json=SECOND[thing], headers=create))[0] == 200


@things
@pytest.mark.parametrize("header", [{"If-Match": "yesterday"}, {"If-None-Match": '"1"'}])
async def test_a_condition_that_says_nothing_is_refused(
    made: Cluster, refused: Refused, thing: str, header: dict[str, str]
) -> None:
    await refused(412, "PUT", thing, json=SECOND[thing], headers=header)


async def test_a_condition_is_not_ignored_where_there_are_no_versions(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    await cluster.create("t/n")
    path = "/admin/v2/namespaces/t/n/0x00000000_0x40000000/unload"
    assert "no versions" in (await refused(400, "PUT", path, headers={"If-Match": '"1"'}))["detail"]


PULSARS = "/admin/v2/clusters/standalone"
ISOLATION = f"{PULSARS}/namespaceIsolationPolicies/p"
DOMAIN = f"{PULSARS}/failureDomains/d"
GROUP = "/admin/v2/namespaces/t/n/antiAffinity"
VALUE = "/admin/v2/brokers/configuration/balancing_tolerance"


@pytest.mark.parametrize(
    ("shown", "changed", "deleted", "bodies"),
    [
        (ISOLATION, ISOLATION, ISOLATION, [{"namespaces": ["t/.*"], "primary": [p]} for p in (".*", "127.*")]),
        (DOMAIN, DOMAIN, DOMAIN, [{"brokers": ["a:1"]}, {"brokers": ["b:1"]}]),
        (POLICY, GROUP, GROUP, ["g", "h"]),
        (SETTING, f"{VALUE}/0.2", VALUE, [None, None]),
    ],
)
async def test_a_change_at_pulsars_paths_takes_conditions(
    cluster: Cluster, refused: Refused, shown: str, changed: str, deleted: str, bodies: list[Any]
) -> None:
    await cluster.start()
    await cluster.create("t/n")

    async def change(body: Any, **headers: str) -> int:
        return (await cluster.ask("POST", changed, json=body, headers=headers))[0]

    assert await change(bodies[0], **{"If-None-Match": "*"}) in (200, 204)
    first = await tag(cluster, shown)
    assert await change(bodies[1], **{"If-Match": first}) in (200, 204)
    then = (await cluster.ask("GET", shown))[1]
    for method, path in (("POST", changed), ("DELETE", deleted)):
        body = {"json": bodies[0]} if method == "POST" else {}
        found = await refused(412, method, path, headers={"If-Match": first}, **body)
        assert found["type"] == OUTDATED
        assert (await cluster.ask("GET", shown))[1] == then
    assert (await cluster.ask("DELETE", deleted, headers={"If-Match": await tag(cluster, shown)}))[0] in (200, 204)


GETS = [POLICY, SETTING, "/v1/bundles", "/v1/bundles/t/n/0x00000000_0x40000000", "/v1/policies", "/v1/me", "/v1/plans"]


async def test_what_did_not_change_is_not_sent_again(cluster: Cluster, subtests: pytest.Subtests) -> None:
    await cluster.start(balancing=False)
    await cluster.create("t/n")
    await cluster.ask("PUT", POLICY, json=FIRST[POLICY])
    for path in GETS:
        for method in ["GET", "HEAD"]:
            with subtests.test(path=path, method=method):
                seen = await tag(cluster, path)

                for held in (seen, f"W/{seen}", f'"other", {seen}'):
                    status, body, headers = await cluster.ask(method, path, headers={"If-None-Match": held})
                    assert (status, body, headers["ETag"]) == (304, "", seen)
                assert (await cluster.ask(method, path, headers={"If-None-Match": '"other"'}))[0] == 200


async def test_what_changed_is_sent_again(cluster: Cluster) -> None:
    await cluster.start(balancing=False)
    before = await tag(cluster, "/v1/bundles")
    await cluster.create("t/n")
    assert (await cluster.ask("GET", "/v1/bundles", headers={"If-None-Match": before}))[0] == 200
