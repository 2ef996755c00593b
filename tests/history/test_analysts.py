"""What analysts read: every reader of Delta sees the same rows, views and example queries agree in both engines."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from bench.generating import World, write
from bench.generating.loads import stage
from loadmanager.history.analyses import ANALYSES
from loadmanager.history.analyses.analysis import DEFAULTS
from loadmanager.history.duck import connected
from loadmanager.history.ingest import refresh_gold
from loadmanager.history.ingest.batch import Batches, Plan
from loadmanager.history.ingest.failpoints import NEVER
from loadmanager.history.lake import ALWAYS, Lake
from loadmanager.history.maintenance import Retention, maintain
from loadmanager.history.schemas import TABLES
from loadmanager.history.sources import SqliteSource
from loadmanager.history.views import VIEWS, register
from tests.history.ingest import material

SEED = 11
TTL_S = 1_800.0
WORLD = World(brokers=3, bundles=8, days=7)
QUERIES = sorted(Path(__file__).parents[2].glob("examples/history/queries/*.sql"))
AHEAD = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture(scope="module")
def ingested(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A first batch that tasks write, a second one with repeats that Spark merges, gold, and joined files."""
    directory = tmp_path_factory.mktemp("ingested")
    lake, log = Lake(spark, str(directory / "lake")), material.records(SEED)
    plan = Plan(SqliteSource(directory / "log.db"), material.PARTITIONS, NEVER)
    Batches(lake.root, plan, "first")(material.raw(spark, log, 0.0, 0.1), 0)
    Batches(lake.root, plan, "second")(material.raw(spark, log), 1)
    assert {"by tasks", "by Spark"} == written_by(lake, "broker_load")
    refresh_gold(lake, TTL_S)
    maintain(lake, AHEAD, Retention(bronze_days=36_500, silver_days=36_500, history_days=7))
    return lake


def written_by(lake: Lake, table: str) -> set[str]:
    """Who wrote the files of a table: Spark numbers the parts of a write."""
    names = [Path(file).name for file in DeltaTable(lake.path(table)).file_uris()]
    return {"by Spark" if name.startswith("part-0") and name.count("-") > 5 else "by tasks" for name in names}


@pytest.fixture(scope="module")
def week(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A generated week."""
    root = tmp_path_factory.mktemp("week") / "lake"
    assert len(dict(write(root, WORLD))) > 5
    return Lake(spark, str(root))


@contextmanager
def duck(lake: Lake, question: str) -> Generator[duckdb.DuckDBPyConnection]:
    with TemporaryDirectory() as scratch, connected(Path(lake.root), Path(scratch), question) as db:
        yield db


def plain(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Rows that can be compared: in one order, times in UTC, figures without their last digits."""
    return sorted(repr([(name, _value(value)) for name, value in row.items()]) for row in rows)


def _value(value: Any) -> Any:
    match value:
        case float():
            return f"{value:.9g}"
        case datetime():
            return value.astimezone(UTC).isoformat()
        case dict():
            return sorted(value.items())
        case list():
            return [tuple(each) if isinstance(each, list | tuple) else each for each in value]
        case _:
            return value


def listed(table: Any) -> list[dict[str, Any]]:
    return table.to_pylist(maps_as_pydicts="strict")


@pytest.mark.parametrize("table", [name for name in TABLES if name not in ("audit", "group_lag")])
def test_every_reader_of_delta_sees_the_same_rows(ingested: Lake, table: str):
    spark = plain(listed(ingested.table(table).toArrow()))
    with duck(ingested, table) as db:
        assert plain(listed(db.sql(f"FROM {table}").to_arrow_table())) == spark
    columns = TABLES[table].names
    assert plain(listed(DeltaTable(ingested.path(table)).to_pyarrow_table(columns=columns))) == spark
    assert spark


@pytest.mark.parametrize("which", ["ingested", "week"])
def test_views_have_the_same_rows_in_both_engines(spark: SparkSession, which: str, request: pytest.FixtureRequest):
    lake: Lake = request.getfixturevalue(which)
    register(lake)
    filled = set[str]()
    for name in VIEWS:
        theirs = plain(listed(spark.table(name).toArrow()))
        with duck(lake, name) as db:
            assert plain(listed(db.sql(f"FROM {name}").to_arrow_table())) == theirs, name
        filled |= {name} if theirs else set()
    assert (
        filled
        >= {
            "ingested": {"quarantined_records", "refused_records", "how_far_the_lake_is", "who_owns_what_now"},
            "week": {
                "moves_and_their_gaps",
                "hottest_bundles_by_day",
                "decisions_and_reasons",
                "cluster_load_by_minute",
            },
        }[which]
    )


def test_the_view_of_moves_is_what_the_analysis_finds(week: Lake):
    register(week)
    names = ("bundle", "how", "why", "source", "destination", "served_at", "gap_s", "duration_s", "gain")
    theirs = week.spark.table("moves_and_their_gaps").where("served_at IS NOT NULL").select(*names)
    ours = ANALYSES["transfers"].run(week.table, ALWAYS, DEFAULTS).select(*names)
    assert plain(listed(theirs.toArrow())) == plain(listed(ours.toArrow()))


def test_example_queries_answer_alike_in_both_engines(week: Lake):
    register(week)
    assert len(QUERIES) == 10
    for file in QUERIES:
        question = file.read_text(encoding="utf-8")
        assert question.splitlines()[0].startswith("-- ")
        assert question.splitlines()[0].endswith("?")
        spark = plain(listed(week.spark.sql(question).toArrow()))
        with duck(week, question) as db:
            assert plain(listed(db.sql(question).to_arrow_table())) == spark, file.name
        assert spark, f"{file.name} finds nothing"


def test_the_season_that_was_generated_is_found_and_forecast(week: Lake):
    rows = listed(ANALYSES["seasonality"].run(week.table, ALWAYS, DEFAULTS).toArrow())
    profiles = stage(WORLD).scenario.activity.reshape(24, 60, WORLD.bundles).mean(axis=1)
    peaks = dict(zip(stage(WORLD).bundles, profiles.argmax(axis=0).tolist(), strict=True))
    assert {row["bundle"] for row in rows} == set(peaks)
    for row in rows:
        assert row["period_h"] == 24
        assert _hours_apart(row["peak_hour"], peaks[row["bundle"]]) <= 1
    coming = listed(ANALYSES["forecast"].run(week.table, ALWAYS, DEFAULTS).toArrow())
    for bundle, peak in peaks.items():
        day = sorted((row for row in coming if row["bundle"] == bundle), key=lambda row: row["at"])[:24]
        hours = [row["at"].astimezone(UTC).hour for row in day]
        assert _hours_apart(hours[int(np.argmax([row["predicted"] for row in day]))], peak) <= 1


def _hours_apart(one: int, two: int) -> int:
    return min((one - two) % 24, (two - one) % 24)
