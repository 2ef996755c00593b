"""Samples this broker's load and publishes it: the shell around `load_report.py`, and the two views that it writes to.

Keeps the loads of all held bundles for this broker's own decisions (splits); other brokers see only the hottest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Protocol

from loadmanager.model.host import BundleLoad
from loadmanager.model.load import (
    IDLE,
    BrokerLoadData,
    Figures,
    TopBundlesLoadData,
)
from loadmanager.model.load_report import Hold, Measured, Publish, Report, Reporter, Sample
from loadmanager.settings import Settings
from statechannel.errors import LogError
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.runtime.tasks import Blocking, at_once
from statechannel.runtime.view import TableView, wall_clock_ms

_log = logging.getLogger(__name__)


class Readings(Protocol):
    """The source of the process's own figures: `sensors.Sensors`, or a simulated one."""

    def read(self) -> Figures: ...


class LoadService:
    """One broker's load: `run()` it beside the two views, `withdraw()` when the broker leaves for good.

    `host_load` gives the load of the bundles; if it fails or hangs, this is logged and its last answer stays. `held`
    gives the bundles that this broker holds: others in the answer don't count, missing ones count as idle. It is called
    through `run_blocking`, so on a thread.
    """

    def __init__(
        self,
        broker: BrokerId,
        settings: Settings,
        *,
        host_load: Callable[[], Awaitable[Mapping[Bundle, BundleLoad]]],
        held: Callable[[], Collection[Bundle]],
        sensors: Readings,
        brokers: TableView[BrokerLoadData],
        bundles: TableView[TopBundlesLoadData],
        wall_ms: Callable[[], int] = wall_clock_ms,
        spread: Callable[[], tuple[Bundle, ...]] = tuple,
        run_blocking: Blocking = at_once,
    ) -> None:
        self.loads: Mapping[Bundle, BundleLoad] = {}
        """Every held bundle's load in the last sample."""
        self.last_decision: Publish | Hold = Hold("not started")
        self.host_failures = 0
        self.publish_failures = 0
        self._broker = broker
        self._interval_s = settings.load_sample_interval_s
        self._host_timeout_s = settings.host_load_timeout_s
        self._host_load, self._held = host_load, held
        self._sensors = sensors
        self._brokers, self._bundles = brokers, bundles
        self._wall_ms = wall_ms
        self._spread = spread
        self._reporter = Reporter(broker, settings)
        self._answer: Mapping[Bundle, BundleLoad] = {}
        self._sampled = asyncio.Event()
        self._run_blocking = run_blocking
        self._reading = asyncio.Lock()
        """Held while samples are read or added: a thread computes the means of ten thousand bundles."""

    def set(self, settings: Settings) -> None:
        """Use these settings from the next sample on."""
        self._interval_s = settings.load_sample_interval_s
        self._host_timeout_s = settings.host_load_timeout_s
        self._reporter.set(settings)

    def mean_of(self, bundle: Bundle) -> BundleLoad:
        """A held bundle's mean load over `load_window_s`, with the means of its hottest keys."""
        return self._reporter.mean_of(bundle, self.loads.get(bundle, IDLE))

    async def means_of(self, bundles: Collection[Bundle]) -> Mapping[Bundle, BundleLoad]:
        """As `mean_of`, for many: computed on a thread."""
        async with self._reading:
            return await self._run_blocking(lambda: {bundle: self.mean_of(bundle) for bundle in bundles})

    @property
    def current(self) -> Report | None:
        """The report that this broker would send now; None before the first sample."""
        return self._reporter.current()

    async def run(self) -> None:
        """Sample and report until cancelled. The views must have been started."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sample_for_ever())
            group.create_task(self._report_for_ever())

    async def withdraw(self) -> None:
        """Delete both reports, so that no broker waits for them to expire. Raises LogUnavailable."""
        await self._brokers.delete(self._broker.name)
        await self._bundles.delete(self._broker.name)

    async def _sample_for_ever(self) -> None:
        while True:
            before = await self._run_blocking(lambda: frozenset(self._held()))
            await self._ask_host()
            self.loads = await self._run_blocking(partial(self._of_held, before))
            self._reporter.spread = self._spread()
            sample = Sample(self._wall_ms(), self._sensors.read(), self.loads)
            async with self._reading:
                work = partial(self._reporter.measured, sample, self._now_ms())
                measured: Measured = await self._run_blocking(work)
                self._reporter.take(measured)
            self._sampled.set()
            await asyncio.sleep(self._interval_s)

    def _of_held(self, before: Collection[Bundle]) -> Mapping[Bundle, BundleLoad]:
        """The loads of bundles held `before` the service was asked, and now: its answer may lack one acquired since."""
        answer = self._answer
        return {bundle: answer.get(bundle, IDLE) for bundle in self._held() if bundle in before}

    async def _ask_host(self) -> None:
        try:
            async with asyncio.timeout(self._host_timeout_s):
                self._answer = await self._host_load()
        except Exception:  # noqa: BLE001 - a service's bug must not end the reports of its broker
            self.host_failures += 1
            _log.warning("the service's load() failed; its last answer stays", exc_info=True)

    async def _report_for_ever(self) -> None:
        while True:
            await self._sampled.wait()
            self._sampled.clear()
            async with self._reading:
                work = partial(self._reporter.decide, self._now_ms(), shown=self._shown())
                self.last_decision = await self._run_blocking(work)
            if isinstance(self.last_decision, Publish):
                await self._publish(self.last_decision)

    def _shown(self) -> bool:
        """Whether our report is still there. We do not read the hottest bundles: see `Views.sweep`."""
        load = self._brokers.get(self._broker.name)
        return load is not None and load.broker == self._broker

    async def _publish(self, publish: Publish) -> None:
        report = publish.report
        try:
            await self._brokers.put(self._broker.name, report.broker)
            await self._bundles.put(self._broker.name, report.top)
        except LogError as error:
            self.publish_failures += 1
            _log.warning("load report not published (%s): %s", publish.reason, error)
            return
        self._reporter.published(report, self._now_ms())
        _log.debug("load report: %s", publish.reason)

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)
