"""What jobs publish: whole or not at all, bounded, with where it came from, and found again by name only."""

from __future__ import annotations

import math
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from loadmanager.errors import Invalid, NotFound
from loadmanager.history import published
from loadmanager.history.published import Provenance, publish
from tests.disks import every_write_fails

AT = datetime(2030, 1, 31, 12, tzinfo=UTC)
MADE = Provenance(job="analyse", at=AT, begin=AT, lake="lake", lake_versions={"broker_load": 3}, truncated=True)


def test_what_was_published_is_read_back(tmp_path: Path):
    publish(tmp_path, "analyses/imbalance", [{"at": AT, "over": 1.5, "std": math.nan}], MADE, {"tolerance": 0.1})
    found = published.read(tmp_path, "analyses/imbalance")
    assert found.rows == [{"at": "2030-01-31T12:00:00Z", "over": 1.5, "std": None}]
    assert found.provenance == MADE
    assert found.facts == {"tolerance": 0.1}


def test_another_user_may_read_it(tmp_path: Path):
    path = publish(tmp_path, "audit", [], MADE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_later_result_takes_the_place_of_the_one_before_and_leaves_nothing_else(tmp_path: Path):
    publish(tmp_path, "audit", [{"violation": "two owners"}], MADE)
    publish(tmp_path, "audit", [], MADE)
    assert published.read(tmp_path, "audit").rows == []
    assert [path.name for path in tmp_path.iterdir()] == ["audit.json"]


def test_a_result_that_cannot_be_encoded_leaves_the_one_before(tmp_path: Path):
    publish(tmp_path, "audit", [{"n": 1}], MADE)
    with pytest.raises(TypeError):
        publish(tmp_path, "audit", [{"n": object()}], MADE)
    assert published.read(tmp_path, "audit").rows == [{"n": 1}]
    assert [path.name for path in tmp_path.iterdir()] == ["audit.json"]


def test_a_disk_that_refuses_leaves_the_one_before_and_nothing_else(tmp_path: Path):
    publish(tmp_path, "audit", [{"n": 1}], MADE)
    with every_write_fails(), pytest.raises(OSError, match="File too large"):
        publish(tmp_path, "audit", [{"n": 2}], MADE)
    assert published.read(tmp_path, "audit").rows == [{"n": 1}]
    assert [path.name for path in tmp_path.iterdir()] == ["audit.json"]


def test_the_list_has_everything_that_can_be_read_and_nothing_else(tmp_path: Path):
    publish(tmp_path, "replay", [{"candidate": "plan"}], MADE)
    publish(tmp_path, "analyses/imbalance", [{}, {}], MADE)
    (tmp_path / "notes.json").write_text("[1, 2]")
    (tmp_path / "UPPER.json").write_text("{}")
    assert [(each.name, each.rows) for each in published.listed(tmp_path)] == [("analyses/imbalance", 2), ("replay", 1)]
    assert published.listed(tmp_path / "nowhere") == ()


def test_pictures_and_the_report(tmp_path: Path):
    assert not published.has_report(tmp_path)
    published.publish_picture(tmp_path, "heat-map", b"png")
    published.publish_page(tmp_path, "<html>ü")
    assert published.pictures(tmp_path) == ("heat-map",)
    assert published.has_report(tmp_path)
    with published.open_report(tmp_path) as file:
        assert file.read().decode() == "<html>ü"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../audit", "analyses/../audit", "analyses/", "other/audit", "/etc/passwd", "a\n", "A", "a.b"],
)
def test_a_name_that_could_lead_elsewhere_is_refused(tmp_path: Path, name: str):
    with pytest.raises(Invalid, match="is not the name"):
        publish(tmp_path, name, [], MADE)
    with pytest.raises(Invalid, match="is not the name"):
        published.open_result(tmp_path, name)
    with pytest.raises(Invalid, match="is not the name"):
        published.open_picture(tmp_path, name)


def test_what_is_not_there_says_how_to_make_it(tmp_path: Path):
    with pytest.raises(NotFound, match="run the job"):
        published.read(tmp_path, "replay")
    (tmp_path / "replay.json").mkdir()
    with pytest.raises(NotFound):
        published.read(tmp_path, "replay")


def test_sizes_are_bounded_on_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(Invalid, match="aggregate"):
        publish(tmp_path, "audit", [{}] * (published.MAX_ROWS + 1), MADE)
    monkeypatch.setattr(published, "MAX_BYTES", 300)
    with pytest.raises(Invalid, match="at most 300"):
        publish(tmp_path, "audit", [{"text": "x" * 300}], MADE)
    (tmp_path / "audit.json").write_bytes(b"x" * 301)
    with pytest.raises(Invalid, match="above 300"):
        published.read(tmp_path, "audit")


def test_a_file_of_a_later_release_is_refused_and_a_broken_one_too(tmp_path: Path):
    (tmp_path / "audit.json").write_text('{"format": 2, "what": "ever"}')
    with pytest.raises(Invalid, match="a later release"):
        published.read(tmp_path, "audit")
    (tmp_path / "audit.json").write_text('{"format": 1')
    with pytest.raises(Invalid, match="run the job again"):
        published.read(tmp_path, "audit")


@pytest.mark.slow
def test_reading_needs_no_spark():
    heavy = "[name for name in ('pyspark', 'pandas', 'pyarrow') if name in sys.modules]"
    code = f"import sys, loadmanager_api.server, loadmanager.history.published; print({heavy})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert run.stdout.strip() == "[]"
