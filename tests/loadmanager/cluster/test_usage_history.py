"""How full brokers were: a report holds until the next one, spans keep the highest, an hour is kept."""

from __future__ import annotations

import pytest

from loadmanager.cluster import usage_history
from loadmanager.cluster.usage_history import SPAN_S, SPANS, UsageHistory, rows
from loadmanager.model.load import BrokerLoadData
from loadmanager.model.policies.model import BrokerPolicy, Policies
from loadmanager.settings import Settings
from statechannel.law.record import BrokerId


class Clock:
    """Wall time that a test moves."""

    def __init__(self) -> None:
        self.ms = 1_000 * SPAN_S * 1_000

    def __call__(self) -> int:
        return self.ms

    def pass_spans(self, spans: int) -> None:
        self.ms += 1000 * SPAN_S * spans


class Told:
    """A history, and reports of CPU only."""

    def __init__(self, policies: Policies | None = None) -> None:
        self.clock = Clock()
        self.history = UsageHistory(Settings, lambda: policies or Policies(), self.clock)

    def report(self, cpu_percent: float | None, broker: str = "a:1") -> None:
        load = None
        if cpu_percent is not None:
            load = BrokerLoadData(BrokerId(broker, 1), 0, cpu_percent=cpu_percent, capacity={"cpu": 2.0})
        self.history.take(broker, None, load)

    def last(self, spans: int, broker: str = "a:1") -> list[float | None]:
        return rows(self.history.copy()).brokers[broker][-spans:]


def test_a_report_holds_until_the_next_one() -> None:
    told = Told()
    told.report(20)
    told.clock.pass_spans(3)
    assert told.last(5) == [None, 0.2, 0.2, 0.2, 0.2]
    told.report(50)
    told.clock.pass_spans(1)
    assert told.last(3) == [0.2, 0.5, 0.5]


def test_a_span_keeps_the_highest_and_the_next_begins_with_the_present() -> None:
    told = Told()
    for percent in (20, 90, 30):
        told.report(percent)
    told.clock.pass_spans(1)
    assert told.last(2) == [0.9, 0.3]


def test_a_broker_without_report_is_nothing_from_then_on() -> None:
    told = Told()
    told.report(20)
    told.clock.pass_spans(1)
    told.report(None)
    told.clock.pass_spans(1)
    assert told.last(3) == [0.2, 0.2, None]


def test_an_hour_is_kept_and_silence_longer_than_that_is_one_report() -> None:
    told = Told()
    told.report(20)
    told.clock.pass_spans(3 * SPANS)
    assert told.last(SPANS) == [0.2] * SPANS
    told.report(None)
    told.clock.pass_spans(SPANS)
    assert rows(told.history.copy()).brokers == {}


def test_a_clock_that_goes_back_changes_nothing_that_was() -> None:
    told = Told()
    told.report(20)
    told.clock.pass_spans(-5)
    told.report(40)
    assert told.last(2) == [None, 0.4]


def test_the_policys_capacity_counts() -> None:
    told = Told(Policies(brokers={"a:1": BrokerPolicy(capacity={"cpu": 4.0})}))
    told.report(100)
    assert told.last(1) == [0.5]


def test_a_copy_does_not_change() -> None:
    told = Told()
    told.report(20)
    copy = told.history.copy()
    told.report(80)
    assert rows(copy).brokers["a:1"][-1] == 0.2


def test_silent_brokers_are_forgotten_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_history, "BROKERS_AT_MOST", 3)
    told = Told()
    for name in "abc":
        told.report(20, f"{name}:1")
    told.clock.pass_spans(SPANS)
    told.report(20, "d:1")
    assert list(rows(told.history.copy()).brokers) == ["d:1"]
