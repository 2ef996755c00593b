"""Files that Python writes below a lake's path: Spark reads them as its own, and a number is committed once."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from loadmanager.errors import Conflict, Invalid
from loadmanager.history import layout
from loadmanager.history.files import File, Files
from loadmanager.history.lake import Lake, Once
from loadmanager.history.schemas import TABLES

AT_US = 1_767_225_599_123_456
"""In 2025 in UTC, and in 2026 east of it: the last second of the year."""

WRITER = "ingest"


def reports(*at_us: int) -> dict[str, pa.Array]:
    """Rows of `broker_load`, with times as a session of another zone has them."""
    times = pa.array(at_us, pa.int64()).cast(pa.timestamp("us", "Asia/Tokyo"))
    return {
        "partition": pa.array([0] * len(at_us), pa.int32()),
        "offset": pa.array(range(len(at_us)), pa.int64()),
        "appended_at": times,
        "broker": pa.array(["a"] * len(at_us)),
        "at": times,
        "capacity": pa.array([[("cpu", 4.0)]] * len(at_us), pa.map_(pa.string(), pa.float64())),
    }


def written(lake: Lake, *at_us: int) -> list[File]:
    lake.prepare("broker_load")
    files = Files(lake.folder)
    files.add("broker_load", reports(*at_us))
    return files.close()


def test_rows_are_read_as_they_were_written_each_below_its_day_in_utc(lake):
    files = written(lake, AT_US, AT_US + 1_000_000)
    assert sorted(file.folders["day"] for file in files) == ["2025-12-31", "2026-01-01"]
    lake.add("broker_load", files, Once(WRITER, 0))
    rows = lake.table("broker_load").selectExpr("unix_micros(at)", "string(day)", "capacity", "incarnation")
    assert sorted(map(tuple, rows.collect())) == [
        (AT_US, "2025-12-31", {"cpu": 4.0}, None),
        (AT_US + 1_000_000, "2026-01-01", {"cpu": 4.0}, None),
    ]
    assert lake.table("broker_load").where(f"at = timestamp_micros({AT_US})").count() == 1, "its statistics hide it"


def test_bounds_of_times_go_outward_to_whole_milliseconds(lake):
    [file] = written(lake, AT_US, AT_US - 5)
    stats = msgspec.json.decode(file.stats)
    assert stats["minValues"]["at"] == "2025-12-31T23:59:59.123Z"
    assert stats["maxValues"]["at"] == "2025-12-31T23:59:59.124Z"
    assert (stats["numRecords"], stats["maxValues"]["offset"], stats["nullCount"]["at"]) == (2, 1, 0)


def test_a_number_that_is_there_is_a_conflict_however_it_came(lake):
    lake.add("broker_load", written(lake, AT_US), Once(WRITER, 1))
    other = Lake(lake.spark, lake.root)
    for number in (0, 1):
        with pytest.raises(Conflict, match="stop one of the two"):
            other.add("broker_load", written(other, AT_US), Once(WRITER, number))
    lake.append("broker_load", lake.table("broker_load"), Once(WRITER, 1))
    lake.append("broker_load", lake.table("broker_load"), Once(WRITER, 2))
    with pytest.raises(Conflict, match="stop one of the two"):
        lake.add("broker_load", written(lake, AT_US), Once(WRITER, 2))
    assert lake.table("broker_load").count() == 2


def test_checkpoints_of_spark_and_of_delta_rs_follow_each_other(lake):
    interval = int(layout.properties("quarantine", TABLES["quarantine"])["delta.checkpointInterval"])
    row = {"topic": pa.array(["t"]), "appended_at": pa.array([AT_US])}
    one = lake.spark.createDataFrame([("t",) + (None,) * 8], TABLES["quarantine"])
    for number in range(interval):
        lake.append("quarantine", one, Once(WRITER, number))
    for number in range(interval - 2, 2 * interval + 1):
        lake.put("quarantine", row, Once(WRITER, number))
    lake.spark.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    begun = Lake(lake.spark, lake.root)
    begun.append("quarantine", one, Once(WRITER, 2 * interval))
    assert begun.table("quarantine").count() == 2 * interval + 1


def test_a_file_on_another_machines_disk_is_refused(lake):
    files = written(lake, AT_US)
    (Path(lake.path("broker_load")) / files[0].path).unlink()
    with pytest.raises(Invalid, match=r"not to this machine's\. On a cluster the lake is a folder"):
        lake.add("broker_load", files, Once(WRITER, 0))
    assert lake.table("broker_load").count() == 0
