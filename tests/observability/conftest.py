"""One real Prometheus with our rules, short times and whatever targets a test gives it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from stack.prometheus import PrometheusServer
from tests.observability.rules import quick

WAIT_S = 120


@pytest.hookimpl(tryfirst=True)  # the tiers read the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a real Prometheus wait for many scrapes."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if item.nodeid.startswith("tests/observability/") and {"prometheus", "let_in"} & fixtures:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.prometheus)


FOUND = {"files": ["targets.json"], "refresh_interval": "1s"}


class Scraping(PrometheusServer):
    """Scrapes every second; `targets` are groups of targets as Prometheus reads them from files."""

    def scrape(self, targets: Iterable[object]) -> None:
        """Scrape these from now on, and nothing else."""
        (self.data_dir / "targets.json").write_text(json.dumps(list(targets)))

    def configure(self, scrape_configs: Sequence[Mapping[str, object]] = ({"job_name": "loadmanager"},)) -> None:
        """Write the configuration; each of `scrape_configs` gets the same targets."""
        self.data_dir.mkdir()
        (self.data_dir / "rules.yml").write_text(quick())
        self.scrape([])
        self.config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{**each, "file_sd_configs": [FOUND]} for each in scrape_configs],
        }


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraping]:
    server = Scraping(tmp_path_factory.mktemp("prometheus") / "data")
    server.configure()
    server.start()
    yield server
    server.stop()


def group(job: str, *targets: str, **labels: str) -> dict[str, Any]:
    """A group of targets: one cluster."""
    return {"targets": list(targets), "labels": {"job": job, **labels}}


async def until(holds: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    """Wait for a condition; it is asked on a thread of its own."""
    async with asyncio.timeout(timeout_s):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.2)


def up(prometheus: Scraping, job: str, scrapes: int = 10) -> int:
    """How many targets of a job answer, and have been scraped so often."""
    enough = f'count_over_time(up{{job="{job}"}}[1m]) >= {scrapes} and up == 1'
    return len(prometheus.query(enough))
