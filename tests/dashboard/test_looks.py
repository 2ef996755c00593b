"""Accessibility as axe judges it, in both themes and on a phone; a list of 100,000 bundles."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, expect

from loadmanager.model.policies.model import Kind, NamespacePolicy
from tests.api.access.conftest import Guarded
from tests.api.conftest import Cluster
from tests.api.test_advised_plans import wish
from tests.dashboard.conftest import DESKTOP, PHONE, Windows, assign_all, publish_week

pytestmark = [pytest.mark.slow, pytest.mark.chromium, pytest.mark.xdist_group("dashboard")]

DRAWN = "() => new Promise((told) => requestAnimationFrame(() => requestAnimationFrame(told)))"
WIDTHS = (1280, 1024, 768, 390)
MANY = 100_000
A_NAMESPACE = 10_000


async def serious(page: Page) -> list[str]:
    """What axe calls serious or critical."""
    found = await Axe().run(page)
    return [
        f"{page.url} {each['id']}: {[node['html'][:120] for node in each['nodes']]} "
        f"{[node['failureSummary'][:300] for node in each['nodes']][:1]}"
        for each in found.response["violations"]
        if each["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_nothing_serious(cluster: Cluster, windows: Windows, theme: str, size: dict[str, int]) -> None:
    await cluster.start(2, balancing_interval_s=0.2)
    bundles = await cluster.create("t/n")
    await assign_all(cluster, bundles)
    node = cluster.brokers[0].node
    await node.policies.put(Kind.NAMESPACE, "t/n", NamespacePolicy(paused=True), author="ann", reason="a test")
    _, plan, _ = await cluster.ask("POST", "/v1/plans/unload", json={"namespace": "t/n", "review": True})
    views = {
        f"overview?broker={cluster.brokers[0].name}": "Its hottest bundles",
        f"bundles?bundle={bundles[0]}": "Where it might go",
        "decisions?id=1.1": "Refused candidates",
        f"plans?id={plan['id']}": "Approve",
        "policies?kind=namespace&name=t/n": "a test",
        "channel": "good for",
        "history": "serves no load history",
        "audit": "unload",
        "api?id=split_bundle": "LARGEST (most keys)",
    }
    window = await windows.open(theme=theme, size=size)
    wrong: list[str] = []
    for view, shown in views.items():
        await window.open(view)
        await expect(window.page.locator("main")).to_contain_text(shown)
        wrong += await serious(window.page)
        assert await window.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{view} is too wide"
    await window.open(f"bundles?bundle={bundles[0]}")
    await window.page.get_by_role("button", name="Transfer").click()
    wrong += await serious(window.page)
    assert not wrong, "\n".join(wrong)


UNREACHABLE = """() => {
  const found = [], told = (element, what) => found.push(`${what}: ${element.outerHTML.slice(0, 120)}`);
  for (const element of document.querySelectorAll("a[href], button, input, select, textarea, summary, canvas")) {
    if (element.matches(".skip") || !element.checkVisibility()) continue;
    element.scrollIntoView({block: "center", inline: "nearest"});
    for (let box = element.parentElement; box; box = box.parentElement) {
      if (getComputedStyle(box).overflowX !== "visible" && box.scrollLeft) told(element, "must be scrolled to");
      box.scrollLeft = 0;
    }
    const rect = element.getClientRects()[0];
    const [x, y] = [rect.left + rect.width / 2, rect.top + rect.height / 2];
    const edges = [...element.getClientRects()].flatMap(({left, right}) => [left, right]);
    for (let box = element.parentElement; box; box = box.parentElement) {
      const whole = box === document.documentElement;
      const {left, right} = whole ? {left: 0, right: innerWidth} : box.getBoundingClientRect();
      if (!whole && getComputedStyle(box).overflowX === "visible") continue;
      if (edges.some((edge) => edge < left - 1 || edge > right + 1)) told(element, `clipped by ${box.className}`);
    }
    const top = document.elementFromPoint(x, y);
    if (!element.contains(top) && !top?.contains(element)) told(element, `covered by ${top?.outerHTML.slice(0, 80)}`);
  }
  if (document.documentElement.scrollWidth > innerWidth) found.push("the page is wider than its window");
  return found;
}"""


async def test_no_control_is_clipped_or_covered(cluster: Cluster, windows: Windows, tmp_path: Path) -> None:
    for at in range(3):  # names as Kubernetes gives them
        name = f"lm-{at}.lm-headless.production.svc.cluster.local:8080"
        await cluster.start(advertised=name, balancing_interval_s=0.2, history_dir=str(tmp_path / "published"))
    publish_week(tmp_path / "published")
    bundles = await cluster.create("shop/a-namespace-with-a-name", 16)
    await assign_all(cluster, bundles)
    node = cluster.brokers[0].node
    await node.policies.put(
        Kind.NAMESPACE, bundles[0].namespace, NamespacePolicy(paused=True), author="ann", reason="a test"
    )
    body = {"namespace": bundles[0].namespace, "to": cluster.brokers[1].name, "review": True}
    _, plan, _ = await cluster.ask("POST", "/v1/plans/unload", json=body)
    assert (await cluster.ask("POST", "/v1/plans/advice", json=wish()))[0] == 201
    views = {
        "overview": "lm-2",
        f"overview?broker={cluster.brokers[0].name}": "Its hottest bundles",
        "bundles": "assigned",
        f"bundles?bundle={bundles[0]}": "Where it might go",
        "decisions": "within tolerance",
        "decisions?id=1.1": "Refused candidates",
        f"plans?id={plan['id']}": "Approve",
        f"policies?kind=namespace&name={bundles[0].namespace}": "a test",
        "channel": "good for",
        "history?name=replay": "max_over_mean",
        "audit": "publish_advice",
        "api?id=split_bundle": "LARGEST (most keys)",
    }
    window = await windows.open()
    wrong: list[str] = []
    for view, shown in views.items():
        await window.open(view)
        await expect(window.page.locator("main")).to_contain_text(shown)
        for width in WIDTHS:
            await window.page.set_viewport_size({"width": width, "height": 800})
            await window.page.evaluate(DRAWN)
            wrong += [f"{view} at {width}: {each}" for each in await window.page.evaluate(UNREACHABLE)]
    assert not wrong, "\n".join(wrong)


async def test_axe_finds_nothing_serious_in_the_log_in(guarded: Guarded, windows: Windows) -> None:
    await guarded.start()
    for theme in ("light", "dark"):
        window = await windows.open(theme=theme, expected="401")
        await window.log_in("no token")
        await expect(window.page.get_by_role("alert")).not_to_be_empty()
        assert not await serious(window.page)


async def test_the_theme_is_the_systems_until_somebody_chooses(cluster: Cluster, windows: Windows) -> None:
    await cluster.start()
    window = await windows.open(theme="dark")
    theme = window.page.locator("html")
    await expect(theme).to_have_attribute("data-theme", "dark")
    await window.page.get_by_role("button", name="Use the light theme").click()
    await window.page.reload()
    await expect(theme).to_have_attribute("data-theme", "light")


async def test_a_hundred_thousand_bundles_are_a_list_of_a_few_rows(cluster: Cluster, windows: Windows) -> None:
    await cluster.start()
    for at in range(MANY // A_NAMESPACE):
        await cluster.create(f"t/n{at}", A_NAMESPACE)
    window = await windows.open("bundles")
    page, grid = window.page, window.page.get_by_role("grid", name="Bundles")
    await expect(page.get_by_text("100,000 of 100,000")).to_be_visible()
    assert await grid.get_by_role("row").count() < 100
    await grid.focus()
    await page.keyboard.press("End")
    known = cluster.brokers[0].node.channel.table.namespace("t/n9")
    assert known is not None
    last = str(known.bundles[-1])
    await expect(grid.get_by_role("row").last).to_contain_text(last)
    assert await grid.get_by_role("row").count() < 100
    await page.get_by_label("Name", exact=True).fill("n7/0x80")
    await expect(page.get_by_text("of 100,000")).not_to_contain_text("100,000 of")
    await expect(grid.get_by_role("row").nth(1)).to_contain_text("t/n7/0x80")
