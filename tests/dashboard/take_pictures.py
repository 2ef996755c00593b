"""Takes the pictures of docs/dashboard.md, of real brokers under load: `python -m tests.dashboard.take_pictures`.

Takes two minutes, since the heat map needs some time to show.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import shutil
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from playwright.async_api import Browser, async_playwright, expect

from loadmanager.model.host import BundleLoad
from statechannel.law.bundle import Bundle
from tests.api import conftest
from tests.api.conftest import Cluster, Host
from tests.api.test_advised_plans import wish
from tests.dashboard.conftest import DESKTOP, PHONE, publish_week

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SECONDS = 100.0
NAMESPACES = ("shop/carts", "shop/orders", "mail/inbox")


class Loaded(Host):
    """A service whose bundles have loads of very different size, and take a moment to move."""

    async def acquire(self, bundle: Bundle, *arguments: object) -> None:
        await asyncio.sleep(0.2)
        await super().acquire(bundle, *arguments)  # pyright: ignore

    async def load(self) -> dict[Bundle, BundleLoad]:
        return {bundle: _load(bundle) for bundle in self.held}


def _load(bundle: Bundle) -> BundleLoad:
    rank = int(hashlib.sha256(str(bundle).encode()).hexdigest()[:6], 16) / 0xFFFFFF
    rate = (100 + 2_500 * rank**4) * random.uniform(0.6, 1.4)
    return BundleLoad(keys=int(rate), in_rate_msg_s=rate, in_rate_bytes_s=500 * rate, sessions=int(rate / 100))


async def take(cluster: Cluster, published: Path) -> None:
    conftest.Host = Loaded
    publish_week(published)
    live = {"balancing_interval_s": 15.0, "bundle_rest_s": 20.0, "balancing_budget": 0.1, "history_dir": str(published)}
    await cluster.start(6, capacity={"rate_msg_s": 12_000.0}, **live)
    bundles = [bundle for name in NAMESPACES for bundle in await cluster.create(name, 16)]
    operations = cluster.brokers[0].node.current.operations
    await asyncio.gather(
        *(operations.transfer(bundle, cluster.brokers[at % 3].name) for at, bundle in enumerate(bundles))
    )
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        url, heavy = cluster.brokers[0].url, max(bundles, key=lambda bundle: _load(bundle).in_rate_msg_s)
        seen = asyncio.create_task(_picture(browser, url, "overview", "overview", "light", DESKTOP, SECONDS))
        await asyncio.sleep(SECONDS - 1)
        moving = asyncio.gather(
            *(operations.transfer(each, cluster.brokers[5].name) for each in bundles[:3]), return_exceptions=True
        )
        await seen
        await moving
        await _picture(browser, url, "bundle", f"bundles?bundle={heavy}", "light", DESKTOP)
        await _picture(browser, url, "dark", "decisions?id=1.1", "dark", DESKTOP)
        await cluster.ask("POST", "/v1/plans/advice", json=wish())
        await _picture(browser, url, "history", "history?name=replay", "light", DESKTOP)
        await _picture(browser, url, "phone", "overview", "light", PHONE)
        await browser.close()


async def _picture(
    browser: Browser, url: str, name: str, view: str, theme: str, size: dict[str, int], wait_s: float = 3.0
) -> None:
    page = await browser.new_page(color_scheme=theme, viewport=size)  # pyright: ignore
    await page.goto(f"{url}/#/{view}")
    await page.wait_for_timeout(1000 * wait_s)
    await expect(page.get_by_text("reading …")).to_have_count(0, timeout=60_000)
    await page.screenshot(path=PICTURES / f"dashboard-{name}.png")
    await page.close()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), AsyncExitStack())
        try:
            await take(cluster, Path(folder) / "published")
        finally:
            await cluster.close()


if __name__ == "__main__":
    asyncio.run(main())
