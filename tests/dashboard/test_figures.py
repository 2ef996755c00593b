"""Every figure of the dashboard can be had by the API: pages ask public routes only, and show what these say."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.async_api import expect

from tests.api.conftest import Cluster
from tests.dashboard.conftest import Window, Windows, assign_all

pytestmark = [pytest.mark.slow, pytest.mark.chromium, pytest.mark.xdist_group("dashboard")]

OWN_FILES = ("/dashboard/", "/openapi.json")
VIEWS = (
    "overview",
    "bundles",
    "namespaces",
    "decisions",
    "plans",
    "policies",
    "channel",
    "groups",
    "history",
    "audit",
    "api",
)


async def public(cluster: Cluster) -> list[re.Pattern[str]]:
    """What the document describes as GET, as patterns of paths."""
    _, document, _ = await cluster.ask("GET", "/openapi.json")
    return [
        re.compile(re.sub(r"\\\{\w+\\\}", "[^?]+", re.escape(path)))
        for path, methods in document["paths"].items()
        if "get" in methods
    ]


async def test_pages_ask_public_routes_and_name_them(cluster: Cluster, windows: Windows) -> None:
    await cluster.start(2, balancing_interval_s=0.2)
    bundles = await cluster.create("t/n")
    await assign_all(cluster, bundles)
    routes = await public(cluster)
    window = await windows.open(expected="404")
    asked: set[str] = set()
    window.page.on("request", lambda request: asked.add(urlsplit(request.url).path))
    details = (f"overview?broker={cluster.brokers[0].name}", f"bundles?bundle={bundles[0]}", "decisions?id=1.1")
    for view in (*VIEWS, *details):
        asked.clear()
        await window.open(view)
        await expect(window.page.get_by_text("reading …")).to_have_count(0)
        data = {path for path in asked if path != "/" and not path.startswith(OWN_FILES)}
        assert not [path for path in data if not any(route.fullmatch(path) for route in routes)], view
        headings = await window.page.locator("code.api").all_inner_texts()
        named = [each.split()[-1].partition("?")[0] for heading in headings for each in heading.split(",")]
        assert named, view
        assert not [path for path in named if path not in OWN_FILES and not any(r.fullmatch(path) for r in routes)], (
            view
        )
        shared = {"/v1/me", "/v1/watch", "/v1/health", "/v1/brokers", "/v1/balancing", "/v1/config/history_dir"}
        assert data - shared <= {path.replace("%3A", ":") for path in named} | set(named), view


async def test_the_figures_are_those_of_the_routes(cluster: Cluster, windows: Windows) -> None:
    await cluster.start(2, balancing_interval_s=0.2, balancing=False, capacity={"rate_msg_s": 100.0}, weight_cpu=0.0)
    bundles = await cluster.create("t/n", 6)
    await assign_all(cluster, bundles[:4])
    await assign_all(cluster, bundles[4:], cluster.brokers[1].node)
    window = await windows.open("overview")
    name = cluster.brokers[0].name
    row = window.page.get_by_role("grid", name="Brokers").get_by_role("row").filter(has_text=name)
    await expect(row).to_contain_text("40.0 %")  # four bundles of 10 messages a second, of 100
    _, balancing, _ = await cluster.ask("GET", "/v1/balancing")
    _, brokers, _ = await cluster.ask("GET", "/v1/brokers")
    _, listed, _ = await cluster.ask("GET", "/v1/bundles")
    broker: dict[str, Any] = next(each for each in brokers if each["broker"] == name)
    figures = await shown(window)
    assert figures["Brokers"] == f"{sum(each['live'] for each in brokers)} of {len(brokers)} live"
    assert figures["Leader"] == next(each["broker"] for each in brokers if each["leader"])
    assert figures["Bundles"] == str(len(listed["bundles"]))
    assert figures["Without owner"] == str(sum(each["owner"] is None for each in listed["bundles"]))
    assert figures["Spread"].startswith(f"{100 * balancing['spread']:.1f} %")
    cells = await row.get_by_role("gridcell").all_inner_texts()
    assert cells[1] == f"{100 * balancing['usages'][name]:.1f} %"
    assert cells[2] == str(broker["bundles"]) == "4"
    load = broker["load"]
    assert float(cells[4]) == pytest.approx(load["in_rate_msg_s"] + load["out_rate_msg_s"], rel=0.01)


async def shown(window: Window) -> dict[str, str]:
    """The figures at the top of the overview by their titles."""
    pairs = window.page.locator(".figures > div")
    texts = [(await each.inner_text()).split("\n", 1) for each in await pairs.all()]
    return {title: rest.strip() for title, rest in texts}
