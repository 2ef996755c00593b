"""Every action of the dashboard: done by who may, refused to who may not, and by keyboard alone.

All tests share one cluster that wants tokens; each has a namespace of its own.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from loadmanager.model.policies.model import AccessRole, Kind, NamespacePolicy
from tests.api.access.conftest import Guarded
from tests.api.conftest import Cluster
from tests.dashboard.conftest import Window, Windows, as_role, assign_all, launched

pytestmark = [
    pytest.mark.slow,
    pytest.mark.chromium,
    pytest.mark.xdist_group("dashboard"),
    pytest.mark.asyncio(loop_scope="module"),
]

PAGE = 100
"""Entries of the audit log that are read at once."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    cluster = Cluster(folder, AsyncExitStack())
    try:
        guarded = Guarded(cluster, folder)
        await guarded.start(2, balancing_interval_s=0.3, weight_cpu=0.0)  # there is nothing to balance
        cluster.credentials = guarded.bearer("root")
        yield guarded
    finally:
        await cluster.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    async with launched(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def cluster(guarded: Guarded) -> Cluster:
    return guarded.cluster


@pytest_asyncio.fixture(loop_scope="module")
async def windows(browser: Browser, cluster: Cluster) -> AsyncIterator[Windows]:
    opened = Windows(browser, cluster)
    yield opened
    await opened.close()


async def opened(windows: Windows, view: str, token: str, *, expected: str = "") -> Window:
    """A window in which the token has logged in."""
    window = await windows.open(view, expected=f"401 {expected}")
    await window.log_in(token)
    await expect(window.page.get_by_role("navigation")).to_be_visible()
    return window


async def test_a_bundle_is_unloaded_and_split(guarded: Guarded, cluster: Cluster, windows: Windows) -> None:
    bundles = await cluster.create("t/unloaded", 2)
    await assign_all(cluster, bundles)
    token = await as_role(guarded, AccessRole.OPERATOR, "t/unloaded")
    window = await opened(windows, f"bundles?bundle={bundles[0]}", token, expected="403")
    for label in ("Unload", "Split"):
        await window.page.get_by_role("button", name=label, exact=True).click()
        await window.confirm(label)
        if label == "Unload":
            assert cluster.owner(bundles[0]) is None
            unload = window.page.get_by_role("button", name="Unload", exact=True)
            await expect(unload).to_have_attribute("title", "no broker serves it")
            await assign_all(cluster, bundles[:1])
            await expect(unload).to_have_attribute("aria-disabled", "false")
    known = cluster.brokers[0].node.channel.table.namespace("t/unloaded")
    assert known is not None
    assert len(known.bundles) == 3
    await expect(window.page.get_by_text("This bundle does not exist now.")).to_be_visible()


async def test_a_move_under_way_is_called_off(guarded: Guarded, cluster: Cluster, windows: Windows) -> None:
    bundles = await cluster.create("t/moving", 1)
    await assign_all(cluster, bundles)
    window = await opened(windows, f"bundles?bundle={bundles[0]}", guarded.issuer.token("root"))
    target = cluster.brokers[1]
    target.host.gate.clear()
    operations = cluster.brokers[0].node.current.operations
    moving = asyncio.ensure_future(asyncio.gather(operations.transfer(bundles[0], target.name), return_exceptions=True))
    await window.page.get_by_role("button", name="Cancel", exact=True).click()
    await window.confirm("Call off")
    await cluster.agree()
    assert cluster.owner(bundles[0]) == cluster.brokers[0].name
    target.host.gate.set()
    await moving
    assert cluster.owner(bundles[0]) == cluster.brokers[0].name


async def test_balancing_is_paused_and_resumed(guarded: Guarded, windows: Windows) -> None:
    window = await opened(windows, "overview", guarded.issuer.token("root"))
    figures = window.page.locator(".figures")
    await figures.get_by_role("button", name="Pause").click()
    await window.page.get_by_label("Reason").fill("a storm")
    await window.confirm("Pause")
    await expect(figures).to_contain_text("paused: a storm")
    await figures.get_by_role("button", name="Resume").click()
    await window.confirm("Resume")
    await expect(figures).not_to_contain_text("paused")


async def test_plans_are_rejected_cancelled_and_verified(guarded: Guarded, cluster: Cluster, windows: Windows) -> None:
    bundles = await cluster.create("t/planned", 2)
    await assign_all(cluster, bundles)
    window = await opened(windows, "plans", guarded.issuer.token("root"), expected="409")
    page, dialog = window.page, window.page.get_by_role("dialog")
    await page.get_by_role("button", name="Propose", exact=True).click()
    await dialog.get_by_role("button", name="Propose", exact=True).click()
    await expect(dialog.get_by_role("alert")).to_contain_text("nothing")  # and the dialog says so
    await dialog.get_by_role("button", name="Keep as it is").click()
    plan = page.get_by_role("region", name=re.compile("Plan "))
    ways = {"rejected": ("Reject",), "cancelled": ("Approve", "Cancel"), "verified": ("Approve", "Run", "Verify")}
    for state, verbs in ways.items():
        await window.open("plans")
        await page.get_by_role("button", name="Unload in waves").click()
        await page.get_by_label("Namespace", exact=True).fill("t/planned")
        await page.get_by_label("To (else lookups place them)").fill(cluster.brokers[1].name)
        await window.confirm("Propose")
        for verb in verbs:
            await plan.get_by_role("button", name=verb, exact=True).click()
            await window.confirm(verb)
        await expect(plan.locator("dd .state").first).to_have_text(state)
    assert all(cluster.owner(bundle) == cluster.brokers[1].name for bundle in bundles)


async def test_a_policy_of_somebody_else_is_not_overwritten(
    guarded: Guarded, cluster: Cluster, windows: Windows
) -> None:
    await cluster.create("t/ruled", 1)
    policies = cluster.brokers[0].node.policies
    window = await opened(windows, "policies", guarded.issuer.token("root"), expected="404 409")
    page, text = window.page, window.page.get_by_label("Document, as JSON")
    await page.get_by_role("button", name="Another").click()
    await page.get_by_label("Name: a namespace").fill("t/ruled")
    await window.confirm("Open")
    await expect(text).to_have_value("{}")  # else what comes from the broker meets what is typed
    await text.fill('{"paused": true}')
    await page.get_by_role("button", name="Save").click()
    await policies.put(Kind.NAMESPACE, "t/ruled", NamespacePolicy(eager=True), author="bob", reason="first")
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("bob")
    await dialog.get_by_role("button", name="Keep as it is").click()
    notice = page.get_by_role("alert").filter(has_text="bob wrote version 1 meanwhile")
    await expect(notice).to_be_visible()
    for typed in ("{}", '{"paused": true}'):
        await text.fill(typed)
        await expect(notice).to_be_visible()
    await notice.get_by_role("button", name="Keep my text").click()
    await expect(notice).to_have_count(0)
    await page.get_by_role("button", name="Save").click()
    await window.confirm("Save")
    await expect(text).to_have_value('{"paused": true}')
    _, found, _ = await cluster.ask("GET", "/v1/policies/namespace/t/ruled")
    assert (found["version"], found["policy"]) == (2, {"paused": True})
    await policies.put(Kind.NAMESPACE, "t/ruled", NamespacePolicy(eager=True), author="bob", reason="again")
    await page.get_by_role("button", name="Take version 3").click()
    await expect(text).to_have_value(re.compile('"eager": true'))
    await page.get_by_role("button", name="Dry run of a delete").click()
    await expect(page.get_by_role("status").filter(has_text="of a delete")).to_contain_text("nothing was written")
    await page.get_by_role("button", name="Delete", exact=True).click()
    await window.confirm("Delete")
    await expect(page.get_by_role("table", name="History")).to_contain_text("deleted")
    assert (await cluster.ask("GET", "/v1/policies/namespace/t/ruled"))[0] == 404


async def test_the_audit_log_is_filtered_read_back_and_opened(
    guarded: Guarded, cluster: Cluster, windows: Windows
) -> None:
    for _ in range(PAGE + 1):
        await cluster.ask("POST", "/v1/balancing/resume", json={})
    await cluster.ask("DELETE", "/v1/policies/namespace/t/never")
    window = await opened(windows, "audit", guarded.issuer.token("root"))
    page, log = window.page, window.page.get_by_role("table", name="Audit log")
    await page.get_by_label("action").fill("resume")
    await page.get_by_role("button", name="Show").click()
    await expect(log.get_by_role("row")).to_have_count(PAGE + 1)  # and the headings
    await page.get_by_role("button", name="Older").click()
    await expect(log.get_by_role("row").nth(PAGE + 1)).to_be_visible()
    await page.get_by_label("action").fill("")
    await page.get_by_label("result").select_option("refused")
    await page.get_by_role("button", name="Show").click()
    await expect(log).not_to_contain_text("resume")
    await log.get_by_role("button", name="root").first.click()
    entry = page.get_by_role("region", name=re.compile("by root"))
    await expect(entry).to_contain_text("t/never")
    await entry.get_by_role("button", name="Close").click()
    await expect(entry).to_have_count(0)


async def test_settings_merges_and_operations_by_the_form(guarded: Guarded, cluster: Cluster, windows: Windows) -> None:
    bundles = await cluster.create("t/merged", 2)
    await assign_all(cluster, bundles)
    window = await opened(windows, "api", guarded.issuer.token("root"), expected="409")
    answer = window.page.locator("pre").first

    async def send(operation: str, body: str = "", **values: str) -> None:
        await window.open(f"api?id={operation}")
        for name, value in values.items():
            await window.page.get_by_label(re.compile(rf"^{name}\b")).fill(value)
        if body:
            await window.page.get_by_label("body JSON").fill(body)
        await window.page.get_by_role("button", name="Send", exact=True).click()

    await send("set_setting", '{"value": 77, "reason": "a test"}', name="overloaded_percent")
    await window.confirm("Send")
    await cluster.until(lambda: cluster.brokers[1].node.live.current.overloaded_percent == 77)
    names = ", ".join(f'"{each}"' for each in bundles)
    await send("merge_bundles", f'{{"bundles": [{names}]}}', Prefer="respond-async")
    await window.confirm("Send")
    await expect(answer).to_contain_text('"id"')
    operation = re.search(r'"id": "(\w+)"', await answer.inner_text())
    assert operation is not None
    known = cluster.brokers[0].node.channel.table
    await cluster.until(lambda: (found := known.namespace("t/merged")) is not None and len(found.bundles) == 1)
    await send("cancel_operation", operation_id=operation[1])
    dialog = window.page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Send", exact=True).click()
    await expect(dialog.get_by_role("alert")).to_contain_text("has ended")


FORBIDDEN = {
    AccessRole.VIEWER: {
        "overview": ("Drain", "Pause"),
        "bundles?bundle={bundle}": ("Transfer", "Unload", "Split"),
        "plans": ("Propose", "Unload in waves"),
        "plans?id={plan}": ("Approve", "Reject"),
        "policies?kind=namespace&name=t/held": ("Dry run", "Save", "Dry run of a delete", "Delete"),
    },
    AccessRole.OPERATOR: {"policies?kind=namespace&name=t/held": ("Dry run", "Save", "Dry run of a delete", "Delete")},
}


@pytest.mark.parametrize("role", list(FORBIDDEN))
async def test_what_a_role_forbids_is_not_offered(
    guarded: Guarded, cluster: Cluster, windows: Windows, role: AccessRole
) -> None:
    if not cluster.brokers[0].node.channel.table.namespace("t/held"):
        await assign_all(cluster, await cluster.create("t/held", 1))
        await cluster.brokers[0].node.policies.put(Kind.NAMESPACE, "t/held", NamespacePolicy(eager=True), author="ann")
    known = cluster.brokers[0].node.channel.table.namespace("t/held")
    assert known is not None
    body = {"namespace": "t/held", "to": cluster.brokers[1].name, "review": True}
    _, plan, _ = await cluster.ask("POST", "/v1/plans/unload", json=body)
    before = cluster.history()
    window = await opened(windows, "overview", await as_role(guarded, role, "*"))
    for view, labels in FORBIDDEN[role].items():
        await window.open(view.format(bundle=known.bundles[0], plan=plan["id"]))
        await expect(window.page.get_by_text("reading …")).to_have_count(0)
        if "?" in view:
            why = re.compile(rf"Actions are not shown: the-{role} is not (operator|admin) in ")
            await expect(window.page.locator("main")).to_contain_text(why)
        for label in labels:
            await expect(window.page.get_by_role("button", name=label, exact=True)).to_have_count(0)
    assert cluster.history() == before
    assert (await cluster.ask("GET", f"/v1/plans/{plan['id']}"))[1]["state"] == "proposed"


async def test_a_viewer_of_two_namespaces_chooses_one(guarded: Guarded, cluster: Cluster, windows: Windows) -> None:
    await cluster.create("t/first", 3)
    await cluster.create("t/second", 5)
    await guarded.grant(AccessRole.VIEWER, "two", "t/first", "t/second")
    token = guarded.issuer.token("two")
    window = await opened(windows, "bundles", token, expected="403")
    await expect(window.page.get_by_text("3 of 3")).to_be_visible()
    await window.page.get_by_label("Namespace").fill("t/second")
    await window.page.keyboard.press("Enter")
    await expect(window.page.get_by_text("5 of 5")).to_be_visible()


async def test_an_operator_needs_no_mouse(guarded: Guarded, cluster: Cluster, windows: Windows) -> None:
    await cluster.create("t/keys", 1)
    window = await windows.open("overview", expected="401 404")
    page, press = window.page, window.page.keyboard.press
    await window.tab_to(page.get_by_label("Token"))
    await page.keyboard.type(guarded.issuer.token("root"))
    await press("Enter")
    row = page.get_by_role("row").filter(has_text=cluster.brokers[1].name)
    drain = row.get_by_role("button")
    await window.tab_to(page.get_by_role("grid", name="Brokers"))
    await press("ArrowDown")
    for label, verb in (("Drain", "Drain"), ("Undrain", "End the drain")):
        await expect(drain).to_have_text(label)
        await window.tab_to(drain)
        await press("Enter")
        await window.tab_to(page.get_by_role("dialog").get_by_role("button", name=verb, exact=True))
        await press("Enter")
        await page.get_by_role("dialog").wait_for(state="detached")
    await expect(drain).to_have_text("Drain")
    await window.open("policies?kind=namespace&name=t/keys")
    text = page.get_by_label("Document, as JSON")
    await expect(text).to_have_value("{}")
    await window.tab_to(text)
    await press("Control+a")
    await page.keyboard.type('{"paused": true}')
    await window.tab_to(page.get_by_role("button", name="Save"))
    await press("Enter")
    await window.tab_to(page.get_by_role("dialog").get_by_role("button", name="Save"))
    await press("Enter")
    await expect(page.get_by_role("table", name="History")).to_contain_text("root")
    await window.tab_to(page.get_by_role("button", name="Log out"))
    await press("Enter")
    await expect(page.get_by_label("Token")).to_be_focused()
