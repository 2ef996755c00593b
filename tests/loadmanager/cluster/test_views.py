"""The views of a broker together: what a sweep of the leader removes from the two topics of load."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from loadmanager.cluster.agreed_time import AgreedTime
from loadmanager.cluster.views import Views
from loadmanager.model.load import BrokerLoadData, TopBundlesLoadData
from loadmanager.settings import Settings
from statechannel.adapters.kafka.log import KafkaLog
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.law.record import BrokerId
from statechannel.ports import Log
from statechannel.runtime.view import wall_clock_ms
from tests.servers import KafkaServer, topic_prefix

B1, B2 = BrokerId("b1:1", 1), BrokerId("b2:1", 1)
SETTINGS = Settings()


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SqliteLog]:
    log = SqliteLog(tmp_path / "log.db")
    await log.start(5)
    yield log
    await log.close()


@contextlib.asynccontextmanager
async def running(log: Log, wall_ms: Callable[[], int] = wall_clock_ms) -> AsyncIterator[Views]:
    views = Views(log, SETTINGS, wall_ms)
    for step in views.opening:
        await step()
    task = asyncio.create_task(views.run())
    yield views
    task.cancel()
    await asyncio.wait([task])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def test_with_a_brokers_bundles_its_other_report_is_swept_away_so_that_it_writes_both_again(
    log: SqliteLog,
) -> None:
    """A broker that does not lead sees only the other one."""
    later_ms = lambda: wall_clock_ms() + round(2_000 * SETTINGS.load_ttl_s)  # noqa: E731
    async with running(log) as broker:
        for each in (B1, B2):
            await broker.bundles.put(each.name, TopBundlesLoadData(each, 0))
        async with running(log, later_ms) as leader:
            with leader.bundles.need():
                assert await leader.bundles.read(60)
                for each in (B1, B2):
                    await broker.brokers.put(each.name, BrokerLoadData(each, 0))
                await broker.bundles.put(B2.name, TopBundlesLoadData(B2, 1))
                await until(lambda: set(leader.brokers) == {B1.name, B2.name} == set(broker.brokers))
                await until(lambda: set(leader.bundles) == {B2.name})
                await leader.sweep()
                await until(lambda: set(broker.brokers) == set(leader.bundles) == {B2.name})
    assert dict(broker.bundles) == {}


@pytest.mark.kafka
async def test_reports_on_kafka_tell_whose_clock_is_wrong_to_a_broker_that_reads_them_late(
    kafka_server: KafkaServer,
) -> None:
    log = KafkaLog(kafka_server.address, topic_prefix=topic_prefix("clocks"), development=True, request_timeout_s=30.0)
    await log.start(30)
    ahead_ms = {"b1:1": 0, "b2:1": 40_000, "b3:1": 0}
    async with running(log) as views:
        for name, ms in ahead_ms.items():
            await views.brokers.put(name, BrokerLoadData(BrokerId(name, 1), wall_clock_ms() + ms))
        await views.brokers.catch_up()
    async with running(log) as late:
        await late.brokers.catch_up()
        reports_ms = {load.broker.name: load.sampled_ms - at_ms for load, at_ms in late.brokers.appended()}
    await log.close()
    an_hour_on_ms = wall_clock_ms() + 3_600_000
    offsets_ms = {name: AgreedTime(name, float, lambda: an_hour_on_ms).offset_ms(reports_ms) for name in ahead_ms}
    assert offsets_ms == pytest.approx(ahead_ms, abs=5_000)
