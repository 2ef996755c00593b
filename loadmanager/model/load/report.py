"""Decides when a broker reports its load, and the content of the report. Pure: samples and the time come in.

A broker reports at once when it starts; then, at most every `min_interval_s`, when a relevant change occurred, and at
least every `max_interval_s` (PIP-192's thresholds; Pulsar: 5 s, 10 %, 15 min). Beyond Pulsar's triggers it also reports
when its set of bundles changed, when the shares of its hottest bundles shifted, and when its own report has vanished
from the view (somebody deleted it, or the topic was lost).
"""

from __future__ import annotations

import msgspec

from loadmanager.model.host import BundleLoad
from loadmanager.model.load.model import BrokerLoadData, LoadedBundle, TopBundlesLoadData, heat, hottest
from loadmanager.model.load.usage import RESOURCES, Weights, usages
from loadmanager.model.load.window import LoadWindow, Measured, Sample
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

_UNWEIGHTED = Weights(memory=1.0)
_MSG_FLOOR = 1.0
_BYTES_FLOOR = 1024.0
"""Below these rates relative changes do not matter: from 0.1 to 0.2 messages a second is +100 %."""


class Report(msgspec.Struct, frozen=True):
    """The two values to publish, and the bundles they cover."""

    broker: BrokerLoadData
    top: TopBundlesLoadData
    held: frozenset[Bundle]


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
        self._threshold = settings.load_report_threshold_percent / 100
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
        """The report as of the last sample; None before the first one."""
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
        return Report(
            broker, TopBundlesLoadData(self._broker, last.sample.at_ms, top, total, len(last.held), spread), last.held
        )

    def mean_of(self, bundle: Bundle, latest: BundleLoad) -> BundleLoad:
        """A held bundle's mean over the window, hottest keys too; `latest` itself if it is not held.

        Keys and bundle are of the same samples: a sample in which the process stood still has a hot bundle's mean
        beside keys without traffic, and nothing would show that one of them carries it.
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
    """The first change that others should know, in words; None if there is none. `threshold` is a fraction."""
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
