"""What the report asks of the lake: a step function cut into a picture's steps, and rows that stay few."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from loadmanager.errors import NotFound
from loadmanager.history.analyses.analysis import DEFAULTS
from loadmanager.history.lake import ALWAYS, Window
from loadmanager.history.report import Found, collect
from loadmanager.history.report.material import Span, bucket_usages
from loadmanager.history.schemas import TABLES

BEGIN = datetime(2030, 1, 28, 12, tzinfo=UTC)
TTL_S = 60.0


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def tables_of(spark: SparkSession, **given: list[dict[str, Any]]) -> Callable[[str], DataFrame]:
    def table(name: str) -> DataFrame:
        schema = TABLES[name]
        rows = [tuple(row.get(column) for column in schema.names) for row in given.get(name, [])]
        return spark.createDataFrame(rows, schema)

    return table


def report(broker: str, second: float, cpu: float | None, offset: int) -> dict[str, Any]:
    """Without CPU it is the deletion of the broker's load."""
    row: dict[str, Any] = {"partition": 0, "offset": offset, "appended_at": at(second), "broker": broker}
    if cpu is not None:
        row |= {"at": at(second), "incarnation": 1, "cpu_percent": float(cpu), "capacity": {"cpu": 1.0}}
    return row


@pytest.fixture
def reports(spark: SparkSession) -> Callable[[str], DataFrame]:
    """`a` is half full, then full, then deleted; `b` is silent after its first report."""
    rows = [report("a", 0, 50, 0), report("b", 0, 20, 1), report("a", 15, 100, 2), report("a", 40, None, 3)]
    rows.append(report("c", 100, 30, 4))
    return tables_of(spark, broker_load=rows)


def test_a_report_holds_until_the_next_its_deletion_or_its_time_to_live(reports: Callable[[str], DataFrame]):
    span = Span(BEGIN, at(100), 10)
    found = {
        (row["at"].second + 60 * (row["at"].minute % 60), row["broker"]): row
        for row in bucket_usages(reports, span, DEFAULTS.weights, TTL_S).collect()
    }
    assert {key[0] for key in found if key[1] == "a"} == {0, 10, 20, 30}
    assert {key[0] for key in found if key[1] == "b"} == {0, 10, 20, 30, 40, 50}
    assert found[0, "a"]["usage"] == pytest.approx(0.5)
    assert found[10, "a"]["usage"] == pytest.approx(0.75)
    assert found[10, "a"]["covered_s"] == pytest.approx(10.0)
    assert found[20, "a"]["usage"] == pytest.approx(1.0)


def test_a_lake_with_reports_alone_makes_a_report_without_the_rest(reports: Callable[[str], DataFrame]):
    asked: list[str] = []
    material = collect(reports, ALWAYS, DEFAULTS, Found(), ttl_s=TTL_S, asked=asked.append)
    assert asked == ["brokers", "decisions", "transfers", "failovers", "forecast", "capacity"]
    assert (material.span.begin, material.span.end, material.span.bucket_s) == (BEGIN, at(100), 1)
    assert material.brokers == 2  # c's only report is the span's end
    assert len(material.levels) == 60
    assert material.levels[20] == {"at": at(20), "mean": 0.6, "max": 1.0, "std": 0.4, "broker": "a", "brokers": 2}
    assert material.moves == material.gaps == material.failovers == material.forecast == []


def test_where_nobody_reported_it_says_when_somebody_did(spark: SparkSession, reports: Callable[[str], DataFrame]):
    with pytest.raises(NotFound, match="from 2030-01-28T12:00:00 to 2030-01-28T12:01:40"):
        collect(reports, Window(at(500), None), DEFAULTS, Found(), ttl_s=TTL_S)
    with pytest.raises(NotFound, match="history ingest"):
        collect(tables_of(spark), ALWAYS, DEFAULTS, Found(), ttl_s=TTL_S)


def test_the_hottest_that_have_a_future_are_drawn_and_all_that_were_lost_are_counted(spark: SparkSession):
    bundles = [f"t/n/0x{number}0000000_0x{number + 1}0000000" for number in range(7)]
    # the sixth is the hottest, and is split into nothing that is measured; then the fifth, the fourth, …
    minutes = [
        {"minute": at(3600 * hour), "bundle": name, "namespace": "t/n", "broker": "a", "covered_s": 60.0,
         "cpu_percent": 1.0 + number}
        for hour in range(8) for number, name in enumerate(bundles)
    ]  # fmt: skip
    brokers = [{"minute": at(3600 * hour), "broker": "a", "covered_s": 60.0, "cpu_percent": 50.0} for hour in range(8)]
    gone = {"partition": 0, "bundle": bundles[6], "namespace": "t/n", "appended_at": at(60), "at": at(60)}
    transitions = [
        gone | {"offset": 1, "ordinal": 0, "action": "split", "state_before": "assigned", "state": "splitting"},
        gone | {"offset": 2, "ordinal": 0, "action": "create", "state_before": "splitting", "state": None},
    ]
    transitions += [
        {"partition": 0, "offset": 10 + number, "ordinal": 0, "bundle": f"t/m/0x{number:08x}_0x{number + 1:08x}",
         "namespace": "t/m", "appended_at": at(90), "at": at(90), "action": "revoke", "state_before": "assigned",
         "state": "revoking", "holder_before": f"b{number}", "holder_before_incarnation": 1, "actor": "a"}
        for number in range(23)
    ]  # fmt: skip
    reports = [report("a", 0, 50, 0), report("a", 8 * 3600, 50, 1)]
    tables = tables_of(spark, broker_load=reports, bundle_minute=minutes, broker_minute=brokers, transition=transitions)
    material = collect(tables, ALWAYS, DEFAULTS, Found(), ttl_s=TTL_S)
    assert list(dict.fromkeys(row["bundle"] for row in material.forecast)) == bundles[5:1:-1]
    assert (material.lost, len(material.failovers), material.kinds) == (23, 20, 1)
    assert "lost" not in material.failovers[0]
