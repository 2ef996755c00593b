"""Schemathesis asks real brokers all that `/openapi.json` describes, and what it rules out: no answer is a bug's or
undocumented, whoever asks.

`make fuzz` runs longer, each time with other requests: FUZZ_EXAMPLES for each route and phase, from FUZZ_SEED.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from loadmanager.model.policies.model import AccessRole
from loadmanager_api.access import access
from loadmanager_api.application import routes_of_all
from tests.api.access.conftest import Guarded, guarded
from tests.api.conftest import Cluster, cluster

__all__ = ["cluster", "guarded"]

SEED = os.environ.get("FUZZ_SEED", "1")
LONGER = [f"--max-examples={os.environ['FUZZ_EXAMPLES']}"] if "FUZZ_EXAMPLES" in os.environ else []
ROOT = Path(__file__).parents[2]
NOBODY_ASKS = ("--exclude-checks=ignored_auth", "--generation-with-security-parameters=false")
LEAVING = ("/admin/v2/brokers/shutdown", "/v1/brokers/{broker}/drain")
CONFIGURATION = Path(__file__).with_name("schemathesis.toml")

pytestmark = [pytest.mark.release, pytest.mark.timeout(0)]


@pytest.fixture(autouse=True)
def many_wrong_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Are not answered by 429, which would hide what else is wrong."""
    monkeypatch.setattr(access, "FAILURES_PER_S", 1e6)


async def fuzz(cluster: Cluster, document: Path, *options: str, leaving: bool = False, refused: int = 0) -> None:
    """Fail, with what Schemathesis prints, for any answer that it finds wrong. `leaving`: ask the routes that drain a
    broker, else all others. `refused`: the status of all requests that need credentials.
    """
    chosen = [f"--{'include' if leaving else 'exclude'}-path={path}" for path in LEAVING]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIGURATION), "run", str(document),
        f"--url={cluster.brokers[0].url}", "--no-color", f"--seed={SEED}", *LONGER, *chosen, *options,
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "FUZZ_REFUSED": str(refused)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        said = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    print(said)
    assert process.returncode == 0, said[said.find("= FAILURES") :]


async def fill(cluster: Cluster) -> None:
    for namespace in ("t/n", "t/m"):
        await cluster.create(namespace)
    await cluster.assign("t/n/x")


@pytest.fixture
def document(tmp_path: Path) -> Path:
    """What any broker serves at `/openapi.json`."""
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(routes_of_all().openapi()))
    return path


async def test_whatever_is_asked_each_answer_is_as_documented(cluster: Cluster, document: Path) -> None:
    await cluster.start(2)
    await fill(cluster)
    await fuzz(cluster, document, *NOBODY_ASKS)
    await fuzz(cluster, document, *NOBODY_ASKS, "--phases=coverage,fuzzing", leaving=True)


async def test_a_superuser_finds_no_undocumented_answer(guarded: Guarded, document: Path) -> None:
    await guarded.start_with_tls(2)
    await fill(guarded.cluster)
    await fuzz(guarded.cluster, document, *shown(guarded, "root"))


@pytest.mark.parametrize("role", [AccessRole.CLIENT, AccessRole.VIEWER])
async def test_who_may_change_nothing_changes_nothing(guarded: Guarded, document: Path, role: AccessRole) -> None:
    await guarded.start_with_tls(2)
    await fill(guarded.cluster)
    await guarded.grant(role, "ann", "*")
    before = await state(guarded)
    await fuzz(guarded.cluster, document, *shown(guarded, "ann"), "--phases=coverage")
    assert await state(guarded) == before


async def test_who_shows_no_good_credentials_gets_401_and_nothing_else(guarded: Guarded, document: Path) -> None:
    await guarded.start_with_tls(2)
    await fill(guarded.cluster)
    before = await state(guarded)
    for claims in (None, {"aud": "other"}, {"exp": 1}):
        wrong = shown(guarded, None) if claims is None else shown(guarded, "root", **claims)
        await fuzz(guarded.cluster, document, *wrong, "--phases=coverage", refused=401)
    assert await state(guarded) == before


def shown(guarded: Guarded, principal: str | None, **claims: Any) -> list[str]:
    """Options: the cluster's authority, and a token, if there is a principal."""
    token = [f"--header=Authorization: {guarded.bearer(principal, **claims)['Authorization']}"] if principal else []
    return [f"--tls-verify={guarded.certificates.ca}", *token]


async def state(guarded: Guarded) -> list[Any]:
    """All that a request could change: ownership, policies, settings, plans, readers, topics; and who did it."""
    await guarded.cluster.agree()
    paths = ("/v1/policies", "/v1/config", "/v1/plans", "/v1/channel/readers", "/admin/v2/persistent/t/n")
    done = "/v1/audit?result=done"
    return [guarded.cluster.history(), *[(await guarded.ask("root", "GET", path))[1] for path in (*paths, done)]]
