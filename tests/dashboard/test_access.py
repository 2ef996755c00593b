"""Log-in, roles, and what a page must never do: leave its origin, run foreign script, keep a secret."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from loadmanager.model.policies.model import AccessRole
from tests.api.access.conftest import Guarded
from tests.api.access.issuing import Issuer, jwks
from tests.api.conftest import Cluster
from tests.dashboard.conftest import Windows, as_role, assign_all

pytestmark = [pytest.mark.slow, pytest.mark.chromium, pytest.mark.xdist_group("dashboard")]

ACTED = """async ([method, path, body]) => {
  const headers = {Authorization: `Bearer ${sessionStorage.getItem("loadmanager.token")}`, "Content-Type": "application/json"};
  return (await fetch(path, {method, headers, body})).status;
}"""  # noqa: E501


async def test_a_wrong_token_is_refused_with_the_reason_and_a_good_one_enters(
    guarded: Guarded, windows: Windows
) -> None:
    await guarded.start()
    window = await windows.open(expected="401")
    await window.log_in(Issuer("k1").token("root"))
    await expect(window.page.get_by_role("alert")).to_contain_text("signature")
    await window.log_in(guarded.issuer.token("root", exp=1))
    await expect(window.page.get_by_role("alert")).to_contain_text("expired")
    await window.log_in(guarded.issuer.token("root"))
    await expect(window.page.get_by_role("navigation")).to_be_visible()
    assert await window.page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    await window.page.reload()
    await expect(window.page.get_by_role("navigation")).to_be_visible()
    await window.page.get_by_role("button", name="Log out").click()
    await expect(window.page.get_by_label("Token")).to_be_visible()
    assert await window.page.evaluate("sessionStorage.length") == 0


async def test_somebody_without_a_role_hears_which_one_is_missing(guarded: Guarded, windows: Windows) -> None:
    await guarded.start()
    window = await windows.open(expected="401 403")
    await window.log_in(guarded.issuer.token("nobody"))
    await expect(window.page.get_by_role("alert")).to_contain_text("nobody is not client in any namespace")


async def test_a_viewer_sees_everything_and_can_change_nothing(guarded: Guarded, windows: Windows) -> None:
    cluster = guarded.cluster
    await guarded.start(2)
    bundles = await cluster.create("t/n")
    await assign_all(cluster, bundles)
    token = await as_role(guarded, AccessRole.VIEWER, "*")
    window = await windows.open(f"bundles?bundle={bundles[0]}", expected="401 403")
    await window.log_in(token)
    await expect(window.page.locator("main")).to_contain_text("the-viewer is not operator in t/n")
    for label in ("Transfer", "Unload", "Split"):
        await expect(window.page.get_by_role("button", name=label, exact=True)).to_have_count(0)
    tenant, name, span = str(bundles[0]).split("/")
    attempts = [
        ("PUT", f"/admin/v2/namespaces/{tenant}/{name}/{span}/unload", None),
        ("PUT", f"/v1/brokers/{cluster.brokers[1].name}/drain?by_policy=true", None),
        ("POST", "/v1/plans", "{}"),
        ("POST", "/v1/balancing/pause", "{}"),
        ("PUT", f"/v1/policies/broker/{cluster.brokers[1].name}", '{"drain": true}'),
    ]
    for attempt in attempts:
        assert await window.page.evaluate(ACTED, list(attempt)) == 403, attempt
    await window.page.get_by_role("link", name="Audit").click()
    await expect(window.page.locator("main")).to_contain_text("the-viewer is not admin in the cluster")
    await cluster.agree()
    assert cluster.owner(bundles[0]) == cluster.brokers[0].name


async def test_a_viewer_of_one_namespace_sees_its_bundles(guarded: Guarded, windows: Windows) -> None:
    await guarded.start()
    await guarded.cluster.create("t/n", 3)
    await guarded.cluster.create("t/other", 5)
    token = await as_role(guarded, AccessRole.VIEWER, "t/n")
    window = await windows.open("bundles", expected="401 403")
    await window.log_in(token)
    await expect(window.page.get_by_text("3 of 3")).to_be_visible()


async def test_a_token_that_ends_leads_back_to_the_log_in(guarded: Guarded, windows: Windows) -> None:
    await guarded.start()
    window = await windows.open(expected="401")
    await window.log_in(guarded.issuer.token("root"))
    await expect(window.page.get_by_role("navigation")).to_be_visible()
    other = Issuer("k2")
    guarded.keys.write_bytes(jwks(other))
    await expect(window.page.get_by_label("Token")).to_be_visible()
    await window.log_in(other.token("root"))
    await expect(window.page.get_by_role("navigation")).to_be_visible()


async def test_the_policy_of_the_page_stops_foreign_script_requests_and_frames(
    cluster: Cluster, windows: Windows
) -> None:
    await cluster.start()
    window = await windows.open()
    page = window.page
    stopped = """() => new Promise((told) => {
      document.addEventListener("securitypolicyviolation", (event) => told(event.violatedDirective), {once: true});
      %s
    })"""
    for tag, more, directive in (
        ("script", "textContent: 'window.ran = 1'", "script-src"),
        ("iframe", "src: '/'", "frame-src"),
        ("img", "src: 'http://127.0.0.1:9/x.png'", "img-src"),
        ("link", "rel: 'stylesheet', href: 'http://127.0.0.1:9/x.css'", "style-src"),
    ):
        attempt = f"document.body.append(Object.assign(document.createElement('{tag}'), {{{more}}}))"
        assert (await page.evaluate(stopped % attempt)).startswith(directive)
    assert await page.evaluate(stopped % "fetch('http://127.0.0.1:9/').catch(() => {})") == "connect-src"
    assert await page.evaluate("window.ran") is None
    assert any("Content Security Policy" in said for said in window.wrong), "a violation fails a test"
    window.wrong.clear()
