"""`analyse` with DuckDB: where it is taken, what it answers without a JVM, and refusals."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable, write_deltalake

from bench.generating import World, write
from bench.generating.arrow import schema_of
from loadmanager.history import published
from loadmanager.history.analyses import ANALYSES
from loadmanager.history.analyses.analysis import DEFAULTS, TEXTS, needs, prepare_duckdb
from loadmanager.history.columns import FORMAT_PROPERTY, TABLES
from loadmanager.history.duck import speak_spark
from loadmanager.history.engine import MOST_BYTES, on_duckdb, why_spark
from loadmanager.history.lake import ALWAYS, Window
from loadmanager_api.cli.main import main
from tests.history.analyses.making import at

WORLD = World(brokers=3, bundles=6, days=1, dwell_h=(2, 5))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("engine") / "lake"
    assert dict(write(path, WORLD))["move"] > 0
    return path


def analyse(root: Path | str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["history", "analyse", "--lake", str(root), *arguments])


def test_every_text_reads_tables_and_texts_that_there_are() -> None:
    for name, text in TEXTS.items():
        assert set(text.reads) <= {*TABLES, *TEXTS}, name
        assert set(needs(name)) <= set(TABLES)


def test_texts_of_a_small_lake_are_answered_and_published_without_spark(root: Path) -> None:
    shown = analyse(root)
    assert (shown.exit_code, shown.stderr.splitlines()[0]) == (0, "engine: DuckDB (--engine spark for Spark)")
    assert [line.split()[0] for line in shown.stdout.splitlines()[2:]] == list(ANALYSES)
    answer = json.loads(analyse(root, "--analysis", "gaps", "-o", "json").stdout)
    [made] = answer
    assert {row["how"] for row in made["rows"]} == {"transfer", "failover"}
    found = published.read(root / published.FOLDER, "analyses/gaps")
    assert msgspec.to_builtins(found.rows) == made["rows"]
    assert set(found.provenance.lake_versions) == {"transition", "move"}
    cut = json.loads(analyse(root, "--analysis", "ownership", "--rows", "2", "-o", "json").stdout)
    assert len(cut[0]["rows"]) == 2
    assert cut[0]["provenance"]["truncated"]


def test_what_duckdb_cannot_answer_is_refused_if_it_is_wanted(root: Path) -> None:
    assert "on this disk" in analyse("s3a://lake", "--analysis", "gaps", "--engine", "duckdb").stderr
    assert "no lake" in analyse(root / "none", "--analysis", "gaps").stderr
    empty = analyse(root, "--analysis", "gaps", "--from", "2020-01-01", "--to", "2020-01-02")
    assert (empty.exit_code, "nothing is recorded from 2020-01-01" in empty.stderr) == (1, True)
    assert why_spark(root, ["gaps", "churn"]) is None


def test_tables_that_cannot_be_read_are_told_whichever_command_reads_them(tmp_path: Path) -> None:
    dict(write(tmp_path, WORLD))
    transition, channel = (tmp_path / "tables" / name for name in ("transition", "channel"))
    DeltaTable(str(transition)).alter.set_table_properties({FORMAT_PROPERTY: "99"}, raise_if_not_exists=False)
    (channel / "_delta_log" / f"{0:020}.json").write_text('{"broken')
    for engine in ("auto", "duckdb"):
        for analysis, told in (("gaps", "upgrade this program"), ("leaders", "table channel cannot be read")):
            refused = analyse(tmp_path, "--analysis", analysis, "--engine", engine)
            assert (refused.exit_code, refused.stdout) == (1, "")
            assert told in refused.stderr
    for table, told in (("transition", "upgrade this program"), ("channel", "table channel cannot be read")):
        question = ["history", "sql", "--lake", str(tmp_path), f"SELECT * FROM {table}"]
        assert told in CliRunner().invoke(main, question).stderr


def test_more_than_fits_is_sparks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_BYTES > 0
    monkeypatch.setattr("loadmanager.history.engine.MOST_BYTES", 10)
    assert "the tables have" in str(why_spark(root, ["gaps"]))


def test_an_open_stay_ends_where_the_lake_is_known_to_end(root: Path, tmp_path: Path) -> None:
    """However long ago the last change of owner was: time goes on."""
    lake = tmp_path / "lake"
    dict(write(lake, WORLD))
    until = at(3 * 86_400)
    row = {"stage": ["silver"], "batch": [1], "topic": ["t"], "partition": [0], "next_offset": [1], "rows": [1]}
    kinds = {"batch": pa.int64(), "partition": pa.int32(), "next_offset": pa.int64(), "rows": pa.int64()}
    columns = {name: pa.array(values, kinds.get(name)) for name, values in row.items()}
    columns["until"] = pa.array([until], pa.timestamp("us", "UTC"))
    write_deltalake(str(lake / "tables" / "progress"), pa.table(columns))
    with on_duckdb(lake, ["ownership", "time_in_state"]) as duck:
        rows, _ = duck.answer("ownership", ALWAYS, DEFAULTS, 10_000)
        assert {row["until"] for row in rows if row["open"]} == {until}
        states, _ = duck.answer("time_in_state", ALWAYS, DEFAULTS, 10)
        assert sum(row["seconds"] for row in states) == pytest.approx(WORLD.bundles * 3 * 86_400, rel=1e-3)
        cut, _ = duck.answer("ownership", Window(None, at(86_400)), DEFAULTS, 10_000)
        assert {row["until"] for row in cut if row["open"]} == {at(86_400)}


def test_versions_are_those_that_were_read_whatever_is_written_meanwhile(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    dict(write(lake, WORLD))
    with on_duckdb(lake, ["gaps"]) as duck:
        before = duck.versions("gaps")
        there = DeltaTable(str(lake / "tables" / "move"))
        write_deltalake(there, there.to_pyarrow_table().slice(0, 1), mode="append")
        assert duck.versions("gaps") == before
        assert (set(before), before["move"]) == (set(ANALYSES["gaps"].needs), there.version() - 1)


def without_cpu_of_bundles(cores_later: float) -> dict[str, list[dict[str, Any]]]:
    """Two days of a broker whose two bundles get 1 and 2 messages/s: it uses 3 cores on the first day."""
    found = defaultdict[str, list[dict[str, Any]]](list)
    for hour in range(48):
        minute = {"minute": at(3600 * hour), "covered_s": 60.0, "broker": "b"}
        cpu_percent = 100.0 * (3.0 if hour < 24 else cores_later)
        found["broker_minute"].append({**minute, "cpu_percent": cpu_percent, "in_rate_msg_s": 3.0})
        for rate, bundle in enumerate(("t/n/a", "t/n/b"), 1):
            found["bundle_minute"].append({**minute, "bundle": bundle, "in_rate_msg_s": float(rate)})
    found["bundle_total"].append({"at": at(0), "broker": "b", "cpu_percent": 0.0})
    return found


@pytest.mark.parametrize("cores_later", [3.0, 30.0])
def test_what_a_message_costs_is_learnt_within_its_hour(cores_later: float) -> None:
    """So a fold of the backtest knows nothing of what messages cost later."""
    with duckdb.connect() as db:
        speak_spark(db)
        for name, rows in without_cpu_of_bundles(cores_later).items():
            db.register(name, pa.Table.from_pylist(rows, schema_of(name)))
        prepare_duckdb(db, "hourly", ALWAYS, DEFAULTS)
        days = db.sql("SELECT bundle, hour // 24 - min(hour // 24) OVER () AS day, load FROM hourly").fetchall()
        assert sorted(set(days)) == [
            ("t/n/a", 0, 1.0), ("t/n/a", 1, pytest.approx(cores_later / 3)),
            ("t/n/b", 0, 2.0), ("t/n/b", 1, pytest.approx(cores_later / 3 * 2)),
        ]  # fmt: skip
        prepare_duckdb(db, "bundle_loads", ALWAYS, DEFAULTS)
        [(whole,)] = db.sql("SELECT sum(cpu) FROM bundle_loads").fetchall()
        assert whole == pytest.approx(24 * 60 * (3.0 + cores_later))
