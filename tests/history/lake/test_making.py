"""Tables are made by delta-rs on this machine's disk as Spark makes them elsewhere, and empty ones cost no job."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path

import pytest

from loadmanager.history import columns, delta, layout
from loadmanager.history.ingest.positions import SILVER, Mark, Reached, advance, stages, totals
from loadmanager.history.lake import Lake, Once, Pinned
from loadmanager.history.schemas import GROUP_LAG, TABLES

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Elsewhere(Lake):
    """A lake that only Spark writes to."""

    @cached_property
    def folder(self) -> str:
        return ""


def made(path: Path, table: str) -> None:
    schema = TABLES[table]
    folders, properties = layout.cut_by(table, schema), layout.properties(table, schema)
    delta.make(path, layout.columns_of(schema), folders, properties)


@pytest.mark.parametrize("table", ["bronze", "transition", "broker_load", "progress"])
def test_both_ways_make_the_same_table(lake: Lake, tmp_path: Path, table: str):
    other = Elsewhere(lake.spark, str(tmp_path / "elsewhere"))
    described = []
    for each in (lake, other):
        each.prepare(table)
        details = lake.spark.sql(f"DESCRIBE DETAIL {layout.delta(each.path(table))}")
        described.append(details.select("partitionColumns", "properties").first())
    assert described[0] == described[1]
    assert lake.stored(table) == other.stored(table) == TABLES[table]


@pytest.mark.parametrize("table", sorted(TABLES))
def test_the_columns_of_a_table_are_read_as_they_were_given(tmp_path: Path, table: str):
    made(tmp_path / table, table)
    there = delta.opened(tmp_path / table)
    assert there is not None
    assert delta.columns_of(there) == columns.TABLES[table]
    assert there.metadata().configuration[columns.FORMAT_PROPERTY] == str(columns.FORMAT)


def test_a_table_that_several_make_at_once_is_made_once(tmp_path: Path):
    with ThreadPoolExecutor(8) as pool:
        for number in range(10):
            list(pool.map(lambda _, n=number: made(tmp_path / str(n), "group_lag"), range(8)))
            there = delta.opened(tmp_path / str(number))
            assert there is not None
            assert there.version() == 0


def test_a_table_without_rows_is_read_without_a_job(lake: Lake):
    lake.prepare("group_lag")
    context = lake.spark.sparkContext
    context.setJobGroup("empty", "")
    for name in ("group_lag", "decision"):
        assert (
            lake.table(name).where("offset > 1").groupBy("topic" if name == "group_lag" else "id").count().collect()
            == []
        )
        assert lake.table(name).isEmpty()
    assert list(context.statusTracker().getJobIdsForGroup("empty")) == []
    values = [(0, 1, AT, AT, "g", "x", 1, 2, None, None, date(2026, 1, 1))]
    lake.append("group_lag", lake.spark.createDataFrame(values, GROUP_LAG), Once("test", 0))
    assert lake.table("group_lag").count() == 1


@pytest.mark.parametrize("kind", [Lake, Elsewhere])
def test_the_position_is_read_alike_by_spark_and_without_it(lake: Lake, kind: type[Lake]):
    lake = kind(lake.spark, lake.root)
    assert stages(lake) == {}
    for batch, (offset, us) in enumerate([(5, 2_000_000), (9, 1_000_000)]):
        advance(lake, SILVER, batch, [Mark("t", 0, offset, 5 - batch, us), Mark("t", 1, 1, 1, 3_000_000)][: 2 - batch])
    expected = {("t", 0): 9, ("t", 1): 1}
    assert stages(lake) == {SILVER: Reached(1, expected, 3_000_000)}
    assert totals(lake) == {"t": (10, 3_000_000)}


def test_a_pinned_lake_gives_a_table_as_it_was(lake: Lake):
    advance(lake, SILVER, 0, [Mark("t", 0, 5, 5, 1)])
    seen = Pinned(lake)
    assert stages(seen)[SILVER].batch == 0
    advance(lake, SILVER, 1, [Mark("t", 0, 9, 4, 2)])
    assert (stages(seen)[SILVER].batch, stages(lake)[SILVER].batch) == (0, 1)
