"""Maintenance changes no row that is to be kept, and removes no file that somebody may need."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from loadmanager.errors import Invalid
from loadmanager.history import layout
from loadmanager.history.ingest.positions import SILVER, Mark, advance, reached
from loadmanager.history.lake import Lake, Once
from loadmanager.history.maintenance import FILES_A_DAY, Retention, maintain
from loadmanager.history.schemas import TABLES

NOW = datetime(2026, 3, 1, tzinfo=UTC)
KEPT, OLD = NOW - timedelta(days=3), NOW - timedelta(days=50)


def row(offset: int, at: datetime):
    return (0, offset, at, at, "g", "t", 1, 2, None, None, at.date())


def test_small_files_are_joined_old_rows_go_and_an_older_version_still_reads(lake):
    for number in range(FILES_A_DAY + 1):
        at = OLD if number == 0 else KEPT
        lake.append(
            "group_lag", lake.spark.createDataFrame([row(number, at)], TABLES["group_lag"]), Once("test", number)
        )
    table = Path(lake.path("group_lag"))
    left_over, young = table / "left-over.parquet", table / "young.parquet"
    for path, age_days in ((left_over, 30), (young, 0)):
        path.touch()
        aged_s = path.stat().st_mtime - age_days * 86_400
        os.utime(path, (aged_s, aged_s))
    versions = lake.spark.sql(f"DESCRIBE HISTORY {layout.delta(str(table))}").count()
    told = maintain(lake, NOW, Retention(silver_days=30), dry_run=True)
    assert lake.spark.sql(f"DESCRIBE HISTORY {layout.delta(str(table))}").count() == versions
    assert left_over.exists()
    done = {each.table: each for each in maintain(lake, NOW, Retention(silver_days=30))}
    assert {each.table: each for each in told} == done, "a dry run tells what is done then"
    assert (done["group_lag"].rows_removed, done["group_lag"].days_joined) == (1, 1)
    assert sorted(found.offset for found in lake.table("group_lag").collect()) == [1, 2, 3, 4]
    assert files(lake, "group_lag") == 1
    assert not left_over.exists(), "no version names it"
    assert young.exists(), "a run may be about to name it"
    before = lake.spark.read.format("delta").option("versionAsOf", versions - 1).load(str(table))
    assert before.count() == FILES_A_DAY + 1
    assert maintain(lake, NOW, Retention(silver_days=30))[0].days_joined == 0


def test_where_the_ingest_is_outlives_its_records(lake):
    day_us = 86_400_000_000
    for batch, age in enumerate((90, 60, 1)):
        until_us = int(NOW.timestamp() * 1e6) - age * day_us
        advance(lake, SILVER, batch, [Mark("load-brokers", 0 if age > 60 else 1, 10 * (batch + 1), 10, until_us)])
    before = reached(lake, SILVER)
    [done] = maintain(lake, NOW)
    assert done.rows_removed == 1, "of partition 1 the older one"
    assert reached(lake, SILVER) == before


def test_old_records_stay_until_silver_is_made_of_them(lake):
    for batch in (0, 1):
        rows = [("load-brokers", 0, batch, None, None, OLD, OLD.date(), batch)]
        lake.append("bronze", lake.spark.createDataFrame(rows, TABLES["bronze"]), Once("test", batch))
    for complete in (0, 1):
        advance(lake, SILVER, complete, [Mark("load-brokers", 0, complete + 1, 1, int(OLD.timestamp() * 1e6))])
        done = {each.table: each.rows_removed for each in maintain(lake, NOW)}
        assert done["bronze"] == 1, "the batch that is complete"
    assert lake.table("bronze").isEmpty()


def test_a_retention_below_a_day_is_refused(lake):
    with pytest.raises(Invalid, match="less than a day"):
        maintain(lake, NOW, Retention(history_days=0))


def files(lake: Lake, table: str) -> int:
    return lake.spark.sql(f"DESCRIBE DETAIL {layout.delta(lake.path(table))}").collect()[0]["numFiles"]
