"""What is wrong stands first, with its reason and remedy; what a phone shows; what empty views say."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import expect

from loadmanager.model.policies.model import AccessRole, BundlePolicy, Kind, NamespacePolicy
from tests.api.access.conftest import Guarded
from tests.api.conftest import Cluster
from tests.api.test_health import kill
from tests.dashboard.conftest import PHONE, Windows, as_role, assign_all
from tests.dashboard.test_looks import DRAWN

pytestmark = [pytest.mark.slow, pytest.mark.chromium, pytest.mark.xdist_group("dashboard")]

WIDE = {"width": 1440, "height": 900}


async def test_an_outage_stands_first_with_reason_time_and_command(cluster: Cluster, windows: Windows) -> None:
    await cluster.start(2)
    bundles, dead = await cluster.create("t/n"), cluster.brokers[1]
    window = await windows.open("overview")
    wrong = window.page.get_by_role("region", name="What is wrong")
    await expect(wrong).to_contain_text(f"nothing as {cluster.brokers[0].name} sees the cluster")
    await assign_all(cluster, bundles[:3], dead.node)
    await cluster.brokers[0].node.policies.put(
        Kind.BUNDLE, str(bundles[3]), BundlePolicy(quarantined="three brokers died"), author="ann"
    )
    await kill(cluster, dead)
    lost = wrong.get_by_role("listitem").filter(has_text="3 bundles belong to dead brokers, and no broker serves them")
    await expect(lost).to_contain_text("since")
    await expect(lost.locator("code")).to_have_text("loadmanager brokers leader")
    await expect(wrong.get_by_role("listitem").filter(has_text="three brokers died").locator("code")).to_have_text(
        f"loadmanager bundles release-quarantine {bundles[3]}"
    )
    first = await window.page.locator("main > *").first.get_attribute("aria-label")
    assert first == "What is wrong"
    red = await wrong.evaluate("element => getComputedStyle(element.querySelector('.error .answer')).color")
    assert red == "rgb(163, 33, 28)"
    await expect(window.page.locator(".figures dd.error").first).to_have_text("1 of 2 live")
    await window.open("policies")
    alert = window.page.get_by_role("alert").filter(has_text="3 bundles belong to dead brokers")
    await expect(alert).to_contain_text("and 2 more")
    await alert.get_by_role("link").click()
    await expect(wrong).to_be_visible()


async def test_a_dead_broker_is_listed_first_with_how_long_ago_it_died(cluster: Cluster, windows: Windows) -> None:
    await cluster.start(3)
    dead = cluster.brokers[2]
    window = await windows.open("overview")
    rows = window.page.get_by_role("grid", name="Brokers").get_by_role("row")
    await expect(rows.nth(1)).to_contain_text(cluster.brokers[0].name)
    await kill(cluster, dead)
    await expect(rows.nth(1)).to_contain_text(dead.name)
    await expect(rows.nth(1)).to_contain_text("dead for")
    await expect(rows.nth(1).get_by_role("button")).to_have_count(0)
    await expect(window.page.get_by_role("region", name="Brokers")).to_contain_text("Usage: the fullest of a broker's")


CUT = """() => [...document.querySelectorAll("main td, main .row > span")].filter((cell) => {
  const {left, right} = cell.getBoundingClientRect();
  return cell.checkVisibility() && (left < -1 || right > innerWidth + 1);
}).map((cell) => cell.textContent)"""
TALLEST = """() => Math.max(0, ...[...document.querySelectorAll("main tbody tr")]
  .map((row) => row.getBoundingClientRect().height / parseFloat(getComputedStyle(row).lineHeight)))"""


WHOLE = """() => [...document.querySelectorAll("main .row > span:not(.name)")]
  .filter((cell) => cell.scrollWidth > cell.clientWidth).map((cell) => cell.textContent)"""


async def test_brokers_show_whole_figures_at_every_width(cluster: Cluster, windows: Windows) -> None:
    await cluster.start(2, balancing_interval_s=0.2, capacity={"rate_msg_s": 20.0}, weight_cpu=0.0)
    await assign_all(cluster, await cluster.create("t/n", 8))
    window = await windows.open("overview")
    row = window.page.get_by_role("grid", name="Brokers").get_by_role("row").filter(has_text=cluster.brokers[0].name)
    await expect(row).to_contain_text(re.compile(r"\d\d\.\d %"))
    for width in (1440, 1280, 1024, 768, 390):
        await window.page.set_viewport_size({"width": width, "height": 800})
        await window.page.evaluate(DRAWN)
        assert await window.page.evaluate(WHOLE) == [], width


async def test_a_phone_shows_whole_conditions_of_brokers(cluster: Cluster, windows: Windows) -> None:
    await cluster.start(2)
    window = await windows.open("overview", size=PHONE)
    await kill(cluster, cluster.brokers[1])
    row = window.page.get_by_role("grid", name="Brokers").get_by_role("row").nth(1)
    condition = row.get_by_role("gridcell").nth(3)
    await expect(condition).to_contain_text("dead for")
    assert await condition.evaluate("element => element.scrollWidth <= element.clientWidth")


async def test_a_phone_cuts_no_column_and_has_no_tall_rows(cluster: Cluster, windows: Windows) -> None:
    for at in range(2):
        name = f"lm-{at}.lm-headless.production.svc.cluster.local:8080"
        await cluster.start(advertised=name, balancing_interval_s=0.2)
    bundles = await cluster.create("shop/a-namespace-with-a-name", 4)
    await assign_all(cluster, bundles)
    policy = BundlePolicy(exclude=tuple(f"lm-{at}.lm-headless.production.svc.cluster.local:8080" for at in range(20)))
    await cluster.brokers[0].node.policies.put(Kind.BUNDLE, str(bundles[0]), policy, author="ann", force=True)
    window = await windows.open(size=PHONE)
    for view, shown in {
        "overview": "lm-1",
        "bundles": "assigned",
        "namespaces": "shop/a-namespace",
        "decisions": "tolerance",
        "policies": "exclude",
        "channel": "good for",
    }.items():
        await window.open(view)
        await expect(window.page.locator("main")).to_contain_text(shown)
        assert await window.page.evaluate(CUT) == [], view
        assert await window.page.evaluate(TALLEST) < 9, view


async def test_a_wide_list_of_bundles_shows_load_and_namespace(cluster: Cluster, windows: Windows) -> None:
    await cluster.start()
    bundles = await cluster.create("shop/orders")
    await assign_all(cluster, bundles[:1])
    window = await windows.open("bundles", size=WIDE)
    grid = window.page.get_by_role("grid", name="Bundles")
    heads = await grid.get_by_role("columnheader").all_inner_texts()
    assert heads == ["Bundle", "Namespace", "State", "Owner → target", "Msg/s", "Bytes/s", "Revision"]
    row = grid.get_by_role("row").filter(has_text=str(bundles[0]))
    await expect(row.get_by_role("gridcell").nth(1)).to_have_text("shop/orders")
    await expect(row.get_by_role("gridcell").nth(4)).to_have_text("10", timeout=40_000)
    await window.page.get_by_label("Order").select_option("load")
    await expect(window.page.get_by_text("1 of 4")).to_be_visible()


async def test_namespaces_show_bundles_owners_load_and_policy(cluster: Cluster, windows: Windows) -> None:
    await cluster.start()
    window = await windows.open("namespaces")
    await expect(window.page.locator("main")).to_contain_text("loadmanager namespaces create")
    bundles = await cluster.create("shop/orders")
    await assign_all(cluster, bundles[:3])
    await cluster.ask("POST", "/v1/balancing/pause", json={"namespace": "shop/orders"})
    row = window.page.get_by_role("grid", name="Namespaces").get_by_role("row").filter(has_text="shop/orders")
    cells = row.get_by_role("gridcell")
    await expect(cells.nth(1)).to_have_text("4")
    await expect(cells.nth(2)).to_have_text("0")
    await expect(cells.nth(4)).to_have_text("30", timeout=40_000)
    await expect(cells.nth(6)).to_have_text("paused", timeout=20_000)
    await row.click()
    await expect(window.page.get_by_text("4 of 4")).to_be_visible()


async def test_only_bundles_that_should_have_an_owner_count_as_without_one(cluster: Cluster, windows: Windows) -> None:
    await cluster.start()
    bundles = await cluster.create("shop/orders")
    await assign_all(cluster, bundles[:2])
    window = await windows.open("namespaces")
    cell = window.page.get_by_role("row").filter(has_text="shop/orders").get_by_role("gridcell").nth(2).locator("span")
    asked_later = "2 more: no lookup has asked for them yet"
    await expect(cell).to_have_text("0")
    await expect(cell).to_have_class("quiet")
    await expect(cell).to_have_attribute("title", asked_later)
    await cluster.brokers[0].node.current.operations.unload(bundles[0])
    await expect(cell).to_have_text("1")
    await expect(cell).to_have_class("tag bad")
    await window.open("overview")
    figure = window.page.locator(".figures div").filter(has_text="Without owner").locator("dd")
    await expect(figure).to_have_text("1")
    await expect(figure).to_have_class("error")
    await expect(figure).to_have_attribute("title", asked_later)
    await window.open("bundles")
    states = window.page.get_by_role("grid", name="Bundles").locator(".state")
    await expect(states.filter(has_text="unassigned")).to_have_count(3)
    await expect(window.page.locator(".state.unassigned")).to_have_count(1)  # the red one
    await window.open("namespaces")
    policies = cluster.brokers[0].node.policies
    for bundle in bundles[2:]:
        await policies.put(Kind.BUNDLE, str(bundle), BundlePolicy(quarantined="it killed three"), author="ann")
    await policies.put(Kind.NAMESPACE, "shop/orders", NamespacePolicy(eager=True), author="ann")
    await expect(cell).to_have_text("2", timeout=20_000)  # of an eager namespace all should have one


async def test_empty_views_say_what_fills_them(cluster: Cluster, windows: Windows) -> None:
    await cluster.start(balancing=False)
    window = await windows.open()
    for view, command in {
        "bundles": "loadmanager namespaces create",
        "namespaces": "loadmanager namespaces create",
        "plans": "loadmanager plans propose",
        "policies": "loadmanager policies set",
        "groups": "loadmanager namespaces create",
        "history": "history_dir",
    }.items():
        await window.open(view)
        await expect(window.page.locator("main code").filter(has_text=command).first).to_be_visible()


AXIS = """async () => {
  const {axis} = await import("/dashboard/heat.mjs");
  const end_ms = Date.parse("2026-01-01T12:00:10");
  const texts = (columns, wide, after) => axis({span_s: 30, end_ms}, columns, wide, after).map(({text}) => text);
  return [texts(120, 10, 0), texts(3, 36, 500)];
}"""


async def test_the_heat_map_has_a_time_axis_and_no_empty_part(cluster: Cluster, windows: Windows) -> None:
    await cluster.start()
    window = await windows.open("overview")
    heat = window.page.locator(".heat canvas")
    await expect(heat).to_have_attribute("aria-label", re.compile(r"Usage of 1 brokers over [12] minutes\."))
    hour, minute = await window.page.evaluate(AXIS)
    assert hour == [*(f"11:{at:02}" for at in range(5, 55, 5)), "12:00 now"]
    assert minute == ["11:59", "12:00 now"]


async def test_actions_that_a_role_may_not_use_are_not_offered(guarded: Guarded, windows: Windows) -> None:
    await guarded.start()
    bundles = await guarded.cluster.create("t/n")
    token = await as_role(guarded, AccessRole.VIEWER, "*")
    window = await windows.open("overview", expected="401 404")
    await window.log_in(token)
    await expect(window.page.locator(".who")).to_contain_text("the-viewer (viewer)")
    texts: dict[str, Any] = {"overview": "Balancing", f"bundles?bundle={bundles[0]}": "Actions are not shown"}
    texts |= {"plans": "No plan", "policies?kind=namespace&name=t/n": "Actions are not shown: the-viewer is not admin"}
    for view, shown in texts.items():
        await window.open(view)
        await expect(window.page.locator("main")).to_contain_text(shown)
        await expect(window.page.locator("main .action button")).to_have_count(0)
