"""`loadmanager.testing`, used as the author of a service would: with pytest's fixture, and without pytest."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from loadmanager import Broker, Bundle, BundleLoad, Destination, NotFound, Token
from loadmanager.client import BudgetSpent, Route
from loadmanager.errors import Conflict
from loadmanager.testing import NAMESPACE, EmbeddedCluster, embedded_cluster
from loadmanager.testing.plugin import OpenCluster, loadmanager_cluster

__all__ = ["loadmanager_cluster"]

ROOT = Path(__file__).parents[3]
ALICE = f"{NAMESPACE}/alice"
LASTING: Mapping[str, Any] = {"proof_validity_s": 4.0, "session_timeout_s": 10.0}
"""A machine may stall for two seconds; a kill costs as much more."""


class Shop:
    """The service under test: it notes what it was told."""

    broker: Broker

    def __init__(self) -> None:
        self.told: list[str] = []
        self.held: dict[Bundle, Token] = {}

    def attached(self, broker: Broker) -> None:
        self.broker = broker

    async def prepare(self, bundle: Bundle) -> None:
        self.told.append("prepare")

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        self.told.append(f"acquire with {hand_off}")
        self.held[bundle] = token

    async def release(self, bundle: Bundle, to: Destination | None) -> bytes | None:
        await self.broker.quiesce(bundle)
        self.told.append("release")
        del self.held[bundle]
        return b"cart"

    async def abandon(self, bundle: Bundle) -> None:
        self.told.append("abandon")
        self.held.pop(bundle, None)

    def load(self) -> Mapping[Bundle, BundleLoad]:
        return {}


async def make_shop() -> Shop:
    await asyncio.sleep(0)
    return Shop()


def tokens(cluster: EmbeddedCluster[Shop]) -> dict[Bundle, Token]:
    return {bundle: token for broker in cluster.brokers for bundle, token in cluster.host(broker).held.items()}


def owner(cluster: EmbeddedCluster[Shop], of: Bundle | str) -> Broker:
    found = cluster.owner(of)
    assert found is not None
    return found


async def test_a_cluster_begins_with_its_bundles_spread_and_served(loadmanager_cluster: OpenCluster):
    async with loadmanager_cluster(Shop, brokers=2, bundles=4, **LASTING) as cluster:
        owners = [cluster.owner(bundle) for bundle in cluster.bundles()]
        assert owners == [*cluster.brokers, *cluster.brokers]
        assert set(tokens(cluster)) == set(cluster.bundles())
        async with owner(cluster, ALICE).admit(ALICE) as claim:
            assert claim.bundle == cluster.bundle(ALICE)


@pytest.mark.slow
async def test_killed_broker_is_told_nothing_and_others_take_over_with_new_tokens(
    loadmanager_cluster: OpenCluster,
):
    async with loadmanager_cluster(make_shop, brokers=3, bundles=6, **LASTING) as cluster:
        before = tokens(cluster)
        victim = owner(cluster, ALICE)
        shop = cluster.host(victim)
        told, held = list(shop.told), set(shop.held)
        await cluster.kill(victim)
        assert not any(victim.serving(bundle) for bundle in held)
        await cluster.settled()
        assert shop.told == told, "a dead process is not called"
        assert not [note.text for note in victim.node.notes if "leaving" in note.text], "and moves nothing away"
        assert len(cluster.brokers) == 2
        after = tokens(cluster)
        assert set(after) == set(cluster.bundles())
        assert all(after[bundle] > before[bundle] for bundle in held)
        assert all(after[bundle] == before[bundle] for bundle in set(before) - held), "the others stay where they are"
        heirs = [cluster.host(owner(cluster, bundle)) for bundle in held]
        assert all("acquire with None" in heir.told for heir in heirs), "nothing was handed over"


@pytest.mark.slow
async def test_the_leader_can_be_killed_and_its_name_started_again(loadmanager_cluster: OpenCluster):
    async with loadmanager_cluster(Shop, brokers=2, bundles=4, **LASTING) as cluster:
        for victim in list(cluster.brokers):  # one of them leads
            await cluster.kill(victim)
            await cluster.settled()
            again = await cluster.restart(victim)
            assert again.name == victim.name
            assert cluster.host(again) is not cluster.host(victim)
        await cluster.settled()


async def test_bundles_move_when_a_test_says_so_and_hand_over(loadmanager_cluster: OpenCluster):
    async with loadmanager_cluster(Shop, brokers=2, bundles=2, **LASTING) as cluster:
        source = owner(cluster, ALICE)
        [to] = [broker for broker in cluster.brokers if broker is not source]
        bundle = await cluster.transfer(ALICE, to)
        assert cluster.owner(bundle) is to
        assert cluster.host(to).told[-1] == "acquire with b'cart'"
        assert cluster.host(source).told[-1] == "release"
        await cluster.unload(ALICE)
        await cluster.settled()
        assert cluster.owner(ALICE) is not None


async def test_a_broker_that_is_stopped_moves_its_bundles_first(loadmanager_cluster: OpenCluster):
    async with loadmanager_cluster(Shop, brokers=2, bundles=4, **LASTING) as cluster:
        leaving, staying = cluster.brokers
        await cluster.stop(leaving)
        await cluster.settled()
        assert cluster.brokers == [staying]
        assert cluster.host(leaving).told.count("release") == 2
        assert set(cluster.host(staying).held) == set(cluster.bundles())


async def test_a_bundle_is_split(loadmanager_cluster: OpenCluster):
    async with loadmanager_cluster(Shop, brokers=2, bundles=2, **LASTING) as cluster:
        owner = cluster.owner(ALICE)
        children = await cluster.split(ALICE)
        assert len(children) == 2
        assert len(cluster.bundles()) == 3
        assert {cluster.owner(child) for child in children} == {owner}


@pytest.mark.slow
async def test_a_router_finds_the_owner_through_a_failover(loadmanager_cluster: OpenCluster):
    async with loadmanager_cluster(
        Shop, brokers=3, urls=lambda shop: {"id": f"shop://{id(shop)}"}, **LASTING
    ) as cluster:
        router = cluster.router()

        async def send(route: Route) -> str:
            if route.broker not in {broker.name for broker in cluster.brokers}:
                raise ConnectionRefusedError
            return route.urls["id"]

        def is_the_owners(url: str) -> bool:
            owner = cluster.owner(ALICE)
            return owner is not None and url == f"shop://{id(cluster.host(owner))}"

        assert is_the_owners(await router.call(ALICE, send))
        await cluster.kill(owner(cluster, ALICE))
        assert is_the_owners(await router.call(ALICE, send, budget_s=60))
        with pytest.raises((BudgetSpent, NotFound)):
            await router.call("no/such/key", send, budget_s=0.5)


async def test_a_cluster_that_does_not_settle_says_why(loadmanager_cluster: OpenCluster):
    class Picky(Shop):
        full = False

        async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
            if self.full:
                raise RuntimeError("I want nothing")
            await super().acquire(bundle, token, hand_off)

    async with loadmanager_cluster(Picky, brokers=1, bundles=1, **LASTING) as cluster:
        cluster.host(cluster.brokers[0]).full = True
        bundle = await cluster.unload(ALICE)
        with pytest.raises(Conflict, match="did not arrive"):
            await cluster.transfer(bundle, cluster.brokers[0])
        with pytest.raises(TimeoutError, match="not settled within 5 s") as told:
            await cluster.settled(timeout_s=5)
    assert str(bundle) in str(told.value)
    assert "I want nothing" in str(told.value)


@pytest.mark.slow
async def test_without_pytest_and_without_a_host(tmp_path: Path):
    async with embedded_cluster(brokers=2, bundles=2, **LASTING) as cluster:
        directory = cluster.directory
        assert directory.is_dir()
        await cluster.kill(cluster.brokers[0])
        await cluster.settled()
        assert cluster.owner(ALICE) is cluster.brokers[0]
        with pytest.raises(NotFound):
            cluster.bundle("no/such/key")
    assert not directory.exists()


@pytest.mark.slow
def test_the_page_for_authors_runs_as_it_stands(tmp_path: Path):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/testing-your-service.md").read_text(), re.DOTALL)
    (tmp_path / "test_carts.py").write_text(example)
    (tmp_path / "conftest.py").write_text(
        f"from loadmanager.testing import cluster\ncluster.QUICK = {{**cluster.QUICK, **{dict(LASTING)}}}\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:loadmanager", "-p", "loadmanager.testing.plugin"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert "1 passed" in run.stdout


def test_the_plugin_costs_other_peoples_runs_nothing():
    heavy = {"aiohttp", "pydantic", "loadmanager.broker.node", "loadmanager.embedding.broker", "asyncio"}
    code = "import sys, pytest; before = set(sys.modules); import loadmanager.testing.plugin\n"
    code += f"print(sorted({heavy!r} & (set(sys.modules) - before)))"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=240
    )
    assert found.stdout.strip() == "[]"


def test_without_pytest_installed_the_package_is_there(tmp_path: Path):
    code = "import sys; sys.modules['pytest'] = None; from loadmanager.testing import embedded_cluster"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=240)
