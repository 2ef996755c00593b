"""The page of REST routes lists every route of a broker, with the role that it needs."""

from __future__ import annotations

import re
import runpy

from tests.pages import ROOT


def test_every_route_is_on_the_page_once_and_has_a_role() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "rest_page.py"))
    document = page["routes_of_all"]().openapi()
    text = "\n".join(page["rest"](document))
    rows = re.findall(r"^\| ([A-Z]+) \| `(/[^`]*)` \| (\S.*)\. \| (\w.*) \|$", text, re.MULTILINE)
    routes = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert len(rows) == len(routes)
    assert {(method, path) for method, path, _, _ in rows} == routes
    roles = {(method, path): role for method, path, _, role in rows}
    assert roles["GET", "/admin/v2/brokers/health"] == "without authentication"
    assert roles["PUT", "/v1/config/{name}"] == "admin in the cluster"
