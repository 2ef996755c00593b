"""Spark and DuckDB give the same answer to every analysis that has a text."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from bench.analyse import NEEDED, connected, difference, reading
from bench.analyse import together as answered_together
from bench.generating import World, generated
from loadmanager.history.analyses import ANALYSES
from loadmanager.history.analyses.analysis import DEFAULTS
from loadmanager.history.engine import answered
from loadmanager.history.lake import ALWAYS, Window
from loadmanager.history.views import VIEWS

WORLD = World(brokers=4, bundles=12, days=3, dwell_h=(3, 9), top=12)


@pytest.fixture(scope="module")
def root(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("generated")
    tables = generated(spark, WORLD)
    for name in NEEDED:
        tables(name).write.parquet(str(path / name))
    return path


@pytest.fixture(scope="module")
def together(spark: SparkSession, root: Path) -> dict[str, Any]:
    """The answers as the command line has them: several at a time, of what is made once for all."""
    return dict(zip(ANALYSES, answered_together(reading(spark, root), DataFrame.toArrow), strict=True))


@pytest.mark.parametrize("name", ANALYSES)
def test_both_engines_answer_the_same(spark: SparkSession, root: Path, together: dict[str, Any], name: str) -> None:
    ours = ANALYSES[name].run(reading(spark, root), ALWAYS, DEFAULTS).toArrow()
    with connected(root) as db:
        theirs = answered(db, name, ALWAYS, DEFAULTS).to_arrow_table()
    assert ours.num_rows > 0 or name == "groups", "histories that are generated have no groups"
    assert difference(ours, theirs, ANALYSES[name].order) == ""
    assert difference(together[name], theirs, ANALYSES[name].order) == ""


def test_the_view_of_the_cluster_means_the_same_by_even_as_the_analysis(root: Path) -> None:
    """Minutes of a restart too, in which a broker has two lives and the others are there for longer."""
    with connected(root) as db:
        answered(db, "imbalance", ALWAYS, DEFAULTS).create("analysed")
        db.execute(f"CREATE TEMP TABLE viewed AS {VIEWS['cluster_load_by_minute'].sql}")
        [apart] = db.sql(
            "SELECT count(*), max(abs(a.max_over_mean - v.cpu_max_over_mean)), count(CASE WHEN a.broker <> "
            "v.fullest_broker THEN 1 END) FROM analysed a JOIN viewed v USING (minute) WHERE a.resource = 'cpu'"
        ).fetchall()
    assert apart[0] >= WORLD.days * 1439
    assert apart[1:] == (pytest.approx(0, abs=1e-9), 0)


WINDOW = Window(datetime(2026, 1, 6, 3, tzinfo=UTC), datetime(2026, 1, 7, 12, 30, 1, 500_000, tzinfo=UTC))


@pytest.mark.parametrize("name", ANALYSES)
def test_a_window_cuts_the_same_in_both(spark: SparkSession, root: Path, name: str) -> None:
    ours = ANALYSES[name].run(reading(spark, root), WINDOW, DEFAULTS).toArrow()
    with connected(root) as db:
        theirs = answered(db, name, WINDOW, DEFAULTS).to_arrow_table()
    assert ours.num_rows > 0 or name == "groups", "histories that are generated have no groups"
    assert difference(ours, theirs, ANALYSES[name].order) == ""


@pytest.mark.slow
def test_what_is_not_equal_is_seen() -> None:
    one = pa.table({"bundle": ["a", "b"], "load": [1.0, None], "count": [1, 2]})
    assert difference(one, one.take([1, 0]), ("bundle",)) == ""
    assert difference(one, one.slice(1), ("bundle",)) == "2 rows and 1"
    assert difference(one, one.drop(["load"]), ("bundle",)) == "columns ['load']"
    for other, text in (
        (pa.table({"bundle": ["a", "b"], "load": [1.1, None], "count": [1, 2]}), "load: 1 differ, as 1.0 and 1.1"),
        (pa.table({"bundle": ["a", "b"], "load": [1.0, 0.0], "count": [1, 2]}), "load: 1 differ, as nan and 0.0"),
        (pa.table({"bundle": ["a", "b"], "load": [1.0, None], "count": [1, 3]}), "count: 1 differ, as 2 and 3"),
    ):
        assert difference(one, other, ("bundle",)) == text
