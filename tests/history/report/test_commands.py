"""`loadmanager history analyse`, `report`: on a small lake, in the session that there is."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import DataFrame, SparkSession

from loadmanager.errors import NotFound
from loadmanager.history import layout, published
from loadmanager.history.coverage import check_recorded
from loadmanager.history.lake import Lake, Once, Pinned, Window
from loadmanager.history.schemas import TABLES
from loadmanager_api.cli.load_history.jobs import taken
from loadmanager_api.cli.main import main
from tests.history.ingest.material import records, write

BEGIN = datetime(2030, 1, 28, 12, tzinfo=UTC)
MADE = published.Provenance(job="test", at=BEGIN)


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


@pytest.mark.parametrize("engine", ["spark", "duckdb"])
def test_an_analysis_is_shown_and_published_with_where_it_comes_from(filled: Lake, engine: str):
    result = history(filled, "analyse", "--analysis", "imbalance", "-o", "json", "--engine", engine)
    assert result.exit_code == 0, result.output
    (shown,) = json.loads(result.stdout)
    fullest = next(row for row in shown["rows"] if row["resource"] == "fullest")
    assert (fullest["broker"], fullest["minute"]) == ("a:1", "2030-01-28T12:00:00Z")
    assert fullest["max_over_mean"] == pytest.approx(0.5 / 0.35)
    found = published.read(f"{filled.root}/published", "analyses/imbalance")
    assert (found.rows, found.provenance.truncated) == (shown["rows"], False)
    assert found.provenance.lake_versions == Pinned(filled).versions(["broker_minute"])


def test_rows_beyond_the_limit_are_left_out_and_that_is_said(filled: Lake):
    result = history(filled, "analyse", "--analysis", "imbalance", "--rows", "1")
    assert result.exit_code == 0, result.output
    found = published.read(f"{filled.root}/published", "analyses/imbalance")
    assert (len(found.rows), found.provenance.truncated) == (1, True)


def test_versions_are_those_that_were_read_whatever_is_written_meanwhile(filled: Lake, monkeypatch: pytest.MonkeyPatch):
    late = {"minute": BEGIN + timedelta(minutes=1), "broker": "late:1", "covered_s": 60.0, "day": BEGIN.date()}
    before = Pinned(filled).versions(["broker_minute"])

    def while_an_ingest_writes(answer: DataFrame, most: int) -> Any:
        schema = TABLES["broker_minute"]
        rows = filled.spark.createDataFrame([tuple(late.get(name) for name in schema.names)], schema)
        filled.append("broker_minute", rows, Once("test", 2))
        return taken(answer, most)

    monkeypatch.setattr("loadmanager_api.cli.load_history.analyses.taken", while_an_ingest_writes)
    assert history(filled, "analyse", "--analysis", "imbalance", "--engine", "spark").exit_code == 0
    found = published.read(f"{filled.root}/published", "analyses/imbalance")
    assert {row["minute"] for row in found.rows} == {"2030-01-28T12:00:00Z"}
    assert found.provenance.lake_versions == before != Pinned(filled).versions(["broker_minute"])


@pytest.mark.parametrize("command", ["analyse", "advise", "replay"])
def test_a_time_of_which_nothing_is_recorded_replaces_no_answer(filled: Lake, command: str):
    root = Path(filled.root, published.FOLDER)
    for name in ("analyses/imbalance", "advice", "replay", "replay-windows"):
        published.publish(root, name, [{"n": 1}], MADE)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*.json")}
    result = history(filled, command, "--from", "2040-01-01")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.removeprefix("engine: DuckDB (--engine spark for Spark)\n") == (
        "Error: nothing is recorded from 2040-01-01T00:00:00 on; the lake has records from 2030-01-28T12:00:00 to "
        "2030-01-28T12:01:00 (UTC): take another --from or --to\n"
    )
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*.json")} == before


@pytest.mark.parametrize(
    ("window", "told"),
    [
        (Window(None, datetime(2020, 1, 1, tzinfo=UTC)), "recorded before 2020-01-01T00:00:00; the lake"),
        (
            Window(BEGIN - timedelta(days=2), BEGIN - timedelta(days=1)),
            "from 2030-01-26T12:00:00 to 2030-01-27T12:00:00; the lake",
        ),
        (Window(BEGIN, BEGIN + timedelta(seconds=1)), ""),
        (Window(BEGIN + timedelta(seconds=60), BEGIN + timedelta(seconds=61)), ""),
    ],
)
def test_a_time_is_recorded_if_any_table_has_rows_of_it(filled: Lake, window: Window, told: str):
    if not told:
        return check_recorded(filled, window)
    with pytest.raises(NotFound, match=told):
        check_recorded(filled, window)
    return None


def test_an_answer_may_be_empty_where_something_is_recorded(filled: Lake):
    published.publish(Path(filled.root, published.FOLDER), "analyses/failovers", [{"n": 1}], MADE)
    result = history(filled, "analyse", "--analysis", "failovers", "--from", "2030-01-28")
    assert result.exit_code == 0, result.output
    assert published.read(f"{filled.root}/published", "analyses/failovers").rows == []


def test_an_empty_lake_says_what_to_run_first(lake: Lake):
    lake.prepare("bronze")
    result = history(lake, "analyse")
    assert (result.exit_code, "run `loadmanager history ingest` first" in result.stderr) == (1, True)
    assert not Path(lake.root, published.FOLDER).exists()


def apart(lake: Lake | Path, *arguments: str, job: str = "analyse") -> subprocess.CompletedProcess[str]:
    """A job in a process of its own, with a JVM of its own."""
    root = lake.root if isinstance(lake, Lake) else lake
    program = [sys.executable, "-c", "from loadmanager_api.cli.main import main; main()"]
    command = [*program, "history", job, "--lake", root, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_standard_error_has_no_word_of_sparks_own(lake: Lake):
    lake.prepare("bronze")
    run = apart(lake, "--engine", "spark")
    assert [line for line in run.stderr.splitlines() if not line.startswith("starting Spark, ")] == [
        "Error: nothing is recorded in this lake yet: run `loadmanager history ingest` first"
    ]


def whole_s(said: str) -> float:
    """The command's whole time, as it says."""
    [found] = re.findall(r"^took ([\d.]+) s in all$", said, re.MULTILINE)
    return float(found)


@pytest.mark.slow
def test_standard_error_of_jobs_that_succeed_has_their_steps_alone(tmp_path: Path):
    asyncio.run(write(tmp_path / "log.db", records(seed=1)))
    ours = re.compile(r"(\[\d+/\d+\] )?[\w ]+, [\d.]+ s$|published: |engine: DuckDB|took [\d.]+ s in all$")
    for job, arguments in (("ingest", ["--log", f"sqlite:{tmp_path / 'log.db'}"]), ("analyse", []), ("report", [])):
        run = apart(tmp_path / "lake", *arguments, job=job)
        assert run.returncode == 0, run.stderr
        assert [line for line in run.stderr.splitlines() if not ours.match(line)] == []
        told = [line.partition(",")[0] for line in run.stderr.splitlines()]
        assert ("starting Spark" in told) == (job != "analyse")
        assert (job == "ingest") == ("reading how far the lake is" in told)
        assert job == "analyse" or whole_s(run.stderr) > sum(map(float, re.findall(r", ([\d.]+) s$", run.stderr, re.M)))


def test_a_jvm_that_does_not_start_is_told_in_a_line_below_its_own(lake: Lake):
    lake.prepare("bronze")
    run = apart(lake, "--engine", "spark", "--memory", "9999999t")
    assert (run.returncode, "Traceback" in run.stderr, "VM" in run.stderr.splitlines()[0]) == (1, False, True)
    told = (
        "Error: no Spark session at local[2]: its JVM did not start, see its output above; it needs a JDK 17 or later"
    )
    assert run.stderr.splitlines()[-1] == told


def test_the_session_that_was_there_stays(filled: Lake, spark: SparkSession):
    assert history(filled, "analyse", "--analysis", "imbalance", "--engine", "spark").exit_code == 0
    assert spark.range(3).count() == 3


def test_an_unknown_analysis_is_refused_with_those_that_there_are(filled: Lake):
    result = history(filled, "analyse", "--analysis", "horoscope")
    assert result.exit_code == 1
    assert "there is no analysis horoscope; there are" in result.output
    assert "imbalance" in result.output


@pytest.mark.parametrize("engine", ["spark", "duckdb"])
def test_a_lake_of_a_later_release_is_refused(filled: Lake, engine: str):
    table = layout.delta(filled.path("broker_minute"))
    filled.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('{layout.FORMAT_PROPERTY}' = '99')")
    for command in (("analyse", "--analysis", "imbalance"), ("sql", "SELECT * FROM cluster_load_by_minute")):
        result = history(filled, *command, "--engine", engine)
        assert (result.exit_code, "upgrade this program" in result.stderr) == (1, True)


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
