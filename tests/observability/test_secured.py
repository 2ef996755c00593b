"""The example of docs/security.md lets a real Prometheus in, by a token and by a certificate, if it has the role."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from loadmanager.model.policies.model import AccessRole
from tests.api.access.conftest import Guarded, guarded
from tests.api.conftest import cluster
from tests.observability.conftest import Scraping, until, up
from tests.observability.rules import ROOT

__all__ = ["cluster", "guarded"]

EXAMPLE = re.compile(r"^```yaml\n(scrape_configs:.*?)^```$", re.MULTILINE | re.DOTALL)
JOBS = ("loadmanager", "loadmanager-certificate")


@pytest.fixture
def let_in(guarded: Guarded, tmp_path: Path) -> Iterator[Scraping]:
    """Prometheus with the example's configuration, and the files that it names."""
    found = EXAMPLE.search((ROOT / "docs" / "security.md").read_text())
    assert found is not None
    server = Scraping(tmp_path / "prometheus")
    server.configure(yaml.safe_load(found[1])["scrape_configs"])
    (server.data_dir / "prometheus.token").write_text(guarded.issuer.token("prometheus"))
    shutil.copy(guarded.certificates.ca, server.data_dir / "ca.pem")
    for file in guarded.certificates.issue("prometheus", common_name="prometheus"):
        shutil.copy(file, server.data_dir)
    server.start()
    yield server
    server.stop()


async def test_prometheus_gets_in_with_the_role_only(guarded: Guarded, let_in: Scraping) -> None:
    soon = datetime.now(UTC) + timedelta(days=10)
    certificate, key = guarded.certificates.issue("short", "127.0.0.1", until=soon)
    await guarded.start_with_tls(tls_certificate=certificate, tls_key=key)
    let_in.scrape([{"targets": [guarded.cluster.brokers[0].url.removeprefix("https://")]}])
    await until(lambda: let_in.firing() == {job: {"LoadManagerBrokerDown", "LoadManagerNoBroker"} for job in JOBS})
    await guarded.grant(AccessRole.VIEWER, "prometheus", "*")
    await until(lambda: all(up(let_in, job) == 1 for job in JOBS))
    await until(lambda: let_in.firing() == {job: {"LoadManagerCertificateExpires"} for job in JOBS})
    guesses = asyncio.create_task(guess(guarded))
    await until(lambda: all("LoadManagerLogInFailures" in let_in.firing()[job] for job in JOBS))
    guesses.cancel()


async def guess(guarded: Guarded) -> None:
    """Try tokens that have expired."""
    while True:
        status = (await guarded.ask("root", "GET", "/v1/brokers", headers=guarded.bearer("root", exp=1)))[0]
        assert status == 401
        await asyncio.sleep(0.1)
