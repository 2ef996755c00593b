"""Whatever time zone a session has, the tables are the same: days, minutes and partitions are of UTC."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from loadmanager.history import utc
from loadmanager.history.ingest import Ingest, Options
from loadmanager.history.lake import Lake
from loadmanager.history.sources import SqliteSource
from tests.history.ingest import material
from tests.history.ingest.comparing import differences

ZONE = "spark.sql.session.timeZone"
pytestmark = pytest.mark.timeout(600)


@contextmanager
def in_zone(spark: SparkSession, zone: str) -> Generator[None]:
    spark.conf.set(ZONE, zone)
    try:
        yield
    finally:
        spark.conf.set(ZONE, "UTC")


def ingested(spark: SparkSession, source: SqliteSource, root: Path, zone: str) -> Lake:
    """All that the log holds, ingested by a session of this zone."""
    lake = Lake(spark, str(root))
    with in_zone(spark, zone):
        Ingest(lake, source, Options(partitions=material.PARTITIONS)).run_available()
        assert spark.conf.get(ZONE) == zone, "the session's own setting stays"
    return lake


def test_tables_of_a_session_in_new_york_are_the_same(spark, tmp_path):
    asyncio.run(material.write(tmp_path / "log.db", material.records(4, reports=24, steps=20)))
    source = SqliteSource(tmp_path / "log.db")
    here, there = (ingested(spark, source, tmp_path / str(n), of) for n, of in enumerate(("UTC", "America/New_York")))
    assert differences(here, there) == {}
    assert here.table("broker_minute").count() > 0
    assert here.table("bundle_minute").count() > 0


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Pacific/Auckland"])
def test_a_day_is_of_utc(spark, zone):
    edges_us = [-1, 0, utc.DAY_US - 1, utc.DAY_US, 253_402_300_799_999_999]
    with in_zone(spark, zone):
        rows = spark.createDataFrame([(us,) for us in edges_us], "us long")
        days = rows.select(utc.day_of(f.timestamp_micros("us")).cast("string").alias("day")).collect()
        [same] = spark.sql(f"SELECT unix_micros({utc.timestamp(1_700_000_000_000_000)}) AS us").collect()
    assert [row["day"] for row in days] == ["1969-12-31", "1970-01-01", "1970-01-01", "1970-01-02", "9999-12-31"]
    assert same["us"] == 1_700_000_000_000_000
