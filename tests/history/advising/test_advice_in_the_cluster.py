"""From recorded load to less imbalance, on real Kafka and ZooKeeper: what brokers reported is ingested, a replay finds
a better setting, the advice is published, approved and applied by the leader, and reports are more even then. Advice
that makes it worse is taken back by the leader, who says so.

Balance is by message rate alone, as in `integration/test_balanced_life.py`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from loadmanager.client import HttpRouter, Router
from loadmanager.demo.counter.load import Load
from loadmanager.demo.counter.traffic import Traffic
from loadmanager.history.advising import Options, consider, publish
from loadmanager.history.ingest import Ingest
from loadmanager.history.ingest import Options as Ingesting
from loadmanager.history.lake import Lake, Window
from loadmanager.history.replay import Objective
from loadmanager.history.replay import Options as Replaying
from loadmanager.history.sources import source_of
from loadmanager.leader.plans.advice import Advice, ChangeSettings, Expected, Measure, Provenance, SettingChange, sealed
from loadmanager.settings import Settings
from stack.servers import KafkaServer, ZooKeeperServer
from tests.integration.long_life.cluster import Cluster
from tests.integration.long_life.commands import loadmanager
from tests.integration.long_life.waiting import until_told
from tests.integration.test_balanced_life import PATIENCE_S, Balanced, settings_on

SHARES = {"life/busy": 0.6, "life/calm": 0.2, "life/still": 0.2}
"""Of all requests; each namespace begins on a broker of its own, so that the spread is 0.8."""
BUNDLES, TOPICS, RATE_S = 8, 96, 160.0
POOR = "overload"
"""The strategy, which lets that be: nobody is near 85 %."""
ROUND_S, WINDOW_S, WINDOWS = 1.0, 5.0, 6
SETTLED_MS = 4_000
"""After a change: until a report's mean is of the time since."""
LOWER = 0.8
"""Of the spread before: what is left of it is less than this."""
LIVELY = Replaying(window_s=WINDOW_S, objective=Objective(moved=0.1 / 600, gap=0.01 / 600), parallelism=2)
"""Seconds of this cluster are as much as minutes of another: moves pay within them."""

pytestmark = [pytest.mark.release, pytest.mark.kafka, pytest.mark.zookeeper, pytest.mark.timeout(900)]


def settings_of(kafka: KafkaServer, zookeeper: ZooKeeperServer) -> dict[str, object]:
    return settings_on(kafka, zookeeper) | {
        "capacity": {"rate_msg_s": 400.0},
        "balancing_interval_s": ROUND_S,
        "balancing_strategy": POOR,
        "bundle_rest_s": 2.0,
        "load_window_s": 2.0,
        "advice_measure_s": 8.0,
    }


class Uneven(Traffic):
    """Requests for each namespace by its share, spread evenly over its topics."""

    def __init__(self) -> None:
        super().__init__("life/busy", rate_s=RATE_S)
        self._random = random.Random(1)

    def pick(self, elapsed_s: float) -> str:
        """The topic of one request."""
        [namespace] = self._random.choices(list(SHARES), list(SHARES.values()))
        return f"persistent://{namespace}/counter-{self._random.randrange(TOPICS)}"


@asynccontextmanager
async def uneven(cluster: Cluster) -> AsyncGenerator[None]:
    """None of the requests may fail."""
    async with HttpRouter(Router(f"http://{member.name}" for member in cluster.members)) as http:
        load = Load(http, Uneven(), PATIENCE_S)
        sending = asyncio.create_task(load.run())
        try:
            yield
        finally:
            load.stop()
            await sending
    assert load.failures == []


class Advised(Balanced):
    """The cluster, and the lake of its history."""

    def __init__(self, cluster: Cluster, lake: Lake, settings: dict[str, object]) -> None:
        super().__init__(cluster)
        self.lake = lake
        known = {name: settings[name] for name in ("log", "topic_prefix", "cluster", "development")}
        self.settings = Settings(**known)  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        return f"http://{self.cluster.members[0].name}"

    async def ingested(self) -> None:
        job = Ingest(self.lake, source_of(self.settings), Ingesting(partitions=3))
        await asyncio.to_thread(job.run_available)

    async def piled(self) -> None:
        """Each namespace on a broker of its own; nobody balances until all are."""
        await self.config("balancing", value=False)
        await self.until_nothing_moves()
        wanted = dict(zip(SHARES, (member.name for member in self.cluster.members), strict=True))

        async def away() -> list[str]:
            owners = {name: {each["owner"] for each in await self.cluster.bundles(name)} for name in wanted}
            return [name for name, target in wanted.items() if owners[name] != {target}]

        async def there() -> bool:
            return not await away()

        for namespace in await away():
            body = {"namespace": namespace, "to": wanted[namespace], "wave": 50}
            await self.ask("POST", "/v1/plans/unload", body)
        await until_told(there, "each namespace is on a broker of its own")
        await self.config("balancing", value=True)

    async def until_balanced_within(self, spread: float) -> None:
        async def within() -> bool:
            shown = await self.ask("GET", "/v1/balancing")
            return shown["spread"] <= spread and shown["in_flight"]["total"] == 0

        await until_told(within, f"the spread is at most {spread}", PATIENCE_S)

    async def owners_of_all(self) -> dict[str, str]:
        return {each["bundle"]: each["owner"] for name in SHARES for each in await self.cluster.bundles(name)}

    async def advice(self, advice_id: str) -> dict[str, Any]:
        return await self.ask("GET", f"/v1/plans/{advice_id}")

    async def until_advice(self, advice_id: str, *states: str) -> dict[str, Any]:
        async def arrived() -> bool:
            shown = await self.advice(advice_id)
            assert shown["state"] in states or shown["state"] not in ("refused", "expired", "superseded"), shown
            return shown["state"] in states

        await until_told(arrived, f"advice {advice_id} is {' or '.join(states)}", PATIENCE_S)
        return await self.advice(advice_id)

    async def notes(self) -> list[str]:
        return [note for member in self.cluster.members for note in await self.cluster.notes(member)]


async def test_advice_lowers_the_imbalance_and_what_does_harm_is_taken_back(
    tmp_path: Path, spark: SparkSession, kafka_server: KafkaServer, zookeeper_server: ZooKeeperServer
):
    settings = settings_of(kafka_server, zookeeper_server)
    async with Cluster(tmp_path, settings) as cluster:
        await cluster.start()
        here = Advised(cluster, Lake(spark, str(tmp_path / "lake")), settings)
        for namespace in SHARES:
            await loadmanager("namespaces", "create", namespace, "--bundles", str(BUNDLES), "--admin-url", here.url)
        async with uneven(cluster):
            for namespace in SHARES:
                await until_told(lambda name=namespace: cluster.is_whole(name), f"every bundle of {namespace} is owned")
            await here.piled()
            better = await _advised(here)
            kept = await _followed(here, better)
            await _lower_by_the_reports(here, kept)
            await _harm_is_taken_back(here)
        assert cluster.refused == []


async def _advised(here: Advised) -> Advice:
    """Made of what brokers reported while the busiest had far too much."""
    begin = datetime.now(UTC)
    await here.until_rounds(int((WINDOWS + 1) * WINDOW_S / ROUND_S))
    await here.ingested()
    window = Window(begin, None)
    options = Options(cluster="life", kinds=("replay",), replaying=LIVELY)
    found = await asyncio.to_thread(consider, here.lake, window, options)
    assert len(found.advice) == 1, found.left_out
    [advice] = found.advice
    assert isinstance(advice.change, ChangeSettings)
    [change] = advice.change.changes
    assert (change.name, change.was) == ("balancing_strategy", POOR)
    return advice


async def _followed(here: Advised, advice: Advice) -> dict[str, Any]:
    """Nobody does anything before it is approved; then the leader does all of it."""
    assert await asyncio.to_thread(publish, [advice], here.url) == (advice.id,)
    before = await here.owners_of_all()
    await here.until_rounds(4)
    shown = await here.advice(advice.id)
    assert shown["state"] == "proposed"
    assert await here.owners_of_all() == before, "nothing moves under the poor strategy"
    await loadmanager("plans", "approve", advice.id, "--reason", "looks right", "--admin-url", here.url)
    kept = await here.until_advice(advice.id, "done", "undone")
    assert kept["state"] == "done", kept
    assert [step["action"] for step in kept["steps"]] == ["approve", "run", "finish", "keep"]
    effect = kept["advice"]["effect"]
    assert effect["after"] < LOWER * effect["before"], effect
    assert effect["harm"] is False
    assert any(f"plan {advice.id} is done: spread" in note for note in await here.notes())
    return kept


async def _lower_by_the_reports(here: Advised, kept: dict[str, Any]) -> None:
    """By what brokers themselves reported, read from the lake: before it was applied, and once it had settled."""
    await here.ingested()
    _, _, applied, ended = (step["at_ms"] for step in kept["steps"])
    before, after = (kept["advice"]["baseline"][edge] for edge in ("begin_ms", "end_ms")), (applied + SETTLED_MS, ended)
    spreads = [await asyncio.to_thread(_reported_spread, here.lake, *times) for times in (before, after)]
    assert spreads[1] < LOWER * spreads[0], spreads


def _reported_spread(lake: Lake, begin_ms: int, end_ms: int) -> float:
    """Max/mean - 1 of the brokers' mean message rates."""
    window = Window(*(datetime.fromtimestamp(ms / 1000, UTC) for ms in (begin_ms, end_ms)))
    rows = lake.table("broker_load", window).groupBy("broker").agg(f.avg("in_rate_msg_s").alias("rate")).collect()
    rates = [row["rate"] for row in rows]
    return max(rates) * len(rates) / sum(rates) - 1


async def _harm_is_taken_back(here: Advised) -> None:
    """A job that was wrong advises the poor strategy again. Then load comes that should be spread."""
    better = (await here.ask("GET", "/v1/config/balancing_strategy"))["value"]
    wrong = _wrong(better)
    await here.until_balanced_within(0.5)
    await asyncio.to_thread(publish, [wrong], here.url)
    await here.ask("POST", f"/v1/plans/{wrong.id}/approve", {"reason": "why not"})
    await here.until_advice(wrong.id, "measuring")
    await here.piled()
    gone = await here.until_advice(wrong.id, "done", "undone")
    assert gone["state"] == "undone", gone
    assert gone["advice"]["effect"]["harm"] is True
    assert any(f"plan {wrong.id} is undoing" in note and "harm" in note for note in await here.notes())
    told = await loadmanager("plans", "show", wrong.id, "--admin-url", here.url)
    assert "harm" in told
    assert (await here.ask("GET", "/v1/config/balancing_strategy"))["value"] == better
    await here.until_balanced_within(0.5)


def _wrong(better: str) -> Advice:
    now_ms = time.time_ns() // 1_000_000
    change = ChangeSettings((SettingChange("balancing_strategy", better, POOR),))
    expected = Expected(Measure.SPREAD, before=0.4, after=0.1, low=0.2, high=0.4)
    provenance = Provenance("life", now_ms - 3_600_000, now_ms, "a job that is wrong", "0.1.0", "guessing")
    return sealed(Advice(change, "it cannot get worse", expected, provenance, now_ms + 3_600_000))
