"""The dashboard's files, and the routes that were made for it: `/v1/me`, `/v1/usage`, drains by policy."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urljoin

import pytest

from loadmanager.model.policies.model import AccessRole
from loadmanager_api.access.rules import ASSETS
from tests.api.access.conftest import Guarded, guarded
from tests.api.conftest import Cluster, Refused

__all__ = ["guarded"]

FOLDER = Path(__file__).parents[2] / "api" / "loadmanager_api" / "dashboard"


async def test_the_page_runs_only_its_own_script_and_is_never_framed(cluster: Cluster) -> None:
    await cluster.start()
    status, page, headers = await cluster.ask("GET", "/")
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Set-Cookie" not in headers
    assert not re.search(r"<script(?! type=\"module\" src=)|<style| on\w+=|style=", page)


async def test_docs_lead_to_the_api_s_view(cluster: Cluster) -> None:
    await cluster.start()
    status, _, headers = await cluster.ask("GET", "/docs")
    assert (status, headers["Location"]) == (307, "/#/api")


async def test_every_module_that_a_file_imports_is_there(cluster: Cluster) -> None:
    await cluster.start()
    left, seen = [f"{ASSETS}main.mjs"], set[str]()
    while left:
        path = left.pop()
        seen.add(path)
        status, text, headers = await cluster.ask("GET", path)
        assert status == 200, path
        assert headers["Content-Type"] == "text/javascript; charset=utf-8"
        found = {urljoin(path, name) for name in re.findall(r"from ?\"([^\"]+)\"", text)}
        left += found - seen - set(left)
    assert seen == {ASSETS + file.relative_to(FOLDER).as_posix() for file in FOLDER.rglob("*.mjs")}


async def test_a_file_that_did_not_change_is_not_sent_again(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    _, _, headers = await cluster.ask("GET", "/dashboard/style.css")
    again = {"If-None-Match": headers["ETag"]}
    assert (await cluster.ask("GET", "/dashboard/style.css", headers=again))[0] == 304
    for path in ("nothing.mjs", "package.json", "../app.py", "%2e%2e/app.py", "vendor", "vendor/LICENSE.preact"):
        await refused(404, "GET", f"/dashboard/{path}")


async def test_without_authentication_everybody_is_admin(cluster: Cluster) -> None:
    await cluster.start()
    _, me, _ = await cluster.ask("GET", "/v1/me", headers={"X-Author": "ann"})
    assert (me["principal"], me["how"], me["authentication"]) == ("ann", "unverified", False)
    assert me["roles"] == [{"role": "admin", "namespaces": ["*"]}]


async def test_me_lists_all_roles_of_the_principal(guarded: Guarded) -> None:
    await guarded.start()
    await guarded.grant(AccessRole.VIEWER, "ann", "*")
    await guarded.grant(AccessRole.OPERATOR, "ann", "t/*", "u/n")
    await guarded.grant(AccessRole.CLIENT, "*", "v/n")
    _, me, _ = await guarded.ask("ann", "GET", "/v1/me")
    assert (me["principal"], me["how"], me["authentication"]) == ("ann", "token", True)
    assert me["roles"] == [
        {"role": "client", "namespaces": ["v/n"]},
        {"role": "viewer", "namespaces": ["*"]},
        {"role": "operator", "namespaces": ["t/*", "u/n"]},
    ]
    _, root, _ = await guarded.ask("root", "GET", "/v1/me")
    assert root["roles"][-1] == {"role": "admin", "namespaces": ["*"]}


async def test_the_usage_of_every_broker_is_listed(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.until(lambda: len(cluster.brokers[0].node.views.brokers) == 2)
    _, usage, _ = await cluster.ask("GET", "/v1/usage")
    assert set(usage["brokers"]) == {broker.name for broker in cluster.brokers}
    for spans in usage["brokers"].values():
        assert len(spans) == 120
        assert 0 <= spans[-1] < 10
        assert spans[0] is None, "nobody was there to see it"


async def test_any_broker_drains_another_by_policy(cluster: Cluster, refused: Refused) -> None:
    await cluster.start(2, balancing_interval_s=0.2)
    bundles = await cluster.create("t/n")
    other = cluster.brokers[1]
    for bundle in bundles:
        await cluster.brokers[0].node.current.operations.transfer(bundle, other.name)
    status, shown, _ = await cluster.ask("PUT", f"/v1/brokers/{other.name}/drain?by_policy=true")
    assert (status, shown["draining"], shown["broker"]) == (202, True, other.name)
    await cluster.until(lambda: all(cluster.owner(bundle) == cluster.brokers[0].name for bundle in bundles))
    await cluster.until(lambda: not tuple(cluster.brokers[0].node.channel.table.in_flight()))
    _, listed, _ = await cluster.ask("GET", f"/v1/brokers/{other.name}")
    assert (listed["draining"], listed["bundles"]) == (True, 0)
    await refused(409, "PUT", f"/v1/brokers/{cluster.brokers[0].name}/drain?by_policy=true")
    assert (await cluster.ask("DELETE", f"/v1/brokers/{other.name}/drain?by_policy=true"))[0] == 204
    assert not (await cluster.ask("GET", f"/v1/brokers/{other.name}"))[1]["draining"]
    await refused(404, "PUT", "/v1/brokers/nobody:1/drain?by_policy=true")


@pytest.mark.parametrize("role", [AccessRole.VIEWER])
async def test_a_viewer_drains_nothing_by_policy(guarded: Guarded, role: AccessRole) -> None:
    await guarded.start(2)
    await guarded.grant(role, "ann", "*")
    path = f"/v1/brokers/{guarded.cluster.brokers[1].name}/drain?by_policy=true"
    for method in ("PUT", "DELETE"):
        assert (await guarded.ask("ann", method, path))[0] == 403
