"""Real brokers, and a real headless Chromium whose console, requests and violations of the policy are watched."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Locator, Page, Request, async_playwright, expect

from loadmanager.broker.node import Node
from loadmanager.history import published
from loadmanager.history.published import Published
from loadmanager.history.report import Made, made
from loadmanager.model.policies.model import AccessRole
from stack.programs import program
from statechannel.law.bundle import Bundle
from tests.api.access.conftest import Guarded, guarded
from tests.api.conftest import Cluster, cluster
from tests.history.report.made_up import MADE, advice, material, replay

__all__ = ["cluster", "guarded"]

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
WAIT_MS = 15_000
MOST_TABS = 80

expect.set_options(timeout=WAIT_MS)


class Window:
    """A page of one broker. What a page must never do is noted, and fails the test at its end."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.expected: set[str] = set()
        """Statuses (`401`) of answers that the test provokes, `ERR_` for none; Chromium reports each as an error."""
        self.wrong: list[str] = []
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("console", lambda said: self._said(said.type, said.text))
        page.on("request", self._asked)

    async def open(self, view: str = "") -> None:
        """Show a view and wait until it stands."""
        await self.page.goto(f"{self.url}/#/{view}")
        await self.page.wait_for_selector("main")

    async def log_in(self, token: str) -> None:
        await self.page.get_by_label("Token").fill(token)
        await self.page.get_by_role("button", name="Log in").click()

    async def confirm(self, verb: str) -> None:
        """Answer the question of the open dialog, and wait until it is gone."""
        await self.page.get_by_role("dialog").get_by_role("button", name=verb, exact=True).click()
        await self.page.get_by_role("dialog").wait_for(state="detached")

    async def tab_to(self, control: Locator) -> None:
        """Press Tab until the control has the focus."""
        for _ in range(MOST_TABS):
            if await control.evaluate("element => element === document.activeElement"):
                return
            await self.page.keyboard.press("Tab")
        await expect(control).to_be_focused()

    def check(self) -> None:
        assert not self.wrong, "\n".join(self.wrong)

    def _said(self, kind: str, text: str) -> None:
        expected = any(f"status of {status} " in text or f"net::{status}" in text for status in self.expected)
        if kind in ("error", "warning") and not expected:
            self.wrong.append(f"console: {text}")

    def _asked(self, request: Request) -> None:
        asked, own = urlsplit(request.url), urlsplit(self.url)
        if asked.scheme != "blob" and (asked.scheme, asked.netloc) != (own.scheme, own.netloc):
            self.wrong.append(f"a request left the origin: {request.url}")


class Windows:
    """Opens windows, each with storage of its own."""

    def __init__(self, launched: Browser, cluster: Cluster) -> None:
        self._browser = launched
        self._cluster = cluster
        self._open: list[tuple[BrowserContext, Window]] = []

    async def open(
        self, view: str = "", *, theme: str = "light", size: dict[str, int] = DESKTOP, expected: str = "", url: str = ""
    ) -> Window:
        """A window on the first broker (or `url`); `expected` are statuses of errors that the test provokes."""
        context = await self._browser.new_context(color_scheme=theme, viewport=size)  # pyright: ignore
        window = Window(await context.new_page(), url or self._cluster.brokers[0].url)
        window.expected.update(expected.split())
        self._open.append((context, window))
        await window.open(view)
        return window

    async def close(self) -> None:
        for context, _ in self._open:
            await context.close()
        for _, window in self._open:
            window.check()


@pytest_asyncio.fixture
async def windows(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Windows]:
    """Windows on a cluster that the test starts first."""
    async with launched(tmp_path) as browser:
        opened = Windows(browser, cluster)
        yield opened
        await opened.close()


@asynccontextmanager
async def launched(folder: Path) -> AsyncIterator[Browser]:
    """A headless Chromium whose files are in the folder."""
    chromium = program("chromium")
    async with async_playwright() as playwright:
        home: dict[str, str | float | bool] = {
            **os.environ,
            "XDG_CONFIG_HOME": str(folder),
        }  # its settings and caches
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"], env=home)
        try:
            yield browser
        finally:
            await browser.close()


async def assign_all(cluster: Cluster, bundles: tuple[Bundle, ...], owner: Node | None = None) -> None:
    """Have one broker own all of these bundles."""
    node = owner or cluster.brokers[0].node
    operations = cluster.brokers[0].node.current.operations
    await asyncio.gather(*(operations.transfer(bundle, node.settings.advertised) for bundle in bundles))
    await cluster.agree()


def publish_week(root: Path) -> Made:
    """Publish what the jobs make of a week, with their own code: the report, its pictures, a replay, an audit, advice.

    The figures are made up; returns the report.
    """
    report = made(material(), MADE)
    published.publish_page(root, report.html)
    for name, png in report.pictures.items():
        published.publish_picture(root, name, png)
    for each in (replay(), advice(), Published("audit", MADE, [], {"violations": 0})):
        published.publish(root, each.name, each.rows, each.provenance, each.facts)
    return report


async def as_role(guarded: Guarded, role: AccessRole, *namespaces: str) -> str:
    """A token of somebody with this role."""
    await guarded.grant(role, f"the-{role}", *namespaces)
    return guarded.issuer.token(f"the-{role}")
