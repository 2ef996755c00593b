"""Advice goes from a job to the cluster, over the log or through a broker's endpoint, once however often."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from loadmanager.errors import Invalid, Unavailable
from loadmanager.history.advising import publish
from loadmanager.leader.plans.advice import Advice, ChangeSettings, Expected, Measure, Provenance, SettingChange, sealed
from loadmanager.settings import Settings
from loadmanager.testing import embedded_cluster
from tests.loadmanager.client.test_another_cluster import Address
from tests.loadmanager.embedded import PATIENT


def advice(cluster: str = "standalone", to: float = 0.2) -> Advice:
    now_ms = time.time_ns() // 1_000_000
    return sealed(
        Advice(
            ChangeSettings((SettingChange("balancing_tolerance", "default", to),)),
            "replay found it better",
            Expected(Measure.SPREAD, 0.5, 0.3, 0.1, 0.3),
            Provenance(cluster, now_ms - 1000, now_ms, "history advise", "0.1.0", "replay"),
            now_ms + 3_600_000,
        )
    )


async def test_it_arrives_either_way_and_once(tmp_path: Path) -> None:
    urls = {"http": "http://127.0.0.1:1"}
    async with embedded_cluster(None, brokers=1, bundles=1, urls=urls, directory=tmp_path, **PATIENT) as cluster:
        [broker], settings = cluster.brokers, Settings(log=f"sqlite:{tmp_path / 'cluster.db'}")
        one, other = advice(), advice(to=0.15)
        assert await asyncio.to_thread(publish, [one, other], settings) == (one.id, other.id)
        assert await asyncio.to_thread(publish, [other, one], f"http://{broker.name}/") == (other.id, one.id)
        await broker.ask(lambda node: node.plans.refresh())
        assert sorted(plan.id for plan in broker.node.plans.all()) == sorted([one.id, other.id])
        for where, why in ((settings, "of cluster 'another'"), (f"http://{broker.name}", "for cluster 'another'")):
            with pytest.raises(Invalid, match=why):
                await asyncio.to_thread(publish, [advice("another")], where)
        with pytest.raises(Invalid, match=r"may change it to 0\.2, not to 0\.9"):
            await asyncio.to_thread(publish, [advice(to=0.9)], f"http://{broker.name}")
        assert len(broker.node.plans.all()) == 2


async def test_a_token_goes_only_to_what_names_the_cluster_of_the_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMANAGER_TOKEN", "secret")
    address = Address()
    url = await address.begin()
    try:
        with pytest.raises(Unavailable, match="names no cluster"):
            await asyncio.to_thread(publish, [advice()], url)
        address.cluster = "green/1/0"
        with pytest.raises(Invalid, match=r"green/1/0.*not to standalone"):
            await asyncio.to_thread(publish, [advice()], url)
        assert address.tokens == []
        address.cluster = "standalone/1/0"
        with pytest.raises(Unavailable, match="'id'"):
            await asyncio.to_thread(publish, [advice()], url)
        assert address.tokens == ["standalone/1/0"]
    finally:
        await address.runner.cleanup()


def test_nobody_answers() -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        publish([advice()], "http://127.0.0.1:1")
