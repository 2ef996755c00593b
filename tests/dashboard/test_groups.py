"""The view of consumer groups: who reads what and where, what waits, what was moved; and what would fill it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.api.conftest import Cluster
from tests.api.test_groups import GROUP, World, world
from tests.dashboard.conftest import DESKTOP, PHONE, Window, Windows, launched
from tests.dashboard.test_looks import UNREACHABLE, WIDTHS, serious
from tests.loadmanager.consumers.running import in_background

__all__ = ["world"]

pytestmark = [pytest.mark.slow, pytest.mark.chromium, pytest.mark.xdist_group("dashboard")]

PICTURES = os.environ.get("PICTURES")
"""A folder for pictures of the view, for whoever wants to look at it."""


@pytest_asyncio.fixture
async def lively(world: World) -> AsyncIterator[World]:
    """Its members send heartbeats all the time."""

    async def beating() -> None:
        while True:
            for name in ("a", "b"):
                await world.beat(name)
            await asyncio.sleep(1)

    async with in_background(beating()):
        yield world


@pytest_asyncio.fixture
async def views(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Windows]:
    async with launched(tmp_path) as browser:
        opened = Windows(browser, cluster)
        yield opened
        await opened.close()


def place(world: World) -> tuple[str, str]:
    """The URLs of the group's coordinator and of another broker."""
    owner = world.cluster.owner(GROUP)
    at = [broker is owner for broker in world.cluster.brokers].index(True)
    urls = world.cluster.admin_urls
    return urls[at], urls[1 - at]


async def shown(window: Window, name: str) -> None:
    if PICTURES:
        await window.page.screenshot(path=Path(PICTURES) / f"groups-{name}.png", full_page=True)


async def test_a_group_is_shown_with_members_partitions_lag_and_rebalances(lively: World, views: Windows) -> None:
    here, elsewhere = place(lively)
    window = await views.open("groups", url=here)
    page = window.page
    await page.get_by_role("grid", name="Consumer groups").get_by_text(GROUP).click()
    members = page.get_by_role("table", name="Members", exact=True)
    for member in ("a", "b"):
        row = members.get_by_role("row").filter(has_text=f"billing-{member}")
        await expect(row).to_contain_text("node-7")
        await expect(row).to_contain_text("orders")
    lag = page.get_by_role("table", name="Lag by topic")
    await expect(lag.get_by_role("row").filter(has_text="orders")).to_contain_text("360")
    await expect(page.get_by_role("table", name="Rebalances")).to_contain_text("b joined")
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": 800})
        assert await page.evaluate(UNREACHABLE) == [], width
    window = await views.open(f"groups?group={GROUP}", url=elsewhere)
    link = window.page.get_by_role("link", name="its dashboard")
    await expect(link).to_have_attribute("href", f"{here}/#/groups?group={GROUP.replace('/', '%2F')}")
    await expect(window.page.get_by_role("table", name="Lag by topic")).to_contain_text("360")


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_nothing_serious(lively: World, views: Windows, theme: str, size: dict[str, int]) -> None:
    window = await views.open(f"groups?group={GROUP}", url=place(lively)[0], theme=theme, size=size)
    await expect(window.page.get_by_role("table", name="Lag by topic")).to_contain_text("360")
    await expect(window.page.get_by_role("table", name="Members", exact=True)).to_contain_text("billing-b")
    await shown(window, f"{theme}-{size['width']}")
    assert await serious(window.page) == []
    assert await window.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_a_group_of_kafkas_own_has_its_lag_and_no_members(world: World, views: Windows) -> None:
    world.topics.offsets.groups_committed["audit-export"] = {"orders": {0: 90}}
    window = await views.open("groups", url=place(world)[0], expected="404")
    page = window.page
    await page.get_by_label("Kafka's own too").check()
    await page.get_by_role("grid", name="Consumer groups").get_by_text("audit-export").click()
    await expect(page.get_by_role("table", name="Lag by topic")).to_contain_text("10")
    await expect(page.get_by_label("audit-export")).to_contain_text("Kafka's own consumers")


async def test_an_empty_view_says_what_would_fill_it(cluster: Cluster, views: Windows) -> None:
    await cluster.start()
    window = await views.open("groups")
    await expect(window.page.locator("main")).to_contain_text("--host loadmanager.consumer.hosting:make_host")
    await shown(window, "empty")
    assert await serious(window.page) == []
