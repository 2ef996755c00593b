"""Wherever a lake lies, each engine gives the same answers; or the place is refused before anything is written."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from bench.generating import World, write
from loadmanager.errors import Invalid
from loadmanager.history import maintenance
from loadmanager.history.duck import connected, export
from loadmanager.history.lake import Lake
from loadmanager.history.schemas import TABLES
from loadmanager.history.views import VIEWS, register
from loadmanager_api.cli.main import main
from tests.history.ingest import material
from tests.history.ingest.comparing import differences

NAMES = (
    *("broker=east", "day=2025-12-31", "cpu_percent=0.5", "my lake", "a#b", "lake[1]", "lake*", "what?", "läke", "{x}"),
    *("a:b", "a'b", 'a"b', "a`b", "a+b&c", "a,b;c", "~x", "x|y<z>", "x@v1", "$x", "^a", " a ", "日本"),
)
REFUSED = ("a%20b", "100%", "a\\b", "a\tb", "a\nb")
QUESTION = "SELECT broker, day, count(*) AS n, avg(cpu_percent) AS cpu FROM broker_load GROUP BY ALL ORDER BY ALL"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["history", *map(str, arguments)])


def answers(root: Path, question: str = QUESTION) -> Any:
    found = run("sql", "--lake", root, "-o", "json", question)
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_duckdb_gives_the_same_answers_below_folders_of_every_name(tmp_path: Path):
    here, file = tmp_path / "lake", tmp_path / "out.duckdb"
    for _ in write(here, World(brokers=2, bundles=3, days=1, dwell_h=(2, 5))):
        pass
    expected = answers(here)
    assert len(expected) == 2
    there = tmp_path.joinpath(*NAMES, "lake")
    there.parent.mkdir(parents=True)
    here = here.rename(there)
    assert answers(here) == expected
    export(here, file)
    assert file.exists()


def test_a_scratch_folder_that_duckdb_takes_for_something_else_is_refused(tmp_path: Path):
    (tmp_path / "lake" / "tables").mkdir(parents=True)
    with pytest.raises(Invalid, match="set TMPDIR to another folder"):
        connected(tmp_path / "lake", tmp_path / "day=1", "move")


@pytest.mark.parametrize("command", ["ingest", "sql", "analyse", "audit", "replay", "advise", "report", "maintain"])
def test_a_place_that_engines_take_in_different_ways_is_refused_by_each_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
):
    asyncio.run(material.write(tmp_path / "log.db", {}))
    more = {"ingest": ("--log", f"sqlite:{tmp_path}/log.db"), "sql": ("SELECT 1",)}.get(command, ())
    for name in REFUSED:
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        for lake in ("lake", folder / "lake", f"file:{folder}/lake"):
            found = run(command, *more, "--lake", lake)
            assert (found.exit_code, found.stderr[:27]) == (1, "Error: a lake cannot lie at")
        assert not list(folder.iterdir())


def test_each_command_works_on_a_lake_below_folders_of_every_name(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """All names are in one path."""
    plain, odd = tmp_path / "plain", tmp_path.joinpath(*NAMES)
    odd.mkdir(parents=True)
    asyncio.run(material.write(odd / "log.db", material.records(4, reports=24, steps=20)))
    shutil.copy(odd / "log.db", tmp_path / "log.db")
    for root, file in ((plain, tmp_path / "log.db"), (odd / "lake", odd / "log.db")):
        done = run("ingest", "--lake", root, "--log", f"sqlite:{file}")
        assert done.exit_code == 0, done.output
    few = {name: TABLES[name] for name in ("bronze", "channel", "progress")}  # each takes seconds
    monkeypatch.setattr(maintenance, "TABLES", few)
    for command in (("audit",), ("analyse", "--analysis", "gaps"), ("maintain", "--silver-days", "36500")):
        done = run(*command, "--lake", odd / "lake")
        assert done.exit_code == 0, (command, done.output)
    lake = Lake(spark, str(odd / "lake"))
    assert differences(Lake(spark, str(plain)), lake) == {}
    register(lake)
    for view in VIEWS:
        assert len(answers(odd / "lake", f"FROM {view}")) == spark.table(view).count(), view
