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
from loadmanager.history.schemas import AUDIT, TABLES

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
OWNER = "ingest"


def rows(lake: Lake, *offsets: int, what: str = "x"):
    values = [(0, offset, AT, AT, "ann", what, None, date(2026, 1, 1)) for offset in offsets]
    return lake.spark.createDataFrame(values, AUDIT)


def offsets(lake: Lake) -> list[int]:
    return sorted(row.offset for row in lake.table("audit").select("offset").collect())


def test_each_way_of_writing_done_twice_is_done_once(lake):
    for _ in range(2):
        lake.append("audit", rows(lake, 1, 2), Once(OWNER, 0))
    lake.append("audit", rows(lake, 3), Once(OWNER, 1))
    assert offsets(lake) == [1, 2, 3]
    for _ in range(2):
        lake.add_new("audit", rows(lake, 3, 4, what="again"), ("partition", "offset"))
    assert offsets(lake) == [1, 2, 3, 4]
    assert lake.table("audit").where("what = 'again'").count() == 1
    for _ in range(2):
        lake.replace("audit", rows(lake, 4, 5, what="new"), "offset >= 4")
    assert offsets(lake) == [1, 2, 3, 4, 5]
    assert lake.table("audit", Window(begin=AT)).where("what = 'new'").count() == 2
    lake.remove("audit", "offset < 3")
    assert offsets(lake) == [3, 4, 5]


def test_the_note_of_a_commit_is_found(lake):
    lake.append("audit", rows(lake, 1), Once(OWNER, 0), "mine/0")
    lake.append("audit", rows(lake, 1), Once(OWNER, 0), "other/0")
    assert lake.noted("audit", "mine/0")
    assert not lake.noted("audit", "other/0"), "its append was passed over"


def test_a_deletion_beside_another_job_is_refused_as_an_append_is(lake, tmp_path):
    lake.append("audit", rows(lake, 1), Once(OWNER, 0))
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
            Lake(lake.spark, lake.root).remove("audit", "slowly(offset)")
        except Conflict as error:
            failures.append(error)

    removing = threading.Thread(target=remove)
    removing.start()
    while not begun.exists():
        time.sleep(0.01)
    lake.remove("audit", "offset = 1")
    over.touch()
    removing.join()
    assert "another job writes table audit" in str(failures)


def test_of_two_that_append_one_number_at_once_one_is_refused_or_passed_over(lake):
    lake.prepare("audit")
    failures: list[Exception] = []
    begin = threading.Barrier(2)

    def append(first: int) -> None:
        begin.wait()
        try:
            Lake(lake.spark, lake.root).append("audit", rows(lake, first, first + 1), Once(OWNER, 7))
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
    older = StructType([field for field in TABLES["audit"].fields if field.name != "detail"])
    with monkeypatch.context() as release:
        release.setitem(TABLES, "audit", older)
        lake.append("audit", rows_of(lake, older, 1), Once(OWNER, 0))
    newer = Lake(lake.spark, lake.root)
    assert newer.table("audit").select("detail").collect() == [(None,)], "what was not written is null"
    newer.append("audit", rows(newer, 2).fillna("said", ["detail"]), Once(OWNER, 1))
    assert {(row.offset, row.detail) for row in newer.table("audit").collect()} == {(1, None), (2, "said")}
    with monkeypatch.context() as release:
        release.setitem(TABLES, "audit", older)
        again = Lake(lake.spark, lake.root)
        again.append("audit", rows_of(again, older, 3), Once(OWNER, 2))
        assert again.table("audit").columns == older.names, "it passes over what it does not know"
        assert offsets(again) == [1, 2, 3]
    assert newer.table("audit").where("offset = 3").select("detail").collect() == [(None,)]


def rows_of(lake: Lake, schema: StructType, offset: int):
    return rows(lake, offset).select(*schema.names)


def test_a_column_of_another_type_is_refused(lake, monkeypatch):
    lake.append("audit", rows(lake, 1), Once(OWNER, 0))
    other = [StructField("what", LongType()) if f.name == "what" else f for f in TABLES["audit"].fields]
    monkeypatch.setitem(TABLES, "audit", StructType([*other, StructField("more", StringType())]))
    with pytest.raises(Invalid, match="column what of table audit is string"):
        Lake(lake.spark, lake.root).prepare("audit")


def test_a_lake_of_a_newer_format_is_refused_for_reading_and_writing(lake, monkeypatch):
    with monkeypatch.context() as later:
        later.setattr(layout, "FORMAT", layout.FORMAT + 1)
        lake.append("audit", rows(lake, 1), Once(OWNER, 0))
    today = Lake(lake.spark, lake.root)
    for refused in (lambda: today.table("audit"), lambda: today.append("audit", rows(lake, 2), Once(OWNER, 1))):
        with pytest.raises(Invalid, match="upgrade this job"):
            refused()
    assert Lake(lake.spark, lake.root + "/other").table("audit").count() == 0
