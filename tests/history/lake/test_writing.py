"""Tables are made when they are first written, each way of writing is done once, and releases share a lake."""

from __future__ import annotations

import threading
import time
from datetime import UTC, date, datetime

import pytest
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from loadmanager.errors import Conflict, Invalid
from loadmanager.history import layout
from loadmanager.history.lake import Lake, Once, Window
from loadmanager.history.schemas import GROUP_LAG, TABLES

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
OWNER = "ingest"


def rows(lake: Lake, *offsets: int, what: str = "x"):
    values = [(0, offset, AT, AT, "g", what, 1, 2, None, None, date(2026, 1, 1)) for offset in offsets]
    return lake.spark.createDataFrame(values, GROUP_LAG)


def offsets(lake: Lake) -> list[int]:
    return sorted(row.offset for row in lake.table("group_lag").select("offset").collect())


def test_each_way_of_writing_done_twice_is_done_once(lake):
    for _ in range(2):
        lake.append("group_lag", rows(lake, 1, 2), Once(OWNER, 0))
    lake.append("group_lag", rows(lake, 3), Once(OWNER, 1))
    assert offsets(lake) == [1, 2, 3]
    for _ in range(2):
        lake.add_new("group_lag", rows(lake, 3, 4, what="again"), ("partition", "offset"))
    assert offsets(lake) == [1, 2, 3, 4]
    assert lake.table("group_lag").where("topic = 'again'").count() == 1
    for _ in range(2):
        lake.replace("group_lag", rows(lake, 4, 5, what="new"), "offset >= 4")
    assert offsets(lake) == [1, 2, 3, 4, 5]
    assert lake.table("group_lag", Window(begin=AT)).where("topic = 'new'").count() == 2
    lake.remove("group_lag", "offset < 3")
    assert offsets(lake) == [3, 4, 5]


def test_the_note_of_a_commit_is_found(lake):
    lake.append("group_lag", rows(lake, 1), Once(OWNER, 0), "mine/0")
    lake.append("group_lag", rows(lake, 1), Once(OWNER, 0), "other/0")
    assert lake.noted("group_lag", "mine/0")
    assert not lake.noted("group_lag", "other/0"), "its append was passed over"


def test_a_deletion_beside_another_job_is_refused_as_an_append_is(lake, tmp_path):
    lake.append("group_lag", rows(lake, 1), Once(OWNER, 0))
    begun, over = tmp_path / "begun", tmp_path / "over"

    def slowly(_: int) -> bool:
        begun.touch()
        while not over.exists():
            time.sleep(0.01)
        return True

    lake.spark.udf.register("slowly", slowly, BooleanType())
    failures: list[Exception] = []

    def remove() -> None:
        try:
            Lake(lake.spark, lake.root).remove("group_lag", "slowly(offset)")
        except Conflict as error:
            failures.append(error)

    removing = threading.Thread(target=remove)
    removing.start()
    while not begun.exists():
        time.sleep(0.01)
    lake.remove("group_lag", "offset = 1")
    over.touch()
    removing.join()
    assert "another job writes table group_lag" in str(failures)


def test_of_two_that_append_one_number_at_once_one_is_refused_or_passed_over(lake):
    lake.prepare("group_lag")
    failures: list[Exception] = []
    begin = threading.Barrier(2)

    def append(first: int) -> None:
        begin.wait()
        try:
            Lake(lake.spark, lake.root).append("group_lag", rows(lake, first, first + 1), Once(OWNER, 7))
        except Conflict as error:
            failures.append(error)

    threads = [threading.Thread(target=append, args=(first,)) for first in (10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert offsets(lake) in ([10, 11], [20, 21])
    assert all("stop one of the two" in str(error) for error in failures)


def test_a_newer_release_adds_its_columns_to_an_older_lake_and_the_older_one_goes_on(lake, monkeypatch):
    older = StructType([field for field in TABLES["group_lag"].fields if field.name != "consumer"])
    with monkeypatch.context() as release:
        release.setitem(TABLES, "group_lag", older)
        lake.append("group_lag", rows_of(lake, older, 1), Once(OWNER, 0))
    newer = Lake(lake.spark, lake.root)
    assert newer.table("group_lag").select("consumer").collect() == [(None,)], "what was not written is null"
    newer.append("group_lag", rows(newer, 2).fillna("said", ["consumer"]), Once(OWNER, 1))
    assert {(row.offset, row.consumer) for row in newer.table("group_lag").collect()} == {(1, None), (2, "said")}
    with monkeypatch.context() as release:
        release.setitem(TABLES, "group_lag", older)
        again = Lake(lake.spark, lake.root)
        again.append("group_lag", rows_of(again, older, 3), Once(OWNER, 2))
        assert again.table("group_lag").columns == older.names, "it passes over what it does not know"
        assert offsets(again) == [1, 2, 3]
    assert newer.table("group_lag").where("offset = 3").select("consumer").collect() == [(None,)]


def rows_of(lake: Lake, schema: StructType, offset: int):
    return rows(lake, offset).select(*schema.names)


def test_a_column_of_another_type_is_refused(lake, monkeypatch):
    lake.append("group_lag", rows(lake, 1), Once(OWNER, 0))
    other = [StructField("topic", LongType()) if f.name == "topic" else f for f in TABLES["group_lag"].fields]
    monkeypatch.setitem(TABLES, "group_lag", StructType([*other, StructField("more", StringType())]))
    with pytest.raises(Invalid, match="column topic of table group_lag is string"):
        Lake(lake.spark, lake.root).prepare("group_lag")


def test_a_lake_of_a_newer_format_is_refused_for_reading_and_writing(lake, monkeypatch):
    with monkeypatch.context() as later:
        later.setattr(layout, "FORMAT", layout.FORMAT + 1)
        lake.append("group_lag", rows(lake, 1), Once(OWNER, 0))
    today = Lake(lake.spark, lake.root)
    for refused in (lambda: today.table("group_lag"), lambda: today.append("group_lag", rows(lake, 2), Once(OWNER, 1))):
        with pytest.raises(Invalid, match="upgrade this program"):
            refused()
    assert Lake(lake.spark, lake.root + "/other").table("group_lag").count() == 0


def test_a_lake_on_s3_has_one_writer_unless_a_log_store_keeps_them_apart(spark):
    assert Lake(spark, "hdfs:///lakes/east").keeps_writers_apart
    assert not Lake(spark, "s3a://lakes/east").keeps_writers_apart
    spark.conf.set("spark.delta.logStore.s3a.impl", "io.delta.storage.S3DynamoDBLogStore")
    try:
        assert Lake(spark, "s3a://lakes/east").keeps_writers_apart
    finally:
        spark.conf.unset("spark.delta.logStore.s3a.impl")
