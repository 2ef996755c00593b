"""Minutes are what counting second by second says, and all those that new reports change are made again."""

from __future__ import annotations

import itertools
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from random import Random
from typing import NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession

from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.history.ingest.gold import SPANS, affected, refresh_gold
from loadmanager.history.ingest.positions import SILVER, Mark, advance
from loadmanager.history.lake import Lake, Once
from loadmanager.history.minutes import MINUTE_US, Span
from loadmanager.history.schemas import BROKER_LOAD, TRANSITION
from loadmanager.model.load import BROKERS_TOPIC

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
S_US = 1_000_000
TTL_S = 300
LAST_S = 1_800
DEATHS = {("a", 1): (700, 720), ("b", 2): (1_400, 1_420)}
"""At which seconds the leader revoked what an incarnation served."""


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


def revokes(spark: SparkSession) -> DataFrame:
    """As TRANSITION: the deaths, each of two bundles, and before them a bundle that was stuck at a living broker."""
    told = [(*key, at_s, "assigned") for key, times in DEATHS.items() for at_s in times]
    told += [(*key, times[0] - 200, "assigning") for key, times in DEATHS.items()]
    values = []
    for offset, (broker, incarnation, at_s, state) in enumerate(told):
        time = EPOCH + timedelta(seconds=at_s)
        value = {
            "partition": 0, "offset": offset, "appended_at": time, "at": time, "day": time.date(), "action": "revoke",
            "ordinal": 0, "bundle": f"b{offset}", "state_before": state, "state": "revoking", "holder_before": broker,
            "holder_before_incarnation": incarnation, "holder": broker, "holder_incarnation": incarnation,
        }  # fmt: skip
        values.append(tuple(value.get(name) for name in TRANSITION.names))
    return spark.createDataFrame(values, TRANSITION)


def heard(broker: str, reports: list[Report]) -> list[Report]:
    """What counts of a broker: nothing of a dead incarnation, and no late report of one that stopped."""
    mine = sorted((each for each in reports if each.broker == broker), key=lambda each: each.at_s)
    late = [
        first.cpu is not None
        and deletion.cpu is None
        and each.cpu is not None
        and first.incarnation >= each.incarnation
        and each.at_s - first.at_s < TTL_S
        for first, deletion, each in zip(mine, mine[1:], mine[2:], strict=False)
    ]
    return [each for each, is_late in zip(mine, [False, False, *late], strict=False) if not (is_late or is_dead(each))]


def is_dead(report: Report) -> bool:
    times = () if report.cpu is None else DEATHS.get((report.broker, report.incarnation), ())
    return any(0 <= report.at_s - at_s < TTL_S for at_s in times)


def counted(reports: list[Report], horizon_s: int) -> dict[tuple[int, str, int], tuple[float, float]]:
    """Minute, broker and incarnation to the seconds covered and the mean: by looking at every second."""
    seconds: dict[tuple[int, str, int], list[float]] = defaultdict(list)
    for broker in {report.broker for report in reports}:
        of_broker = {each.at_s: each for each in heard(broker, reports)}
        now: Report | None = None
        for second in range(horizon_s):
            now = of_broker.get(second, now)
            if now is None or now.cpu is None or second >= now.at_s + TTL_S:
                continue
            if not any(now.at_s < at_s <= second for at_s in DEATHS.get((broker, now.incarnation), ())):
                seconds[second // 60, broker, now.incarnation].append(now.cpu)
    return {key: (float(len(values)), sum(values) / len(values)) for key, values in seconds.items()}


def found(minutes: DataFrame) -> dict[tuple[int, str, int], tuple[float, float]]:
    return {
        (int(row.minute.timestamp()) // 60, row.broker, row.incarnation): (row.covered_s, row.cpu_percent)
        for row in minutes.collect()
    }


@pytest.mark.parametrize("count", [4, 40])
def test_gold_follows_late_reports_and_deaths_and_is_what_each_second_says(spark, lake, count):
    reports = made(7, count)
    Random(1).shuffle(reports)
    reports.append(Report("c", 3, 1, 50.0))
    cuts = [0, count // 2, count // 2 + 1, 2 * count, len(reports)]
    for number, (first, last) in enumerate(itertools.pairwise(cuts)):
        lake.append("broker_load", rows(spark, reports[first:last], first), Once("test", number))
        if number == 2:
            lake.append("transition", revokes(spark), Once("test", number))
            advance(lake, SILVER, number + 10, [Mark(CHANNEL_TOPIC, 0, 6, 6, 0)])
        advance(lake, SILVER, number + 20, [Mark(BROKERS_TOPIC, 0, last, last - first, 0)])
        assert refresh_gold(lake, TTL_S)["broker_minute"] > 0
    horizon_s = max(report.at_s for report in reports)
    expected = {key: pytest.approx(value) for key, value in counted(reports, horizon_s).items()}
    assert found(lake.table("broker_minute")) == expected
    told = sum(row.reports for row in lake.table("broker_minute").collect())
    assert 0 < told <= sum(report.cpu is not None for report in reports)
    assert refresh_gold(lake, TTL_S)["broker_minute"] == 0, "nothing came"
    refresh_gold(lake, TTL_S, everything=True)
    assert found(lake.table("broker_minute")) == expected


def test_a_late_report_changes_two_times_to_live_and_nothing_between_these_and_now():
    hour, minute = 60 * MINUTE_US, MINUTE_US
    spans = affected([(3 * hour + 5, 3 * hour + 7), (9 * hour, 9 * hour)], 30 * minute, 9 * hour - 90, 9 * hour)
    assert spans == [Span(3 * hour, 3 * hour + 61 * minute), Span(9 * hour - minute, 9 * hour + minute)]


def test_nothing_is_made_beyond_the_horizon_and_spans_that_touch_are_one():
    minute = MINUTE_US
    assert affected([(0, 5 * minute)], 30 * minute, 0, 6 * minute) == [Span(0, 7 * minute)]
    assert affected([(0, 0), (2 * minute, 2 * minute)], minute, 9 * minute, 9 * minute) == [
        Span(0, 5 * minute),
        Span(9 * minute, 10 * minute),
    ]


def test_very_many_spans_are_made_as_one():
    hours = [(at_us, at_us) for at_us in range(0, (SPANS + 1) * 120 * MINUTE_US, 120 * MINUTE_US)]
    [span] = affected(hours, MINUTE_US, 0, hours[-1][1])
    assert span == Span(0, hours[-1][1] + MINUTE_US)


def test_a_lake_that_has_nothing_yet_has_no_gold(lake: Lake):
    assert refresh_gold(lake, TTL_S) == {"broker_minute": 0, "bundle_minute": 0}
