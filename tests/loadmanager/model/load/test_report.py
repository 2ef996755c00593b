"""When a broker reports its load: at its start, on a change that matters, or after the maximum interval."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmanager.model.host import BundleLoad
from loadmanager.model.load import Figures
from loadmanager.model.load_report import Hold, Publish, Reporter, Sample
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle, even_boundaries, tile
from statechannel.law.record import BrokerId

B1 = BrokerId("b1:6650", 7)
BUNDLES = tile("public/default", even_boundaries(16))
SETTINGS = Settings(load_window_s=5, load_report_max_interval_s=900)
BUSY = {bundle: BundleLoad(in_rate_msg_s=100, in_rate_bytes_s=100_000) for bundle in BUNDLES[:10]}


def sample(loads: Mapping[Bundle, BundleLoad] = BUSY, cpu: float = 20.0, memory: float = 10.0) -> Sample:
    return Sample(0, Figures(cpu, memory, 2.0, 1 << 30, 0.0, 0.0), loads)


def reported(first: Sample) -> Reporter:
    """A reporter whose report of this sample is out since time 0."""
    reporter = Reporter(B1, SETTINGS)
    reporter.observe(first, 0)
    report = reporter.current()
    assert report is not None
    reporter.published(report, 0)
    return reporter


def after(first: Sample, then: Sample, now_ms: int = 10_000, shown: bool = True) -> Publish | Hold:
    reporter = reported(first)
    reporter.observe(msgspec.structs.replace(then, at_ms=now_ms + then.at_ms), now_ms)
    return reporter.decide(now_ms, shown=shown)


def test_it_reports_at_once_when_the_broker_starts() -> None:
    reporter = Reporter(B1, SETTINGS)
    assert isinstance(reporter.decide(0, shown=False), Hold)
    reporter.observe(sample(), 0)
    decision = reporter.decide(0, shown=False)
    assert isinstance(decision, Publish)
    assert decision.reason == "the broker has started"
    assert decision.report.broker.bundles == decision.report.top.count == 10
    assert decision.report.broker.in_rate_msg_s == 1000


def test_a_hot_key_still_dominates_after_a_sample_without_any_traffic() -> None:
    bundle = BUNDLES[0]
    busy, still = (BundleLoad(40, in_rate_msg_s=100, hottest_keys=(("t/n/a", 90.0),)), BundleLoad(40))
    reporter = Reporter(B1, SETTINGS)
    for second, load in enumerate((busy, busy, still)):
        reporter.observe(sample({bundle: load}), 1000 * second)
    mean = reporter.mean_of(bundle, still)
    assert mean.hottest_keys == (("t/n/a", pytest.approx(60.0)),)
    assert mean.hottest_keys[0][1] / mean.rate_msg_s == pytest.approx(0.9), "as in each sample with traffic"
    assert reporter.mean_of(BUNDLES[1], busy) is busy, "not held"


def test_a_report_that_was_not_written_is_due_again() -> None:
    reporter = Reporter(B1, SETTINGS)
    reporter.observe(sample(), 0)
    assert reporter.decide(0, shown=False) == reporter.decide(1, shown=False)


@pytest.mark.parametrize(("set_ms", "way"), [(30_000, "ahead"), (-30_000, "back")])
def test_a_wall_clock_that_was_set_is_reported(set_ms: int, way: str) -> None:
    decision = after(sample(), msgspec.structs.replace(sample(), at_ms=set_ms))
    assert isinstance(decision, Publish)
    assert decision.reason == f"the wall clock was set {way} by 30 s"
    assert isinstance(after(sample(), msgspec.structs.replace(sample(), at_ms=set_ms // 10)), Hold)


def test_without_a_change_it_is_silent_until_the_maximum_interval() -> None:
    assert isinstance(after(sample(), sample(), 899_999), Hold)
    decision = after(sample(), sample(), 900_000)
    assert isinstance(decision, Publish)
    assert "900 s old" in decision.reason


MORE_MESSAGES = BUSY | {BUNDLES[0]: BundleLoad(in_rate_msg_s=250, in_rate_bytes_s=100_000)}
MORE_BYTES = BUSY | {BUNDLES[0]: BundleLoad(in_rate_msg_s=100, in_rate_bytes_s=250_000)}
SHIFTED = {
    bundle: BundleLoad(in_rate_msg_s=280 if i < 2 else 55, in_rate_bytes_s=100_000)
    for i, bundle in enumerate(BUNDLES[:10])
}


@pytest.mark.parametrize(
    ("then", "word"),
    [
        (sample(cpu=30.5), "cpu: 20% to"),
        (sample(cpu=9.0), "cpu: 20% to"),
        (sample(memory=21.0), "memory: 10% to"),
        (sample(MORE_MESSAGES), "messages: 1000/s to 1150/s"),
        (sample(MORE_BYTES), "throughput: 1000000 B/s to 1150000 B/s"),
        (sample(dict(list(BUSY.items())[1:])), "0 came, 1 went, 9 held"),
        (sample(dict.fromkeys(BUNDLES[1:11], BUSY[BUNDLES[0]])), "1 came, 1 went, 10 held"),
        (sample(SHIFTED), "10% to 28% of the broker's load"),
    ],
)
def test_it_reports_a_change_beyond_the_threshold_and_says_which(then: Sample, word: str) -> None:
    decision = after(sample(), then)
    assert isinstance(decision, Publish)
    assert word in decision.reason


def test_a_change_waits_for_the_minimum_interval() -> None:
    assert isinstance(after(sample(), sample(cpu=90), 833), Hold)
    assert isinstance(after(sample(), sample(cpu=90), 834), Publish)


@pytest.mark.parametrize("then", [sample(cpu=29.9), sample(cpu=10.1), sample(memory=19)])
def test_a_change_within_the_threshold_is_none(then: Sample) -> None:
    assert isinstance(after(sample(), then), Hold)


def test_doubling_next_to_nothing_is_no_change() -> None:
    drop, drops = (sample({BUNDLES[0]: BundleLoad(in_rate_msg_s=r, in_rate_bytes_s=r)}) for r in (0.2, 0.4))
    assert isinstance(after(drop, drops), Hold)


def test_a_report_that_vanished_from_the_view_is_repeated() -> None:
    decision = after(sample(), sample(), shown=False)
    assert isinstance(decision, Publish)
    assert "not in the view" in decision.reason


def test_cpu_is_averaged_over_the_window_and_no_longer() -> None:
    reporter = Reporter(B1, SETTINGS)
    for second, cpu in enumerate([100, 100, 10, 20, 30, 20, 10, 30]):
        reporter.observe(sample(cpu=cpu), second * 1000)
    report = reporter.current()
    assert report is not None
    assert report.broker.cpu_percent == pytest.approx(20)


@settings(deadline=None)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=60))
def test_readers_err_by_the_threshold_for_the_minimum_interval_at_most(cpu: list[float]) -> None:
    reporter = Reporter(B1, SETTINGS)
    known: float | None = None
    for tick, percent in enumerate(cpu):
        now_ms = tick * 5_001
        reporter.observe(sample(cpu=percent), now_ms)
        decision = reporter.decide(now_ms, shown=known is not None)
        if isinstance(decision, Publish):
            reporter.published(decision.report, now_ms)
            known = decision.report.broker.cpu_percent
        current = reporter.current()
        assert current is not None
        assert known is not None
        assert abs(current.broker.cpu_percent - known) <= 10.000001
