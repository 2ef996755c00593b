"""Seasons and forecasts through Spark, benefit, groups; and every analysis on a history in which nothing is."""

from __future__ import annotations

import math
from itertools import chain
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from bench.analyse import difference
from bench.generating.arrow import schema_of
from loadmanager.history.analyses import ANALYSES
from loadmanager.history.analyses.analysis import DEFAULTS, MOST_HOURS
from loadmanager.history.duck import speak_spark
from loadmanager.history.engine import answered
from loadmanager.history.lake import ALWAYS, Window
from loadmanager.history.schemas import TABLES
from tests.history.analyses.making import Chain, Row, answers, at, since, tables
from tests.history.analyses.test_bundles_and_brokers import broker_minute, bundle_minute, options

A, B, GONE = "t/n/0x00000000_0x40000000", "t/n/0x40000000_0x80000000", "t/n/0x80000000_0xffffffff"


def test_every_analysis_answers_an_empty_history_with_nothing(spark: SparkSession) -> None:
    table = tables(spark)
    for name, analysis in ANALYSES.items():
        assert name == analysis.name
        assert set(analysis.needs) <= set(TABLES)
        found = analysis.run(table, Window(at(0), at(60)), DEFAULTS)
        assert found.columns
        assert found.collect() == [], name
        assert set(analysis.order) <= set(found.columns), name


def test_every_analysis_has_its_section() -> None:
    page = (Path(__file__).parents[3] / "docs" / "analyses.md").read_text(encoding="utf-8")
    sections = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert set(ANALYSES) == set(sections) - {"Histories to try them on"}
    assert all(f"](#{name})" in page for name in ANALYSES)


def test_a_daily_load_is_found_and_forecast(spark: SparkSession) -> None:
    rows = []
    for hour in range(24 * 6 + 1):
        wave = 100 * (2 + math.cos(2 * math.pi * (hour - 15) / 24))
        for half, factor in ((0, 0.5), (30, 1.5)):
            rows.append(bundle_minute(60 * hour + half, A, in_rate_msg_s=wave * factor))
            rows.append(bundle_minute(60 * hour + half, B, in_rate_msg_s=50.0))
            if hour < 48:
                rows.append(bundle_minute(60 * hour + half, GONE, in_rate_msg_s=5.0))
    table = tables(spark, bundle_minute=rows)
    by_messages = options(measure="message rate", horizon_h=12)
    found = answers(ANALYSES["seasonality"].run(table, ALWAYS, by_messages), "bundle")
    assert {name: row["period_h"] for name, row in found.items()} == {A: 24, B: 0, GONE: 0}
    assert (found[A]["peak_hour"], found[A]["trough_hour"]) == (15, 3)
    assert found[A]["swing"] == pytest.approx(1.0, abs=0.02)
    assert found[A]["namespace"] == "t/n"
    assert found[GONE]["coverage"] == pytest.approx(48 / 145)
    ahead = answers(ANALYSES["forecast"].run(table, ALWAYS, by_messages), "bundle", "at")
    assert {name for name, _ in ahead} == {A, B}
    for (name, moment), row in ahead.items():
        hour = since(moment) / 3600
        wave = 100 * (2 + math.cos(2 * math.pi * (hour - 15) / 24)) if name == A else 50.0
        assert 145 <= hour < 157
        assert row["predicted"] == pytest.approx(wave, rel=1e-6)
        assert row["low"] <= row["predicted"] <= row["high"]
    errors = answers(ANALYSES["forecast_error"].run(table, ALWAYS, by_messages), "bundle", "way")
    assert [way for (name, way), row in errors.items() if name == A and row["chosen"]] == ["daily"]
    assert errors[A, "naive"]["mape"] > 0.1


def test_a_bundle_that_was_split_has_no_future(spark: SparkSession) -> None:
    parent, low, high = "t/n/0x00000000_0x80000000", "t/n/0x00000000_0x40000000", "t/n/0x40000000_0x80000000"
    rows = [bundle_minute(60 * hour, parent, in_rate_msg_s=90.0) for hour in range(60)]
    rows += [bundle_minute(60 * hour, name, in_rate_msg_s=45.0) for hour in range(60, 72) for name in (low, high)]
    chain = Chain()
    chain.born(0, parent, "a")
    chain.step(3600 * 60, parent, "split", "splitting", "a")
    chain.step(3600 * 60 + 1, parent, "create", None)
    for name in (low, high):
        chain.step(3600 * 60 + 1, name, "create", "assigned", "a")
    table = tables(spark, bundle_minute=rows, transition=chain.rows)
    by_messages = options(measure="message rate", horizon_h=2)
    for name in ("forecast", "forecast_error"):
        found = ANALYSES[name].run(table, ALWAYS, by_messages).select("bundle").distinct().collect()
        assert {row["bundle"] for row in found} == {low, high}, name
    # before it was split it had one
    early = ANALYSES["forecast"].run(table, Window(end=at(3600 * 50)), by_messages).collect()
    assert {row["bundle"] for row in early} == {parent}
    count = answers(ANALYSES["bundle_count"].run(table, ALWAYS, by_messages), "namespace")["t/n"]
    assert (count["bundles"], count["measured"], count["bundle"]) == (2, 2, max(low, high))


def test_a_clock_that_is_years_wrong_makes_no_series_of_centuries(spark: SparkSession) -> None:
    rows = [bundle_minute(60 * hour, A, in_rate_msg_s=90.0) for hour in (-700_000, 0, 1)]
    found = ANALYSES["seasonality"].run(tables(spark, bundle_minute=rows), ALWAYS, options(measure="message rate"))
    [row] = found.collect()
    assert (row["hours"], row["coverage"]) == (2, pytest.approx(2 / MOST_HOURS))


def test_benefit_holds_the_minutes_before_and_after_against_the_promise(spark: SparkSession) -> None:
    rows = []
    for minute in range(30):
        # until minute 10 one broker has 90 %, the other 30: max/mean - 1 is 0.5; then 66 to 54: 0.1
        high, low = (90.0, 30.0) if minute <= 10 else (66.0, 54.0)
        rows += [broker_minute(minute, "a", cpu_percent=high), broker_minute(minute, "b", cpu_percent=low)]
    decision = {"at": at(10 * 60 + 20), "id": "1.2", "strategy": "plan", "moves": 2, "begun": 1}
    decision |= {"spread_before": 0.6, "spread_after": 0.1}
    idle = decision | {"id": "1.3", "begun": 0}
    unknown = decision | {"id": "1.9", "at": at(7200)}
    moves = [
        {"decision": "1.2", "bundle": A, "gain": 0.125, "outcome": "begun"},
        {"decision": "1.2", "bundle": B, "gain": 0.125, "outcome": "begun"},
        {"decision": "1.2", "bundle": GONE, "gain": 9.0, "outcome": "refused"},
    ]
    moves += moves[:1]
    table = tables(spark, broker_minute=rows, decision=[decision, decision, idle, unknown], move=moves)
    found = answers(ANALYSES["benefit"].run(table, ALWAYS, DEFAULTS), "id")
    assert set(found) == {"1.2", "1.9"}
    one = found["1.2"]
    assert (one["measured_before"], one["measured_after"]) == pytest.approx((0.5, 0.1))
    assert (one["predicted"], one["measured"], one["kept"], one["gain"]) == pytest.approx((0.5, 0.4, 0.8, 0.25))
    cut = answers(ANALYSES["benefit"].run(table, Window(at(600), at(660)), DEFAULTS), "id")
    assert cut == {"1.2": one}
    assert (found["1.9"]["measured_before"], found["1.9"]["kept"]) == (None, None)


def lags(group: str, *reports: tuple[float, int, int | None, int | None, str | None]) -> list[Row]:
    """Each: when (s), queue, lag, generation, consumer."""
    return [
        {"partition": 0, "offset": offset, "group": group, "topic": "t", "at": at(seconds), "queue": queue,
         "lag": waiting, "generation": generation, "consumer": consumer}
        for offset, (seconds, queue, waiting, generation, consumer) in enumerate(reports)
    ]  # fmt: skip


REPORTS = {
    "settled": lags(
        "settled",
        *((0, 0, 10, 1, "x"), (0, 1, 10, 1, "y"), (60, 0, 20, 1, "x"), (60, 1, 20, 1, "y")),
        *((60, 0, 40, 2, "x"), (60, 1, 40, 2, "x"), (120, 0, 0, 3, "z"), (120, 1, 0, 3, "x")),
        *((180, 0, None, 3, "z"), (180, 1, None, 3, "x")),
    ),
    "one": lags("one", (5, 0, 7, None, None)),
    "resting": lags("resting", *((0, 0, 100, 4, None), (0, 1, 30, 4, None), (86_400, 0, 40, 4, None))),
    "restarted": lags(
        "restarted", *((60.0 * n, 0, 1, each, str(each)) for n, each in enumerate((5, 9, 2, None, 2, 5)))
    ),
    "taken over": lags("taken over", (0, 0, 1, 1, "x"), (60, 0, 1, 9, "y"), (120, 0, 1, 1, "y")),
}


def groups(*more: Row) -> dict[str, Row]:
    """DuckDB's answers by group."""
    with duckdb.connect() as db:
        speak_spark(db)
        db.register("group_lag", pa.Table.from_pylist([*chain(*REPORTS.values()), *more], schema_of("group_lag")))
        rows = answered(db, "groups", ALWAYS, DEFAULTS).to_arrow_table().to_pylist()
    return {row["group"]: row for row in rows}


def test_groups() -> None:
    found = groups()
    one = found["settled"]
    # 10 for a minute, 20 for no time, 40 for a minute, 0 for a minute
    assert (one["queues"], one["lag_mean"], one["lag_max"]) == (2, pytest.approx(50 / 3), 40)
    assert (one["rebalances"], one["rebalances_h"]) == (2, pytest.approx(2 / 0.05))
    # x kept its first queue once and its second once, of four chances
    assert one["stickiness"] == pytest.approx(0.5)
    assert [found["one"][name] for name in ("lag_mean", "lag_last", "rebalances", "stickiness")] == [7.0, 7, 0, None]


def test_a_report_of_lag_is_in_force_for_five_minutes_at_most() -> None:
    """Without members there are no reports: here for a day. Then one of two queues is gone."""
    resting = groups()["resting"]
    assert (resting["lag_mean"], resting["lag_last"]) == (pytest.approx((100 + 30) / 2), 40)
    late = {"at": at(86_399), "queue": 1, "lag": 2, "group": "resting", "topic": "t", "partition": 0, "offset": 9}
    assert groups(late)["resting"]["lag_last"] == 42


def test_rebalances_are_how_far_the_generation_rose() -> None:
    """Also between two reports, and after the group was deleted and began again."""
    found = groups()
    assert found["restarted"]["rebalances"] == 4 + 2 + 3
    assert found["restarted"]["stickiness"] == 0, "the two lives of generation 5 are not the same one"
    assert found["taken over"]["stickiness"] == 0.5


def test_spark_answers_as_duckdb_about_groups(spark: SparkSession) -> None:
    analysis = ANALYSES["groups"]
    ours = analysis.run(tables(spark, group_lag=chain(*REPORTS.values())), ALWAYS, DEFAULTS).toArrow()
    theirs = pa.Table.from_pylist(list(groups().values()), ours.schema)
    assert difference(ours, theirs, analysis.order) == ""
