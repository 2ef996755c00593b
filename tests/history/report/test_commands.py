"""`loadmanager history analyse`, `report`: on a small lake, in the session that there is."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from api.cli.main import main
from loadmanager.history import layout, published
from loadmanager.history.lake import Lake, Once
from loadmanager.history.schemas import TABLES

BEGIN = datetime(2030, 1, 28, 12, tzinfo=UTC)


def fill(lake: Lake, table: str, rows: list[dict[str, Any]]) -> None:
    schema = TABLES[table]
    values = [tuple(row.get(name) for name in schema.names) for row in rows]
    lake.append(table, lake.spark.createDataFrame(values, schema), Once("test", 1))


@pytest.fixture
def filled(lake: Lake) -> Lake:
    """Two brokers for a minute: one half full, one a fifth."""
    brokers = (("a:1", 50.0), ("b:1", 20.0))
    common = {"incarnation": 1, "capacity": {"cpu": 1.0}, "day": BEGIN.date()}
    minutes = [
        {"minute": BEGIN, "broker": name, "covered_s": 60.0, "cpu_percent": cpu, **common} for name, cpu in brokers
    ]
    reports = [
        {
            "partition": 0, "offset": 2 * step + number, "appended_at": at, "at": at,
            "broker": name, "cpu_percent": cpu, **common,
        }
        for step in range(7)
        for number, (name, cpu) in enumerate(brokers)
        for at in [BEGIN + timedelta(seconds=10 * step)]
    ]  # fmt: skip
    fill(lake, "broker_minute", minutes)
    fill(lake, "broker_load", reports)
    return lake


def history(lake: Lake, command: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["history", command, "--lake", lake.root, *arguments])


def test_an_analysis_is_shown_and_published_with_where_it_comes_from(filled: Lake):
    result = history(filled, "analyse", "--analysis", "imbalance", "-o", "json")
    assert result.exit_code == 0, result.output
    (shown,) = json.loads(result.stdout)
    fullest = next(row for row in shown["rows"] if row["resource"] == "fullest")
    assert (fullest["broker"], fullest["minute"]) == ("a:1", "2030-01-28T12:00:00Z")
    assert fullest["max_over_mean"] == pytest.approx(0.5 / 0.35)
    found = published.read(f"{filled.root}/published", "analyses/imbalance")
    assert (found.rows, found.provenance.truncated) == (shown["rows"], False)
    assert set(found.provenance.lake_versions) == {"broker_minute"}


def test_rows_beyond_the_limit_are_left_out_and_that_is_said(filled: Lake):
    result = history(filled, "analyse", "--analysis", "imbalance", "--rows", "1")
    assert result.exit_code == 0, result.output
    found = published.read(f"{filled.root}/published", "analyses/imbalance")
    assert (len(found.rows), found.provenance.truncated) == (1, True)


def test_the_session_that_was_there_stays(filled: Lake, spark: SparkSession):
    assert history(filled, "analyse", "--list").exit_code == 0
    assert spark.range(3).count() == 3


def test_an_unknown_analysis_is_refused_with_those_that_there_are(filled: Lake):
    result = history(filled, "analyse", "--analysis", "horoscope")
    assert result.exit_code == 1
    assert "there is no analysis horoscope; there are" in result.output
    assert "imbalance" in result.output


def test_a_lake_of_a_later_release_is_refused(filled: Lake):
    table = layout.delta(filled.path("broker_minute"))
    filled.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{layout.FORMAT_PROPERTY}' = '99')")
    result = history(filled, "analyse", "--analysis", "imbalance")
    assert (result.exit_code, "upgrade this job" in result.output) == (1, True)


def test_the_report_is_drawn_from_what_there_is(filled: Lake):
    result = history(filled, "report")
    assert result.exit_code == 0, result.output
    assert published.has_report(f"{filled.root}/published")
    assert {"heat-map", "imbalance"} <= set(published.pictures(f"{filled.root}/published"))
    with published.open_report(f"{filled.root}/published") as file:
        page = file.read().decode()
    assert "The fullest broker was at most 1.43 times the mean" in page
    assert "No bundle moved" in page


def test_a_time_without_reports_is_told_with_when_there_are_some(filled: Lake):
    result = history(filled, "report", "--from", "2031-01-01")
    assert (result.exit_code, "from 2030-01-28T12:00:00 to 2030-01-28T12:01:00" in result.output) == (1, True)
