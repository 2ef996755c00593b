"""What the jobs of the load history published, in a browser: results, pictures, the report, and the life of advice."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from playwright.async_api import expect

from loadmanager.history.advising import publish
from loadmanager.leader.plans.advice import Advice, ChangeSettings, Expected, Measure, Provenance, SettingChange, sealed
from tests.api.conftest import Cluster
from tests.dashboard.conftest import Windows, publish_week

pytestmark = [pytest.mark.slow, pytest.mark.chromium, pytest.mark.xdist_group("dashboard")]

PICTURES = ["heat map", "imbalance", "transfers", "gaps", "replay", "forecast", "capacity"]


async def test_results_pictures_and_the_report(cluster: Cluster, windows: Windows, tmp_path: Path) -> None:
    report = publish_week(tmp_path / "published")
    await cluster.start(history_dir=str(tmp_path / "published"))
    window = await windows.open("history")
    page = window.page
    await expect(page.locator("figure img")).to_have_count(len(PICTURES))
    assert await page.locator("figcaption").all_inner_texts() == PICTURES
    drawn = "all => all.every((image) => image.complete && image.naturalWidth > 400)"
    await page.wait_for_function("document.querySelector('figure:last-child img')?.naturalWidth")
    assert await page.locator("figure img").evaluate_all(drawn)
    async with page.expect_download() as saving:
        await page.get_by_role("button", name="Save the report").click()
    saved = await (await saving.value).path()
    assert saved.read_text() == report.html
    await page.get_by_role("link", name="replay").click()
    result = page.get_by_role("region", name="replay", exact=True)
    await expect(result).to_contain_text("plan:balancing_tolerance=tight costs least, and surely less than what was")
    row = result.get_by_role("row").filter(has_text="recorded")
    await expect(row).to_contain_text("0.125 (0.099 to 0.151)")
    await result.get_by_role("link", name="Close").click()
    await expect(result).to_have_count(0)


def advice() -> Advice:
    now_ms = time.time_ns() // 1_000_000
    return sealed(
        Advice(
            ChangeSettings((SettingChange("balancing_tolerance", "default", 0.15),)),
            "a replay of a week found it better",
            Expected(Measure.SPREAD, 0.5, 0.3, 0.1, 0.3),
            Provenance("standalone", now_ms - 7 * 86_400_000, now_ms, "history advise", "0.1.0", "replay"),
            now_ms + 3_600_000,
        )
    )


async def test_advice_is_approved_applied_and_withdrawn(cluster: Cluster, windows: Windows) -> None:
    await cluster.start(balancing_interval_s=0.2, advice_measure_s=60.0)  # with too few rounds it looks again after 3 s
    await asyncio.to_thread(publish, [advice()], cluster.brokers[0].url)  # as `history advise --propose` does
    window = await windows.open("history")
    page, live = window.page, cluster.brokers[0].node.live
    shown = page.get_by_role("region", name="Advice")
    await expect(shown).to_contain_text("balancing_tolerance: default → 0.15")
    await shown.get_by_role("link").click()
    await expect(page.locator("main")).to_contain_text("a replay of a week found it better")
    await page.get_by_role("button", name="Approve").click()
    await window.confirm("Approve")
    await cluster.until(lambda: live.current.balancing_tolerance == 0.15)
    await page.get_by_role("button", name="Withdraw").click()
    await window.confirm("Withdraw")
    await cluster.until(lambda: live.current.balancing_tolerance == "default")
    await window.open("history")
    await expect(shown).not_to_contain_text("proposed")
