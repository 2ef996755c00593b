"""What the dashboard shows while bundles move, and what an operator does with it, by mouse and by keyboard."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import urlsplit

import pytest
from playwright.async_api import expect

from loadmanager.model.policies.model import BrokerPolicy, Kind, NamespacePolicy
from tests.api.conftest import WAIT_S, Cluster
from tests.api.test_policies import ONLY_RULES
from tests.dashboard.conftest import Windows, assign_all

pytestmark = [pytest.mark.slow, pytest.mark.chromium, pytest.mark.xdist_group("dashboard")]


async def test_a_transfer_is_followed_without_another_request(cluster: Cluster, windows: Windows) -> None:
    await cluster.start(2)
    bundles = await cluster.create("t/n")
    await assign_all(cluster, bundles)
    window = await windows.open("bundles")
    row = window.page.get_by_role("row").filter(has_text=str(bundles[1]))
    await expect(row).to_contain_text(cluster.brokers[0].name)
    asked: list[str] = []
    window.page.on("request", lambda request: asked.append(urlsplit(request.url).path))
    await cluster.brokers[1].node.current.operations.transfer(bundles[1], cluster.brokers[1].name)
    await expect(row).to_contain_text(cluster.brokers[1].name, timeout=1000 * WAIT_S)
    now_and_then = {"/v1/brokers", "/v1/health", "/v1/bundles"}  # figures; for loads the hottest bundles only
    assert set(asked) <= now_and_then, "the watch told it"
    await window.page.get_by_role("link", name="Overview").click()
    ended = window.page.get_by_role("list", name="Moves that ended")
    await expect(ended).to_contain_text(f"{cluster.brokers[0].name} → {cluster.brokers[1].name}")


async def test_a_move_under_way_is_shown_until_it_ends(cluster: Cluster, windows: Windows) -> None:
    await cluster.start(2)
    bundles = await cluster.create("t/n")
    await assign_all(cluster, bundles)
    window = await windows.open("overview")
    await expect(window.page.locator("#bundle-count")).to_have_text("4")
    target = cluster.brokers[1]
    target.host.gate.clear()
    moving = asyncio.create_task(cluster.brokers[0].node.current.operations.transfer(bundles[0], target.name))
    under_way = window.page.get_by_role("list", name="Moves under way")
    await expect(under_way).to_contain_text(str(bundles[0]))
    target.host.gate.set()
    await moving
    await expect(under_way.get_by_role("listitem")).to_have_count(0)


async def test_a_bundle_is_transferred_by_hand_after_a_confirmation(cluster: Cluster, windows: Windows) -> None:
    await cluster.start(2)
    bundles = await cluster.create("t/n")
    await assign_all(cluster, bundles)
    window = await windows.open(f"bundles?bundle={bundles[2]}")
    await window.page.get_by_role("button", name="Transfer").click()
    await window.page.get_by_role("dialog").get_by_role("button", name="Keep as it is").click()
    await cluster.agree()
    assert cluster.owner(bundles[2]) == cluster.brokers[0].name
    await window.page.get_by_role("button", name="Transfer").click()
    await window.page.get_by_label("New owner").select_option(cluster.brokers[1].name)
    await window.confirm("Transfer")
    await cluster.agree()
    assert cluster.owner(bundles[2]) == cluster.brokers[1].name
    await expect(window.page.get_by_role("region", name="Records")).to_contain_text("transfer")


async def test_a_refusal_of_the_broker_stands_in_the_dialog(cluster: Cluster, windows: Windows) -> None:
    await cluster.start(2)
    bundles = await cluster.create("t/n")
    window = await windows.open(f"bundles?bundle={bundles[0]}", expected="409")
    await window.page.get_by_role("button", name="Transfer").click()
    await assign_all(cluster, bundles)
    await window.page.get_by_label("New owner").select_option(cluster.brokers[0].name)
    await window.page.get_by_role("dialog").get_by_role("button", name="Transfer", exact=True).click()
    await expect(window.page.get_by_role("dialog").get_by_role("alert")).to_contain_text(cluster.brokers[0].name)


async def test_a_broker_is_drained_and_undrained_by_hand(cluster: Cluster, windows: Windows) -> None:
    await cluster.start(2, balancing_interval_s=0.2)
    bundles = await cluster.create("t/n")
    other = cluster.brokers[1]
    await assign_all(cluster, bundles, other.node)
    window = await windows.open("overview")
    row = window.page.get_by_role("row").filter(has_text=other.name)
    await row.get_by_role("button", name="Drain").click()
    await window.confirm("Drain")
    await cluster.until(lambda: all(cluster.owner(bundle) == cluster.brokers[0].name for bundle in bundles))
    await expect(row).to_contain_text("drained")
    await row.get_by_role("button", name="Undrain").click()
    await window.confirm("End the drain")
    await expect(row).not_to_contain_text("drained")


async def test_a_plan_is_reviewed_approved_run_and_undone(cluster: Cluster, windows: Windows) -> None:
    await cluster.start(2, balancing_interval_s=0.5, weight_cpu=0.0)  # the leader itself has nothing to balance
    bundles = await cluster.create("t/n")
    await assign_all(cluster, bundles)
    target = cluster.brokers[1].name
    window = await windows.open("plans")
    await window.page.get_by_role("button", name="Unload in waves").click()
    await window.page.get_by_label("Namespace", exact=True).fill("t/n")
    await window.page.get_by_label("To (else lookups place them)").fill(target)
    await window.confirm("Propose")
    plan = window.page.get_by_role("region", name=re.compile("Plan "))
    await expect(plan.get_by_role("table", name="Moves")).to_contain_text(str(bundles[0]))
    assert cluster.owner(bundles[0]) == cluster.brokers[0].name, "nothing moves before somebody approved it"
    for verb in ("Approve", "Run"):
        await plan.get_by_role("button", name=verb).click()
        await window.confirm(verb)
    await cluster.until(lambda: all(cluster.owner(bundle) == target for bundle in bundles))
    await expect(plan).to_contain_text("4 done")
    await plan.get_by_role("button", name="Undo").click()
    await window.confirm("Undo")
    await expect(window.page.get_by_role("region", name="Plans")).to_contain_text("proposed")


async def test_a_route_is_found_and_tried(cluster: Cluster, windows: Windows) -> None:
    await cluster.start()
    bundles = await cluster.create("t/n", 5)
    window = await windows.open("api", expected="412")
    page = window.page
    await page.get_by_label("Search").fill("/v1/bundles")
    await page.get_by_role("link", name="/v1/bundles", exact=True).click()
    await page.get_by_label("namespace query").fill("t/n")
    await page.get_by_label("limit query").fill("2")
    await page.get_by_role("button", name="Send", exact=True).click()
    await expect(page.get_by_text("Link")).to_be_visible()
    await expect(page.locator("pre").first).to_contain_text(str(bundles[1]))
    await window.open("api?id=split_bundle")
    for name, value in (("tenant", "t"), ("namespace", "n"), ("hash_range", bundles[0].range)):
        await page.get_by_label(f"{name} *").fill(value)
    await page.get_by_label("Idempotency-Key").fill("k")
    await page.get_by_label("body JSON").fill('{"parts": 1}')
    await page.get_by_role("button", name="Send", exact=True).click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Split the bundle in two")
    await dialog.get_by_role("button", name="Send", exact=True).click()
    await expect(dialog.get_by_role("alert")).to_contain_text("2 to 256")
    await dialog.get_by_role("button", name="Keep as it is").click()
    assert len((await cluster.ask("GET", "/v1/bundles"))[1]["bundles"]) == 5


async def test_a_policy_is_tried_before_it_is_written(cluster: Cluster, windows: Windows) -> None:
    await cluster.start(2)
    bundles = await cluster.create("t/n")
    await assign_all(cluster, bundles)
    name = cluster.brokers[0].name
    window = await windows.open(f"policies?kind=broker&name={name}", expected="404")  # it has no history
    await window.page.get_by_label("Document, as JSON").fill('{"drain": true}')
    await window.page.get_by_role("button", name="Dry run", exact=True).click()
    await expect(window.page.locator(".tried")).to_contain_text("4 bundles would have to move")
    assert name not in cluster.brokers[0].node.policies.current().brokers
    await window.page.get_by_role("button", name="Save").click()
    await window.confirm("Save")
    await cluster.until(lambda: name in cluster.brokers[0].node.policies.current().brokers)
    await window.page.get_by_label("Document, as JSON").fill("{drain")
    await window.page.get_by_role("button", name="Dry run", exact=True).click()
    await expect(window.page.get_by_role("alert")).to_contain_text("This is not JSON")


async def test_the_why_panel_names_what_keeps_a_bundle_and_what_would_move_it(
    cluster: Cluster, windows: Windows
) -> None:
    await cluster.start(2, balancing_interval_s=0.2, **ONLY_RULES)  # a busy machine must not move it
    bundles = await cluster.create("t/n")
    await assign_all(cluster, bundles)
    window = await windows.open(f"bundles?bundle={bundles[0]}")
    why = window.page.get_by_role("region", name="Why is it there?")
    for heading in ("How it came there", "Why it stays", "It would move if", "Where it might go"):
        await expect(why).to_contain_text(heading)
    await window.open("decisions")
    await window.page.get_by_role("table", name="Decisions").get_by_role("link").first.click()
    decision = window.page.get_by_role("region", name=re.compile(r"Decision \d"))
    await expect(decision).to_contain_text("Refused candidates")
    await decision.get_by_role("button", name="Decide again").click()
    await expect(decision.get_by_role("status")).to_contain_text("The same input gives the same decision")


async def test_a_decision_names_the_brokers_that_took_no_part(cluster: Cluster, windows: Windows) -> None:
    await cluster.start(2, balancing_interval_s=0.2)
    name, node = cluster.brokers[1].name, cluster.brokers[0].node
    await node.policies.put(Kind.BROKER, name, BrokerPolicy(paused=True), author="ann", reason="a test")

    async def left_out() -> str | None:
        _, page, _ = await cluster.ask("GET", "/v1/decisions?limit=1")
        for each in page["decisions"]:
            _, shown, _ = await cluster.ask("GET", f"/v1/decisions/{each['id']}")
            if any(refused["subject"].startswith(name) for refused in shown["decision"]["refused"]):
                return each["id"]
        return None

    async with asyncio.timeout(WAIT_S):
        while (decision := await left_out()) is None:
            await asyncio.sleep(0.05)
    window = await windows.open(f"decisions?id={decision}")
    absent = window.page.get_by_role("table", name="Brokers and bundles that took no part")
    await absent.get_by_role("link", name=re.compile(name)).click()
    await expect(window.page.get_by_role("region", name=f"Why does {name} have what it has?")).to_be_visible()


async def test_everything_is_reached_without_a_mouse(cluster: Cluster, windows: Windows) -> None:
    await cluster.start(2)
    bundles = await cluster.create("t/n", 64)
    await assign_all(cluster, bundles)
    window = await windows.open()
    page, press = window.page, window.page.keyboard.press
    await press("Tab")
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await press("Tab")
    await press("Tab")
    await press("Enter")
    grid = page.get_by_role("grid", name="Bundles")
    await expect(grid).to_have_attribute("aria-rowcount", "65")
    for _ in range(30):
        if await grid.evaluate("element => element === document.activeElement"):
            break
        await press("Tab")
    await expect(grid).to_be_focused()
    for key in ("End", "ArrowUp", "Enter"):
        await press(key)
    await expect(page).to_have_url(f"{window.url}/#/bundles?bundle={str(bundles[-2]).replace('/', '%2F')}")
    transfer = page.get_by_role("button", name="Transfer")
    await expect(transfer).to_be_visible()
    for _ in range(20):
        if await page.evaluate("document.activeElement.textContent") == "Transfer":
            break
        await press("Tab")
    await expect(transfer).to_be_focused()
    await press("Enter")
    await page.get_by_role("dialog").wait_for()
    await press("Escape")
    await page.get_by_role("dialog").wait_for(state="detached")
    await expect(transfer).to_be_focused()
    await press("Enter")
    await page.get_by_role("dialog").get_by_label("New owner").focus()
    await press("Enter")  # in a field it does what the main button does
    await page.get_by_role("dialog").get_by_role("button", name="Transfer", exact=True).focus()
    await press("Enter")
    await cluster.until(lambda: cluster.owner(bundles[-2]) == cluster.brokers[1].name)


async def test_text_of_others_is_never_markup(cluster: Cluster, windows: Windows) -> None:
    await cluster.start(1)
    await cluster.create("t/n")
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    await cluster.brokers[0].node.policies.put(
        Kind.NAMESPACE, "t/n", NamespacePolicy(paused=True), author=hostile, reason=hostile
    )
    window = await windows.open("policies?kind=namespace&name=t/n")
    await expect(window.page.get_by_role("region", name="Policies")).to_contain_text(hostile)
    assert await window.page.locator("main img, main script").count() == 0
