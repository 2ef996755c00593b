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
from loadmanager.history.report.buckets import usages
from loadmanager.history.report.material import Span
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
        for row in usages(reports, span, DEFAULTS.weights, TTL_S).collect()
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
