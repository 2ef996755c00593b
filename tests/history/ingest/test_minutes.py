"""Minutes are what counting second by second says, and those that new reports change are all made anew."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from random import Random
from typing import NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession

from loadmanager.history.ingest.gold import SPANS, affected, refresh_gold
from loadmanager.history.ingest.minutes import MINUTE_US, Reach, Span, broker_minutes
from loadmanager.history.ingest.progress import SILVER, Mark, advance
from loadmanager.history.lake import Lake, Once
from loadmanager.history.schemas import BROKER_LOAD
from loadmanager.model.load import BROKERS_TOPIC

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
S_US = 1_000_000
TTL_S = 300
LAST_S = 1_800
MANY = [Span(0, (LAST_S // 60 + 10) * MINUTE_US)]


class Report(NamedTuple):
    """At which second which incarnation of a broker reported which CPU; None deletes."""

    broker: str
    at_s: int
    incarnation: int
    cpu: float | None


def made(seed: int, count: int) -> list[Report]:
    """Reports of three brokers, at seconds of their own: often close together, sometimes further apart than the TTL."""
    rng, reports = Random(seed), list[Report]()
    for name in "abc":
        for at_s in rng.sample(range(LAST_S), count):
            gone = rng.random() < 0.1
            reports.append(Report(name, at_s, 1 + at_s // 1_000, None if gone else rng.uniform(0, 100)))
    return reports


def rows(spark: SparkSession, reports: list[Report], first: int = 0) -> DataFrame:
    """As BROKER_LOAD, in the order of the log."""
    values = []
    for offset, report in enumerate(reports, first):
        time = EPOCH + timedelta(seconds=report.at_s)
        known = report.cpu is not None
        values.append(
            {
                "partition": 0,
                "offset": offset,
                "appended_at": time,
                "broker": report.broker,
                "incarnation": report.incarnation if known else None,
                "at": time if known else None,
                "cpu_percent": report.cpu,
                "day": time.date(),
            }
        )
    return spark.createDataFrame(
        [tuple(value.get(name) for name in BROKER_LOAD.names) for value in values], BROKER_LOAD
    )


def counted(reports: list[Report], horizon_s: int) -> dict[tuple[int, str, int], tuple[float, float]]:
    """Minute, broker and incarnation to the seconds covered and the mean: by looking at every second."""
    seconds: dict[tuple[int, str, int], list[float]] = defaultdict(list)
    for broker in {report.broker for report in reports}:
        of_broker = {report.at_s: report for report in reports if report.broker == broker}
        now: Report | None = None
        for second in range(horizon_s):
            now = of_broker.get(second, now)
            if now is not None and now.cpu is not None and second < now.at_s + TTL_S:
                seconds[second // 60, broker, now.incarnation].append(now.cpu)
    return {key: (float(len(values)), sum(values) / len(values)) for key, values in seconds.items()}


def found(minutes: DataFrame) -> dict[tuple[int, str, int], tuple[float, float]]:
    return {
        (int(row.minute.timestamp()) // 60, row.broker, row.incarnation): (row.covered_s, row.cpu_percent)
        for row in minutes.collect()
    }


@pytest.mark.parametrize("count", [4, 60])
def test_a_minute_is_what_its_seconds_say(spark, count):
    reports = made(count, count)
    horizon_s = max(report.at_s for report in reports)
    minutes = broker_minutes(rows(spark, reports), Reach(TTL_S * S_US, horizon_s * S_US), MANY)
    expected = counted(reports, horizon_s)
    assert found(minutes) == {key: pytest.approx(value) for key, value in expected.items()}
    told = sum(row.reports for row in minutes.collect())
    assert 0 < told <= sum(report.cpu is not None for report in reports)


def test_gold_follows_late_reports_and_is_the_same_as_if_all_had_come_in_time(spark, lake):
    reports = made(7, 40)
    Random(1).shuffle(reports)
    reports.append(Report("a", 3, 1, 50.0))
    for number, part in enumerate((reports[:30], reports[30:31], reports[31:90], reports[90:])):
        first = reports.index(part[0])
        lake.append("broker_load", rows(spark, part, first), Once("test", number))
        advance(lake, SILVER, number, [Mark(BROKERS_TOPIC, 0, first + len(part), len(part), 0)])
        assert refresh_gold(lake, TTL_S)["broker_minute"] > 0
    horizon_s = max(report.at_s for report in reports)
    by_second = {report[:2]: report for report in reports}
    expected = counted(list(by_second.values()), horizon_s)
    assert found(lake.table("broker_minute")) == {key: pytest.approx(value) for key, value in expected.items()}
    assert refresh_gold(lake, TTL_S)["broker_minute"] == 0, "nothing came"
    refresh_gold(lake, TTL_S, everything=True)
    assert found(lake.table("broker_minute")) == {key: pytest.approx(value) for key, value in expected.items()}


def test_a_late_report_changes_its_time_to_live_and_nothing_between_that_and_now():
    hour, minute = 60 * MINUTE_US, MINUTE_US
    spans = affected([(3 * hour + 5, 3 * hour + 7), (9 * hour, 9 * hour)], 30 * minute, 9 * hour - 90, 9 * hour)
    assert spans == [Span(3 * hour, 3 * hour + 31 * minute), Span(9 * hour - minute, 9 * hour + minute)]


def test_nothing_is_made_beyond_the_horizon_and_spans_that_touch_are_one():
    minute = MINUTE_US
    assert affected([(0, 5 * minute)], 30 * minute, 0, 6 * minute) == [Span(0, 7 * minute)]
    assert affected([(0, 0), (2 * minute, 2 * minute)], minute, 9 * minute, 9 * minute) == [
        Span(0, 4 * minute),
        Span(9 * minute, 10 * minute),
    ]


def test_very_many_spans_are_made_as_one():
    hours = [(at_us, at_us) for at_us in range(0, (SPANS + 1) * 120 * MINUTE_US, 120 * MINUTE_US)]
    [span] = affected(hours, MINUTE_US, 0, hours[-1][1])
    assert span == Span(0, hours[-1][1] + MINUTE_US)


def test_a_lake_that_has_nothing_yet_has_no_gold(lake: Lake):
    assert refresh_gold(lake, TTL_S) == {"broker_minute": 0, "bundle_minute": 0}
