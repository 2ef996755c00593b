"""The dashboard of one broker with 100,000 bundles in a headless Chromium: when it paints, and when its data is there.

*First paint* and *first contentful paint* are Chromium's own entries, from the beginning of the navigation. The data is
there when the page counts all bundles: then it has read the snapshot of `/v1/watch`. Median of five pages, each in a
context of its own, so nothing comes from a cache.
"""

from __future__ import annotations

import shutil
import time

from playwright.sync_api import Browser, sync_playwright

from bench.backends import carrier
from bench.cluster import BrokerProcess, create_namespace, longest_turn_ms
from bench.figures import emit, median

NAMESPACES, BUNDLES_EACH = 100, 1_000
PAGES = 5
PAINT_MS, DATA_MS = 1_000.0, 5_000.0
ALL = f"{NAMESPACES * BUNDLES_EACH:,} of {NAMESPACES * BUNDLES_EACH:,}"
WAIT_MS = 120_000
PAINTS = (
    """() => Object.fromEntries(performance.getEntriesByType("paint").map((each) => [each.name, each.startTime]))"""
)


def run(kind: str) -> None:
    """All figures of this bench."""
    with carrier(kind) as where:
        broker = BrokerProcess(where)
        try:
            broker.await_ready()
            for number in range(NAMESPACES):
                create_namespace(broker, f"bench/shown-{number}", BUNDLES_EACH)
            with sync_playwright() as playwright:
                arguments = {"executable_path": shutil.which("chromium"), "args": ["--no-sandbox"]}
                browser = playwright.chromium.launch(**arguments)
                pages = [_open(browser, broker) for _ in range(PAGES + 1)][1:]  # the first one warms the broker up
                browser.close()
            _show(kind, pages, longest_turn_ms(broker))
        finally:
            broker.end()


def _show(kind: str, pages: list[dict[str, float]], turn_ms: float) -> None:
    of = f"{NAMESPACES * BUNDLES_EACH:,} bundles"
    paint_ms, data_ms = (median([page[what] for page in pages]) for what in ("first-contentful-paint", "data"))
    emit(
        "dashboard", f"first contentful paint, {of}, {kind}", paint_ms, "ms", target=f"≤ {PAINT_MS:g}",
        met=paint_ms <= PAINT_MS, first_paint_ms=round(median([page["first-paint"] for page in pages])),
    )  # fmt: skip
    emit(
        "dashboard", f"all data, {of}, {kind}", data_ms, "ms", target=f"≤ {DATA_MS:g}", met=data_ms <= DATA_MS,
        longest_ms=round(max(page["data"] for page in pages)), longest_turn_ms=round(turn_ms, 1),
    )  # fmt: skip


def _open(browser: Browser, broker: BrokerProcess) -> dict[str, float]:
    """Show the bundles in a new page; milliseconds until each of its stages."""
    with browser.new_context() as context:
        page = context.new_page()
        begin = time.perf_counter()
        page.goto(f"http://{broker.name}/#/bundles")
        page.get_by_text(ALL, exact=True).wait_for(timeout=WAIT_MS)
        data_ms = (time.perf_counter() - begin) * 1e3
        return {**page.evaluate(PAINTS), "data": data_ms}
