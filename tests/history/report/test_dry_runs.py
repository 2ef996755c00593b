"""`loadmanager history … --dry-run`: what a job would read and write is checked and shown, and nothing is changed."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import functions as f

from loadmanager.history import published
from loadmanager.history.lake import Lake
from loadmanager_api.cli.main import main
from tests.history.advising.test_considering import broker_minutes, bundle_minutes
from tests.history.audit.test_audit_command import ENTRIES, log_of, true_state
from tests.history.report.test_commands import fill, filled, history

__all__ = ["filled"]


@pytest.fixture
def log(tmp_path: Path) -> str:
    return f"sqlite:{log_of(tmp_path / 'log.db', ENTRIES, true_state()).removeprefix('sqlite:')}"


def content(folder: Path) -> dict[str, Any]:
    """Every file below it; of the log's file what is in it."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".db":
            with closing(sqlite3.connect(path)) as db:
                found[str(path)] = list(db.iterdump())
        elif path.suffix not in (".db-wal", ".db-shm"):
            found[str(path)] = path.read_bytes() if path.is_file() else None
    return found


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["history", *arguments])


def rehearsed(lake: Lake, command: str, *arguments: str) -> dict[str, Any]:
    """The answer of a dry run for programs; the one for people is there too, and neither changed a file."""
    folder = Path(lake.root).parent
    before = content(folder)
    told = history(lake, command, *arguments, "--dry-run")
    assert told.exit_code == 0, told.output
    assert "nothing was changed; without --dry-run" in told.stdout
    said = history(lake, command, *arguments, "--dry-run", "-o", "json")
    assert said.exit_code == 0, said.output
    assert content(folder) == before
    found = json.loads(said.stdout)
    assert found["dry_run"]
    assert all(path in told.stdout for path in found["writes"])
    return found


def test_an_ingest_into_a_new_lake_makes_none(lake: Lake, log: str):
    found = rehearsed(lake, "ingest", "--log", log)
    (channel,) = found["reads"]
    assert (channel["topic"], channel["in the lake"], channel["to read"]) == ("bundle-state", 0, len(ENTRIES))
    assert found["writes"] == [f"{lake.root}/tables", f"{lake.root}/checkpoints"]
    assert not Path(lake.root).exists()


def test_an_ingest_says_what_is_left_to_read(lake: Lake, log: str):
    assert history(lake, "ingest", "--log", log).exit_code == 0
    (channel,) = rehearsed(lake, "ingest", "--log", log)["reads"]
    assert (channel["in the lake"], channel["to read"]) == (len(ENTRIES), 0)


def test_an_audit_says_what_it_would_read(lake: Lake, log: str):
    assert history(lake, "ingest", "--log", log).exit_code == 0
    found = rehearsed(lake, "audit", "--log", log)
    assert found["reads"][0]["to read"] == len(ENTRIES)
    rows = {row["table"]: row["rows"] for row in found["reads"][1:]}
    assert rows == {name: lake.table(name).count() for name in rows}
    assert rows["bronze"] == len(ENTRIES)
    assert found["writes"] == [f"{lake.root}/{published.FOLDER}/audit.json"]
    alone = run("audit", "--log", log, "--dry-run")
    assert (alone.exit_code, "would write nothing" in alone.stdout) == (0, True), alone.output


@pytest.mark.parametrize(
    ("arguments", "writes"),
    [
        (["analyse", "--analysis", "imbalance"], ["analyses/imbalance.json"]),
        (["replay", "--window-s", "30"], ["replay.json", "replay-windows.json"]),
        (["report"], ["report.html", "pictures"]),
    ],
    ids=lambda value: value[0],
)
def test_a_job_that_reads_says_what_it_would_publish(filled: Lake, arguments: list[str], writes: list[str]):
    found = rehearsed(filled, *arguments)
    assert found["writes"] == [f"{filled.root}/{published.FOLDER}/{name}" for name in writes]
    table = "broker_minute" if arguments[0] == "analyse" else "broker_load"
    (row,) = (row for row in found["reads"] if row["table"] == table)
    assert row["rows"] == filled.table(table).count()


@pytest.mark.parametrize("command", ["analyse", "replay", "report", "audit", "ingest"])
def test_a_dry_run_fails_where_the_job_would(lake: Lake, tmp_path: Path, command: str):
    log = ("--log", f"sqlite:{tmp_path / 'none.db'}") if command == "ingest" else ()
    for more in ((), ("--set", "nonsense=1")):
        results = [history(lake, command, *log, *more, *dry) for dry in ((), ("--dry-run",))]
        assert results[0].exit_code in (1, 2)
        assert [(each.exit_code, each.stderr) for each in results[1:]] == [(results[0].exit_code, results[0].stderr)]
    assert not Path(lake.root).exists()


def test_a_column_of_another_type_is_found(filled: Lake):
    rows = filled.table("broker_minute").withColumn("covered_s", f.col("covered_s").cast("string"))
    rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(filled.path("broker_minute"))
    result = history(filled, "analyse", "--analysis", "imbalance", "--dry-run")
    assert result.exit_code == 1
    assert "broker_minute has covered_s as string; this release reads double" in result.stderr


def test_advice_of_a_dry_run_is_neither_published_nor_proposed(lake: Lake):
    fill(lake, "bundle_minute", list(bundle_minutes()))
    minutes = list(broker_minutes())
    fill(lake, "broker_minute", minutes)
    reports = [
        {**row, "at": row["minute"], "partition": 0, "offset": at, "bundles": int(row["bundles"])}
        for at, row in enumerate(minutes)
    ]
    fill(lake, "broker_load", reports)
    asked = ("advise", "--kind", "bundles", "--propose", "--admin-url", "http://127.0.0.1:9", "-o", "json")
    before = content(Path(lake.root).parent)
    dry = history(lake, *asked, "--dry-run")
    assert dry.exit_code == 0, dry.output
    (advice,) = json.loads(dry.stdout)["advice"]
    assert "t/n" in advice["title"]
    assert content(Path(lake.root).parent) == before
    real = history(lake, *asked)
    assert real.exit_code != 0, "nobody is there to take the proposal"
    assert history(lake, "advise", "--kind", "bundles").exit_code == 0
    assert [row["title"] for row in published.read(f"{lake.root}/{published.FOLDER}", "advice").rows] == [
        advice["title"]
    ]
