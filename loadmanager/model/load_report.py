"""Decides when a broker reports its load, and which means it reports. Pure: it is given samples and the time.

A broker reports at once when it starts; then, at most every `min_interval_s`, when a relevant change occurred, and at
least every `max_interval_s` (PIP-192's thresholds; Pulsar: 5 s, 10 %, 15 min). It has four more triggers than
Pulsar: its set of bundles changed, the shares of its hottest bundles shifted, its wall clock was set, or its own report
has vanished from the view (it was deleted, or the topic was lost).

It reports the mean load of the bundles that it holds now, over a window of samples with other bundles. After each move
a plain mean is wrong for a whole window: it still counts the bundle that left, and only part of the one that came. So
each older sample is restated for the present bundles: less those that left since, plus the mean cost of those that
came. A bundle's own load is its mean over the samples that have it. (Pulsar always weighs the past with 0.9, and goes
on unloading a broker that is already balanced.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import msgspec

from loadmanager.model.host import BundleLoad
from loadmanager.model.load import (
    IDLE,
    NO_IO,
    RESOURCES,
    BrokerLoadData,
    Figures,
    IoRates,
    LoadedBundle,
    TopBundlesLoadData,
    Weights,
    credible,
    heat,
    hottest,
    part_of,
    total_of,
    usages,
)
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

REPORT_THRESHOLD = 0.1
"""A change by this fraction is reported at once; Pulsar's default."""
SAMPLES_KEPT = 10
"""About how many samples of a window are kept, always with the newest: 10,000 bundles take a megabyte each."""

_RATES = ("in_rate_msg_s", "out_rate_msg_s", "in_rate_bytes_s", "out_rate_bytes_s", "cpu_percent")


class Sample(msgspec.Struct, frozen=True):
    """One measurement: `at_ms` by the wall clock, the process, and each held bundle."""

    at_ms: int
    figures: Figures
    loads: Mapping[Bundle, BundleLoad]


class Measured(msgspec.Struct, frozen=True):
    """A sample with values that are needed repeatedly."""

    now_ms: int
    sample: Sample
    total: BundleLoad
    held: frozenset[Bundle]
    busy: frozenset[Bundle]
    """The held bundles with any load."""


class Means(msgspec.Struct, frozen=True):
    """Means over the window: the process's figures, and the sum over the bundles that are held now."""

    figures: Figures
    total: BundleLoad


class LoadWindow:
    """Samples of the last `window_ms`; `now_ms` is any clock that only runs forward."""

    def __init__(self, window_ms: float) -> None:
        self.window_ms = window_ms
        self._measured: deque[Measured] = deque()

    def observe(self, sample: Sample, now_ms: int) -> None:
        """Take a sample. Impossible figures of bundles count as 0."""
        self.take(self.measured(sample, now_ms))

    def measured(self, sample: Sample, now_ms: int) -> Measured:
        """The input of `take` for a sample; changes nothing."""
        loads = {bundle: credible(load) for bundle, load in sample.loads.items()}
        held = (
            self._measured[-1].held if self._measured and self._measured[-1].held == loads.keys() else frozenset(loads)
        )
        busy = {bundle: load for bundle, load in loads.items() if load != IDLE}
        return Measured(
            now_ms, msgspec.structs.replace(sample, loads=loads), total_of(busy.values()), held, frozenset(busy)
        )

    def take(self, measured: Measured) -> None:
        """Add the next sample. Quick, whatever the number of bundles."""
        self._thin()
        self._measured.append(measured)
        while self._measured[0].now_ms < measured.now_ms - self.window_ms:
            self._measured.popleft()

    def _thin(self) -> None:
        if len(self._measured) > 1:
            before, newest = self._measured[-2], self._measured[-1]
            if newest.now_ms - before.now_ms < self.window_ms / SAMPLES_KEPT:
                self._measured.pop()

    @property
    def last(self) -> Measured | None:
        """The newest sample; None before the first one."""
        return self._measured[-1] if self._measured else None

    def means(self) -> Means:
        """The means for the bundles that are held now. Needs a sample."""
        last = self._measured[-1]
        came = {each.held: last.held - each.held for each in self._measured}
        busy = frozenset[Bundle]().union(*(each.busy for each in self._measured))
        costs = {bundle: self._cost(bundle) for bundle in busy.intersection(frozenset().union(*came.values()))}
        restated = [_restated(each, last.held, _sum(costs, came[each.held])) for each in self._measured]
        figures = [each.sample.figures for each in self._measured]
        return Means(
            Figures(
                cpu_percent=fmean(cpu for cpu, _ in restated),
                memory_percent=fmean(f.memory_percent for f in figures),
                cores=figures[-1].cores,
                memory_bytes=figures[-1].memory_bytes,
                host_cpu_percent=fmean(f.host_cpu_percent for f in figures),
                host_memory_percent=fmean(f.host_memory_percent for f in figures),
                io=_mean_io([f.io for f in figures]),
            ),
            _mean((total for _, total in restated), last.total),
        )

    def mean_of(self, bundle: Bundle) -> BundleLoad:
        """A held bundle's mean over the samples that have it; keys and sessions as of the last one."""
        loads = self._loads_of(bundle)
        return _mean(loads, loads[-1])

    def hottest_keys_of(self, bundle: Bundle) -> tuple[tuple[str, float], ...]:
        """A held bundle's hottest keys with their mean rates over the same samples, hottest first.

        A sample that does not name a key counts as 0 for it, so that the rates never exceed their bundle's mean.
        """
        loads = self._loads_of(bundle)
        rates: dict[str, float] = {}
        for load in loads:
            for key, rate in load.hottest_keys:
                rates[key] = rates.get(key, 0.0) + max(0.0, rate)
        by_rate = sorted(rates.items(), key=lambda pair: (-pair[1], pair[0]))
        return tuple((key, rate / len(loads)) for key, rate in by_rate)

    def _loads_of(self, bundle: Bundle) -> list[BundleLoad]:
        return [each.sample.loads[bundle] for each in self._measured if bundle in each.held]

    def _cost(self, bundle: Bundle) -> tuple[float, BundleLoad]:
        """A held bundle's mean cost since it came: points of CPU, and rates."""
        points = fmean([_points(each, bundle) for each in self._measured if bundle in each.held])
        return points, self.mean_of(bundle)


def _sum(costs: Mapping[Bundle, tuple[float, BundleLoad]], bundles: frozenset[Bundle]) -> tuple[float, BundleLoad]:
    """The cost of some bundles together; those without a cost are idle."""
    some = [costs[bundle] for bundle in costs.keys() & bundles]
    return sum(points for points, _ in some), total_of(load for _, load in some)


def _restated(measured: Measured, held: frozenset[Bundle], cost: tuple[float, BundleLoad]) -> tuple[float, BundleLoad]:
    """A sample's CPU and total, as if the broker had then held its present bundles; `cost`: of those that came."""
    if measured.held is held:
        return measured.sample.figures.cpu_percent, measured.total
    points, came = cost
    gone = measured.busy - held
    cpu = measured.sample.figures.cpu_percent - sum(_points(measured, bundle) for bundle in gone) + points
    if not gone and came == IDLE:
        return cpu, measured.total
    left = total_of(measured.sample.loads[bundle] for bundle in gone)
    in_msg, out_msg, in_bytes, out_bytes, cpu_percent = (
        max(0.0, getattr(measured.total, name) - getattr(left, name)) + getattr(came, name) for name in _RATES
    )
    return max(0.0, cpu), BundleLoad(0, 0, in_msg, out_msg, in_bytes, out_bytes, cpu_percent)


def _points(measured: Measured, bundle: Bundle) -> float:
    """A bundle's part of the process's CPU in a sample, in points of percent."""
    cpu_percent, cores = measured.sample.figures.cpu_percent, measured.sample.figures.cores
    return part_of(measured.sample.loads[bundle], measured.total, cpu_percent, cores)


def _mean_io(rates: Sequence[IoRates]) -> IoRates:
    if all(each is NO_IO for each in rates):
        return NO_IO
    return IoRates(*(round(fmean(column)) for column in zip(*map(msgspec.structs.astuple, rates), strict=True)))


def _mean(loads: Iterable[BundleLoad], counts: BundleLoad) -> BundleLoad:
    """The mean of the rates, with these counts."""
    every = list(loads)
    in_msg, out_msg, in_bytes, out_bytes, cpu = (fmean([getattr(load, name) for load in every]) for name in _RATES)
    return BundleLoad(counts.keys, counts.sessions, in_msg, out_msg, in_bytes, out_bytes, cpu)


CLOCK_SET_MS = 10_000
"""The wall clock was set if it moved more than this against the clock that only runs forward. Others learn of a wrong
clock, and of a corrected one, by the next report."""

_UNWEIGHTED = Weights(memory=1.0)
_MSG_FLOOR = 1.0
_BYTES_FLOOR = 1024.0
"""Below these rates relative changes do not matter: from 0.1 to 0.2 messages a second is +100 %."""


class Report(msgspec.Struct, frozen=True):
    """The two values to publish, and the bundles they cover. `wall_ahead_ms`: the wall clock minus that of `now_ms`."""

    broker: BrokerLoadData
    top: TopBundlesLoadData
    held: frozenset[Bundle]
    wall_ahead_ms: int


class Publish(msgspec.Struct, frozen=True):
    """Publish this report now, because of `reason`."""

    report: Report
    reason: str


class Hold(msgspec.Struct, frozen=True):
    """Publish nothing now, because of `reason`."""

    reason: str


class Reporter:
    """One broker's reports. `now_ms` is any clock that only runs forward."""

    def __init__(self, broker: BrokerId, settings: Settings) -> None:
        self._broker = broker
        self._window = LoadWindow(0)
        self._last: tuple[int, Report] | None = None
        self.spread: tuple[Bundle, ...] = ()
        """Children of splits for the leader to place: reported while held, hot or not."""
        self.set(settings)

    def set(self, settings: Settings) -> None:
        """Apply these settings from now on."""
        self._min_ms = settings.load_report_min_interval_s * 1000
        self._max_ms = settings.load_report_max_interval_s * 1000
        self._threshold = REPORT_THRESHOLD
        self._top = settings.load_top_bundles
        self._declared = dict(settings.capacity)
        self._window.window_ms = settings.load_window_s * 1000

    def observe(self, sample: Sample, now_ms: int) -> None:
        """Take a sample. Reports give means over `load_window_s`, for the bundles that are held now."""
        self.take(self.measured(sample, now_ms))

    def measured(self, sample: Sample, now_ms: int) -> Measured:
        """The input of `take` for a sample; changes nothing, and may take long."""
        return self._window.measured(sample, now_ms)

    def take(self, measured: Measured) -> None:
        """Add the next sample. Quick."""
        self._window.take(measured)

    def published(self, report: Report, now_ms: int) -> None:
        """The report is durable in the log."""
        self._last = (now_ms, report)

    def current(self) -> Report | None:
        """The report by the last sample; None before the first one."""
        last = self._window.last
        if last is None:
            return None
        means = self._window.means()
        figures, total = means.figures, means.total
        broker = BrokerLoadData(
            broker=self._broker,
            sampled_ms=last.sample.at_ms,
            cpu_percent=figures.cpu_percent,
            memory_percent=figures.memory_percent,
            in_rate_bytes_s=total.in_rate_bytes_s,
            out_rate_bytes_s=total.out_rate_bytes_s,
            in_rate_msg_s=total.in_rate_msg_s,
            out_rate_msg_s=total.out_rate_msg_s,
            bundles=len(last.held),
            keys=last.total.keys,
            sessions=last.total.sessions,
            capacity=self._declared | {"cpu": figures.cores, "memory_bytes": float(figures.memory_bytes)},
            host_cpu_percent=figures.host_cpu_percent,
            host_memory_percent=figures.host_memory_percent,
            io=figures.io,
        )
        chosen = hottest(last.sample.loads, self._top, last.total)
        spread = tuple(bundle for bundle in self.spread if bundle in last.held)
        chosen += [bundle for bundle in spread if bundle not in chosen]
        top = tuple(LoadedBundle(bundle, self._window.mean_of(bundle)) for bundle in chosen)
        data = TopBundlesLoadData(self._broker, last.sample.at_ms, top, total, len(last.held), spread)
        return Report(broker, data, last.held, last.sample.at_ms - last.now_ms)

    def mean_of(self, bundle: Bundle, latest: BundleLoad) -> BundleLoad:
        """A held bundle's mean over the window, hottest keys too; `latest` itself if it is not held.

        Keys and bundle are of the same samples. Otherwise a stalled process's sample would show a hot bundle's mean
        beside keys without traffic, and hide that one key carries it.
        """
        last = self._window.last
        if last is None or bundle not in last.held:
            return latest
        return msgspec.structs.replace(self._window.mean_of(bundle), hottest_keys=self._window.hottest_keys_of(bundle))

    def decide(self, now_ms: int, *, shown: bool) -> Publish | Hold:
        """Whether to report now. `shown`: whether the views show a report of this incarnation."""
        last_ms, last = self._last or (0, None)
        if last is not None and now_ms - last_ms < self._min_ms:
            return Hold(f"reported {(now_ms - last_ms) / 1000:.1f} s ago; at most every {self._min_ms / 1000:g} s")
        report = self.current()
        if report is None:
            return Hold("nothing was measured yet")
        if last is None:
            return Publish(report, "the broker has started")
        if not shown:
            return Publish(report, "the last report is not in the view any more")
        if now_ms - last_ms >= self._max_ms:
            return Publish(report, f"the last report is {(now_ms - last_ms) / 1000:.0f} s old")
        reason = what_changed(last, report, self._threshold)
        return (
            Publish(report, reason) if reason else Hold(f"no change beyond {self._threshold:.0%} since the last report")
        )


def what_changed(last: Report, now: Report, threshold: float) -> str | None:
    """The first change that others should know of, in words; None if there is none. `threshold` is a fraction."""
    if abs(set_ms := now.wall_ahead_ms - last.wall_ahead_ms) > CLOCK_SET_MS:
        return f"the wall clock was set {'ahead' if set_ms > 0 else 'back'} by {abs(set_ms) / 1000:.0f} s"
    if last.held != now.held:
        return f"bundles: {len(now.held - last.held)} came, {len(last.held - now.held)} went, {len(now.held)} held"
    if set(now.top.spread) - set(last.top.spread):
        return f"a split: places are wanted for {len(now.top.spread)} children"
    old_parts, new_parts = (usages(each.broker, _UNWEIGHTED) for each in (last, now))
    for resource, old, new in zip(RESOURCES, old_parts, new_parts, strict=True):
        if abs(new - old) > threshold:
            return f"{resource}: {old:.0%} to {new:.0%}"
    old, new = last.broker.rate_msg_s, now.broker.rate_msg_s
    if abs(new - old) > max(_MSG_FLOOR, threshold * old):
        return f"messages: {old:.0f}/s to {new:.0f}/s"
    old, new = last.broker.throughput_bytes_s, now.broker.throughput_bytes_s
    if abs(new - old) > max(_BYTES_FLOOR, threshold * old):
        return f"throughput: {old:.0f} B/s to {new:.0f} B/s"
    return _shifted(last.top, now.top, threshold)


def _shifted(last: TopBundlesLoadData, now: TopBundlesLoadData, threshold: float) -> str | None:
    if now.total.rate_msg_s <= _MSG_FLOOR and now.total.throughput_bytes_s <= _BYTES_FLOOR:
        return None
    before = {each.bundle: heat(each.load, last.total) for each in last.bundles}
    for each in now.bundles:
        old, new = before.get(each.bundle, 0.0), heat(each.load, now.total)
        if abs(new - old) > threshold:
            return f"{each.bundle}: {old:.0%} to {new:.0%} of the broker's load"
    return None
