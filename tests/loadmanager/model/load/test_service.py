"""The load service on a real log: both reports come out, follow the bundles, outlive a bad service, are withdrawn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from loadmanager.cluster.load_reports import LoadService
from loadmanager.cluster.views import broker_loads, top_bundles
from loadmanager.model.host import BundleLoad
from loadmanager.model.load import BrokerLoadData, Figures, TopBundlesLoadData
from loadmanager.settings import Settings
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.law.bundle import Bundle, even_boundaries, tile
from statechannel.law.record import BrokerId
from statechannel.runtime.view import TableView
from statechannel.runtime.view_on_demand import OnDemandView

B1 = BrokerId("b1:6650", 7)
BUNDLES = tile("public/default", even_boundaries(4))
SETTINGS = Settings(
    host_acquire_timeout_s=0.2,
    load_window_s=0.1,
    load_report_max_interval_s=60,
    load_top_bundles=2,
)


class Steady:
    def read(self) -> Figures:
        return Figures(25.0, 10.0, 2.0, 1 << 30, 50.0, 60.0)


class Cluster:
    """One broker with its two views and a service whose answer can be changed."""

    running: asyncio.Task[None]

    def __init__(self, log: SqliteLog) -> None:
        self.loads: dict[Bundle, BundleLoad] = {b: BundleLoad(keys=i, in_rate_msg_s=i) for i, b in enumerate(BUNDLES)}
        self.held = list(BUNDLES)
        self.failure: Exception | None = None
        self.hangs = False
        self.meanwhile: Callable[[], None] = lambda: None
        """Happens after the service has looked at its bundles and before its answer comes."""
        self.brokers: TableView[BrokerLoadData] = broker_loads(log, SETTINGS)
        self.bundles: OnDemandView[TopBundlesLoadData] = top_bundles(log, SETTINGS)
        self.service = LoadService(
            B1,
            SETTINGS,
            host_load=self.host_load,
            held=lambda: self.held,
            sensors=Steady(),
            brokers=self.brokers,
            bundles=self.bundles,
        )

    async def host_load(self) -> Mapping[Bundle, BundleLoad]:
        if self.hangs:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure
        loads = self.loads
        self.meanwhile()
        return loads


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    log = SqliteLog(tmp_path / "log.db")
    await log.start(5)
    cluster = Cluster(log)
    await cluster.brokers.start()
    await cluster.bundles.start()
    cluster.running = asyncio.create_task(cluster.service.run())
    tasks = [*(asyncio.create_task(each.run()) for each in (cluster.brokers, cluster.bundles)), cluster.running]
    with cluster.bundles.need():
        yield cluster
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await log.close()


async def until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


async def test_both_reports_come_out_with_what_was_measured(cluster: Cluster) -> None:
    await until(lambda: B1.name in cluster.brokers and B1.name in cluster.bundles)
    load, top = cluster.brokers[B1.name], cluster.bundles[B1.name]
    assert load.broker == top.broker == B1
    assert (load.cpu_percent, load.host_cpu_percent, load.bundles, load.keys) == (25.0, 50.0, 4, 6)
    assert load.in_rate_msg_s == 6
    assert load.capacity["cpu"] == 2.0
    assert [each.bundle for each in top.bundles] == [BUNDLES[3], BUNDLES[2]]
    assert (top.count, top.total.in_rate_msg_s) == (4, 6)


async def test_a_bundle_that_goes_is_reported_and_what_is_not_held_does_not_count(cluster: Cluster) -> None:
    await until(lambda: B1.name in cluster.bundles)
    cluster.held.remove(BUNDLES[3])
    await until(lambda: cluster.brokers[B1.name].bundles == 3)
    await until(lambda: cluster.bundles[B1.name].bundles[0].bundle == BUNDLES[2])
    assert BUNDLES[3] not in cluster.service.loads


async def test_a_bundle_acquired_while_the_service_answers_counts_from_the_next_answer_on(cluster: Cluster) -> None:
    new, load = BUNDLES[3], cluster.loads[BUNDLES[3]]
    cluster.held.remove(new)
    cluster.loads = {bundle: each for bundle, each in cluster.loads.items() if bundle != new}
    await until(lambda: bool(cluster.service.loads) and new not in cluster.service.loads)

    def acquired() -> None:
        if new not in cluster.held:
            cluster.held.append(new)
            cluster.loads = {**cluster.loads, new: load}

    cluster.meanwhile = acquired
    await until(lambda: new in cluster.service.loads)
    assert cluster.service.loads[new] == load, "not idle for a sample"


async def test_a_service_that_fails_is_counted_and_its_last_answer_stays(cluster: Cluster) -> None:
    await until(lambda: B1.name in cluster.bundles)
    cluster.failure = ValueError("a bug of the service's")
    cluster.held.remove(BUNDLES[0])
    await until(lambda: cluster.service.host_failures > 0 and cluster.brokers[B1.name].bundles == 3)
    assert cluster.service.loads[BUNDLES[3]].in_rate_msg_s == 3


async def test_a_service_that_hangs_is_counted_and_the_reports_go_on(cluster: Cluster) -> None:
    await until(lambda: B1.name in cluster.bundles)
    cluster.hangs = True
    cluster.held.remove(BUNDLES[0])
    await until(lambda: cluster.service.host_failures > 1 and cluster.brokers[B1.name].bundles == 3)


async def test_a_report_that_somebody_swept_away_comes_back(cluster: Cluster) -> None:
    await until(lambda: B1.name in cluster.brokers)
    deleted: list[str] = []
    cluster.brokers.on_change(lambda key, old, new: deleted.append(key) if new is None else None)
    await cluster.brokers.delete(B1.name)
    await until(lambda: deleted == [B1.name] and B1.name in cluster.brokers)


async def test_a_broker_that_leaves_takes_its_reports_with_it(cluster: Cluster) -> None:
    await until(lambda: B1.name in cluster.brokers and B1.name in cluster.bundles)
    cluster.running.cancel()
    await asyncio.wait([cluster.running])
    await cluster.service.withdraw()
    await until(lambda: not cluster.brokers and not cluster.bundles)
