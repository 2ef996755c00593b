"""A pinned lake is read as it was when it was first looked at, and says as of which version."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest
from pyspark.sql import DataFrame

from loadmanager.errors import Invalid
from loadmanager.history import layout
from loadmanager.history.analyses import ANALYSES, DEFAULTS
from loadmanager.history.analyses.analysis import shared
from loadmanager.history.lake import ALWAYS, Lake, Once, Pinned, pinned
from loadmanager.history.schemas import BUNDLE_MINUTE, GROUP_LAG

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


def rows(lake: Lake, *offsets: int) -> DataFrame:
    return lake.spark.createDataFrame(
        [(0, n, AT, AT, "g", "t", 1, 2, None, None, date(2026, 1, 1)) for n in offsets], GROUP_LAG
    )


def test_what_is_written_later_is_not_read(lake: Lake) -> None:
    lake.append("group_lag", rows(lake, 1), Once("test", 0))
    seen = Pinned(lake)
    assert seen.table("group_lag").count() == 1
    before = seen.versions(["group_lag"])
    lake.append("group_lag", rows(lake, 2), Once("test", 1))
    assert (seen.table("group_lag").count(), seen.versions(["group_lag"])) == (1, before)
    assert (lake.table("group_lag").count(), Pinned(lake).versions(["group_lag"])) == (
        2,
        {"group_lag": before["group_lag"] + 1},
    )


def test_a_frame_reads_its_version_whenever_it_runs(lake: Lake) -> None:
    lake.append("group_lag", rows(lake, 1), Once("test", 0))
    frame = Pinned(lake).table("group_lag")
    lake.remove("group_lag", "offset = 1")
    assert [row["offset"] for row in frame.select("offset").collect()] == [1]


def test_a_table_that_was_not_there_stays_away(lake: Lake) -> None:
    seen = Pinned(lake)
    assert not seen.exists("group_lag")
    lake.append("group_lag", rows(lake, 1), Once("test", 0))
    assert (seen.exists("group_lag"), seen.table("group_lag").count(), seen.versions()) == (False, 0, {})


def test_it_names_what_was_read_and_nothing_else(lake: Lake) -> None:
    lake.append("group_lag", rows(lake, 1), Once("test", 0))
    lake.prepare("decision")
    seen = Pinned(lake)
    assert seen.versions() == {}
    seen.table("group_lag")
    assert set(seen.versions()) == {"group_lag"}
    assert set(seen.versions(["decision", "move"])) == {"decision"}


def test_pinning_twice_is_pinning_once(lake: Lake) -> None:
    seen = pinned(lake)
    assert pinned(seen) is seen


def test_a_lake_of_a_later_release_is_refused(lake: Lake) -> None:
    lake.prepare("group_lag")
    lake.spark.sql(
        f"ALTER TABLE {layout.delta(lake.path('group_lag'))} SET TBLPROPERTIES ('{layout.FORMAT_PROPERTY}' = '99')"
    )
    with pytest.raises(Invalid, match="upgrade this program"):
        Pinned(lake).table("group_lag")


def test_a_damaged_table_is_named_in_one_line(lake: Lake) -> None:
    lake.prepare("group_lag")
    log = lake.place("group_lag") / "_delta_log"
    (log / "00000000000000000000.json").write_text('{"broken')
    with pytest.raises(Invalid, match=r"table group_lag cannot be read: .*; restore .*group_lag from a copy") as raised:
        Pinned(lake).versions(["group_lag"])
    assert "\n" not in str(raised.value)


def test_what_analyses_have_in_common_is_kept_of_a_pinned_lake_too(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    minute = {"minute": AT, "day": AT.date(), "bundle": "t/n/a", "covered_s": 60.0, "cpu_percent": 1.0}
    values = [tuple(minute.get(name) for name in BUNDLE_MINUTE.names)]  # the plan of an empty table is emptied
    lake.append("bundle_minute", lake.spark.createDataFrame(values, BUNDLE_MINUTE), Once("test", 0))
    lake.prepare("broker_minute")
    seen = Pinned(lake)
    with shared(seen.table) as tables:
        ANALYSES["skew"].run(tables, ALWAYS, DEFAULTS).explain()
        assert "InMemoryTableScan" in capsys.readouterr().out
        assert set(seen.versions()) == {"bundle_minute"}, "what no analysis asked for was looked at"
    ANALYSES["skew"].run(seen.table, ALWAYS, DEFAULTS).explain()
    assert "InMemoryTableScan" not in capsys.readouterr().out
