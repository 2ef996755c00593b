"""`loadmanager history sql` and what is under it: right answers or a refusal, without Spark, and nothing is written."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from bench.generating import World, write
from loadmanager.history.columns import FORMAT_PROPERTY, TABLES
from loadmanager.history.duck import connected, export
from loadmanager.history.views import VIEWS, parsed
from loadmanager_api.cli.main import main

WORLD = World(brokers=3, bundles=6, days=1, dwell_h=(2, 5))
HEAVY = ("pyspark", "pandas", "pyarrow", "altair")
TELLS = f"""
import atexit, sys
atexit.register(lambda: print("HEAVY", sorted({set(HEAVY)!r} & set(sys.modules)), file=sys.stderr))
from loadmanager_api.cli.main import main
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sql") / "lake"
    assert dict(write(path, WORLD))["move"] > 0
    return path


def sql(root: Path, *arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(main, ["history", "sql", "--lake", str(root), *arguments], input=given)


def files_in(root: Path) -> set[Path]:
    return set(root.rglob("*"))


def test_an_answer_is_shown_in_each_form(root: Path):
    ask = "SELECT bundle, since, token FROM who_owns_what_now ORDER BY bundle"
    found = json.loads(sql(root, ask, "-o", "json").stdout)
    assert len(found) == WORLD.bundles
    assert found[0]["since"].endswith("Z")
    rows = list(csv.DictReader(sql(root, "-", "-o", "csv", given=ask).stdout.splitlines()))
    assert [row["bundle"] for row in rows] == [row["bundle"] for row in found]
    shown = sql(root, ask, "--rows", "2")
    assert len(shown.stdout.splitlines()) == 2 + 2
    assert "more rows" in shown.stderr


def test_it_starts_no_spark_and_loads_nothing_heavy(root: Path):
    command = [sys.executable, "-c", TELLS, "history", "sql", "--lake", str(root), "SELECT count(*) AS n FROM move"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout.split()[0] == "n"
    assert run.stderr.strip() == "HEAVY []"


@pytest.mark.parametrize(
    "statement",
    [
        "COPY (SELECT 1) TO 'out.csv'",
        "ATTACH 'other.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "EXPORT DATABASE 'out'",
        "CREATE TABLE x (a INT)",
        "SET enable_external_access = true",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO 'out.csv'",
        "SELECT 1; SELECT 2",
        "SELECT * FROM read_text('/etc/hostname')",
    ],
)
def test_what_writes_or_reads_elsewhere_is_refused(root: Path, statement: str, monkeypatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    before = files_in(root)
    result = sql(root, statement)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(("Error: this command takes one", "Error: this command reads the tables"))
    assert files_in(root) == before
    assert not files_in(tmp_path)


@pytest.mark.parametrize(
    "statement",
    [
        "COPY (SELECT 1) TO '{0}/out.csv'",
        "ATTACH '{0}/other.db'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SET allowed_directories = ['{0}']",
    ],
)
def test_duckdb_itself_refuses_to_leave_the_lake(root: Path, statement: str, tmp_path: Path):
    scratch = tmp_path / "scratch"
    with connected(root, scratch, "move") as db, pytest.raises(duckdb.Error, match=r"disabled|locked"):
        db.execute(statement.format(tmp_path))


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ("SELCT 1", "syntax error"),
        ("SELECT * FROM mvoes_and_their_gaps", "Did you mean 'moves_and_their_gaps'"),
        ("SELECT * FROM nothing_like_it", "--list"),
        ("SELECT * FROM '/etc/hostname'", "there is no view or table /etc/hostname"),
        ("SELECT nothing FROM move", '"nothing" not found'),
    ],
)
def test_a_bad_question_is_told_with_what_to_do(root: Path, question: str, told: str):
    result = sql(root, question)
    assert result.exit_code == 1
    assert told in result.stderr
    assert "Traceback" not in result.stderr


def test_a_missing_lake_and_one_elsewhere_are_told(tmp_path: Path):
    assert "history ingest" in sql(tmp_path / "none", "SELECT 1").stderr
    elsewhere = ["history", "sql", "--lake", "s3a://bucket/lake", "--engine", "duckdb", "SELECT 1"]
    assert "lakes on this disk" in CliRunner().invoke(main, elsewhere).stderr


def test_spark_answers_as_duckdb_and_only_selects(spark: SparkSession, root: Path):
    ask = "SELECT bundle, since, token FROM who_owns_what_now ORDER BY bundle;"
    asked = [sql(root, ask, "--engine", engine, "--rows", "4", "-o", "csv") for engine in ("spark", "duckdb")]
    assert asked[0].stdout == asked[1].stdout
    assert len(asked[0].stdout.splitlines()) == 1 + 4
    assert "more rows" in asked[0].stderr
    for statement in (
        "CREATE TABLE x (a INT)",
        "DROP VIEW move",
        "SELECT 1; SELECT 2",
        "INSERT INTO move SELECT * FROM move",
    ):
        result = sql(root, statement, "--engine", "spark")
        assert (result.exit_code, result.stdout, "Error: " in result.stderr) == (1, "", True)


def test_spark_reads_no_file_that_a_question_names(spark: SparkSession, root: Path, tmp_path: Path):
    other = tmp_path / "move"
    write_deltalake(str(other), pa.table({"decision": ["1.1"]}))
    (file,) = other.glob("*.parquet")
    for source in ("text.`/etc/hostname`", "binaryFile.`/etc/hostname`", f"delta.`{other}`", f"parquet.`{file}`"):
        assert spark.sql(f"SELECT * FROM {source}").count() > 0
        result = sql(root, f"SELECT * FROM {source}", "--engine", "spark")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "TABLE_OR_VIEW_NOT_FOUND" in result.stderr
        assert spark.sql(f"SELECT * FROM {source}").count() > 0, "the session that was there keeps its settings"


def test_views_and_their_columns_are_listed():
    listed = json.loads(CliRunner().invoke(main, ["history", "sql", "--list", "-o", "json"]).stdout)
    assert {row["view"] for row in listed} == set(VIEWS)
    columns = json.loads(CliRunner().invoke(main, ["history", "sql", "--list", "move", "-o", "json"]).stdout)
    assert {row["column"]: row["type"] for row in columns} == TABLES["move"]
    assert CliRunner().invoke(main, ["history", "sql", "--list", "nothing"]).exit_code == 1


@pytest.mark.parametrize("name", VIEWS)
def test_each_column_of_a_view_is_documented(root: Path, tmp_path: Path, name: str):
    with connected(root, tmp_path, name) as db:
        columns = [row[0] for row in db.execute(f"DESCRIBE {name}").fetchall()]
    assert columns == list(VIEWS[name].columns)
    assert VIEWS[name].title.endswith(".")


def test_a_file_of_a_view_is_taken_apart():
    view = parsed("x", "-- What it is.\n--\n-- a: first (s)\n-- b: second\nSELECT 1 AS a,\n       2 AS b\n")
    assert view.columns == {"a": "first (s)", "b": "second"}
    assert (view.title, view.sql) == ("What it is.", "SELECT 1 AS a,\n       2 AS b")


def test_columns_that_an_older_release_did_not_write_are_null(tmp_path: Path):
    place = str(tmp_path / "tables" / "move")
    write_deltalake(place, pa.table({"decision": ["1.1"], "bundle": ["b"]}))
    ask = "SELECT decision, gain, outcome FROM move ORDER BY decision"
    assert json.loads(sql(tmp_path, ask, "-o", "json").stdout) == [{"decision": "1.1", "gain": None, "outcome": None}]
    later = pa.table({"decision": ["1.2"], "bundle": ["c"], "gain": [0.5]})
    write_deltalake(place, later, mode="append", schema_mode="merge")
    assert [row["gain"] for row in json.loads(sql(tmp_path, ask, "-o", "json").stdout)] == [None, 0.5]
    DeltaTable(place).delete("decision = '1.1'")
    assert [row["decision"] for row in json.loads(sql(tmp_path, ask, "-o", "json").stdout)] == ["1.2"]


def test_deletion_vectors_are_refused_and_not_ignored(tmp_path: Path):
    place = tmp_path / "tables" / "move"
    write_deltalake(str(place), pa.table({"decision": ["1.1"]}))
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    commit = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    (place / "_delta_log" / f"{1:020}.json").write_text(json.dumps(commit))
    result = sql(tmp_path, "SELECT * FROM move")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "deletionVectors" in result.stderr


def test_a_lake_of_a_newer_format_is_refused(tmp_path: Path):
    place = str(tmp_path / "tables" / "move")
    write_deltalake(place, pa.table({"decision": ["1.1"]}))
    DeltaTable(place).alter.set_table_properties({FORMAT_PROPERTY: "99"}, raise_if_not_exists=False)
    assert "format 99" in sql(tmp_path, "SELECT * FROM move").stderr


@pytest.mark.slow
def test_a_duckdb_file_has_all_views_with_comments(root: Path, tmp_path: Path):
    file = tmp_path / "history.duckdb"
    for _ in range(2):  # the second replaces the first
        export(root, file)
    assert list(tmp_path.iterdir()) == [file]
    with duckdb.connect(str(file), read_only=True) as db:
        found = dict(db.execute("SELECT table_name, comment FROM duckdb_tables()").fetchall())
        assert found == {view.name: view.title for view in VIEWS.values()}
        assert db.execute("SELECT count(*) FROM who_owns_what_now").fetchone() == (WORLD.bundles,)
        db.execute("SET TimeZone = 'Asia/Tokyo'")
        assert db.execute("SELECT min(minute)::VARCHAR FROM cluster_load_by_minute").fetchone() == (
            "2026-01-05 00:00:00",
        )
