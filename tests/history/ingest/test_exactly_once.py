"""However often an ingest is killed, and wherever: the tables are those of one that nobody disturbed."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from loadmanager.errors import Conflict, Invalid
from loadmanager.history.ingest import Ingest, Options, refresh_gold
from loadmanager.history.ingest.batch import Batches, Plan
from loadmanager.history.ingest.failpoints import NEVER, POINTS, VARIABLE, Failpoints
from loadmanager.history.ingest.positions import SILVER, reached
from loadmanager.history.ingest.repeats import KEPT
from loadmanager.history.lake import Lake
from loadmanager.history.sources import TOPICS, SqliteSource
from tests.history.ingest import material
from tests.history.ingest.comparing import differences, missed
from tests.history.ingest.dying import Crash, Fragile
from tests.history.ingest.victim import Victim, uncommitted

SEED = 11
TTL_S = 1_800.0
PATIENCE_S = 240.0
ATTEMPTS = 5
KILLED = -9

LOST_TOGETHER = (
    ("quarantine", "bundle_load", "move", "channel", "broker_load"),
    ("bundle_total", "decision", "transition", "channel_state"),
)
"""Tables that a run dies before, when all others of its batch are written: of each pair that hangs together one."""

pytestmark = pytest.mark.timeout(600)


def plan(directory: Path, failpoints: Failpoints = NEVER) -> Plan:
    return Plan(SqliteSource(directory / "log.db"), material.PARTITIONS, failpoints)


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake that has everything of the material, in one batch."""
    directory = tmp_path_factory.mktemp("undisturbed")
    lake = Lake(spark, str(directory / "lake"))
    Batches(lake.root, plan(directory), "undisturbed")(material.raw(spark, material.records(SEED)), 0)
    refresh_gold(lake, TTL_S)
    return lake


def test_a_run_that_dies_at_every_point_in_turn_gives_the_same_tables(spark, lake, tmp_path, undisturbed):
    log, parts = material.records(SEED), len(POINTS)

    def live(failpoints: Failpoints, number: int) -> None:
        run = Batches(lake.root, plan(tmp_path, failpoints), f"run {number}")
        run(material.raw(spark, log, 0.0, (number + 1) / parts), 0)  # no batch was ever done: Spark gives all again
        refresh_gold(lake, TTL_S, failpoints=failpoints)

    for number, point in enumerate(POINTS):
        with pytest.raises(Crash):
            live(Fragile({VARIABLE: point}), number)
    for number in range(2):  # the second time nothing is new
        Batches(lake.root, plan(tmp_path), f"last run {number}")(material.raw(spark, log), 0)
        refresh_gold(lake, TTL_S)
    assert differences(lake, undisturbed) == {}
    assert missed(lake, material.raw(spark, log)) == ""


@pytest.mark.parametrize("lost", LOST_TOGETHER, ids="-".join)
def test_whichever_tables_of_a_batch_were_not_written_when_it_died_they_get_all_of_it(
    spark, lake, tmp_path, undisturbed, monkeypatch, lost
):
    log, append, add = material.records(SEED), Lake.append, Lake.add
    Batches(lake.root, plan(tmp_path), "before")(material.raw(spark, log, 0.0, 0.5), 0)
    dies = Batches(lake.root, plan(tmp_path, Fragile({VARIABLE: "silver"})), "dies")
    monkeypatch.setattr(Lake, "append", lambda self, table, *rest: table in lost or append(self, table, *rest))
    monkeypatch.setattr(Lake, "add", lambda self, table, *rest: table in lost or add(self, table, *rest))
    with pytest.raises(Crash):
        dies(material.raw(spark, log), 0)
    monkeypatch.undo()
    Batches(lake.root, plan(tmp_path), "after")(material.raw(spark, log), 0)
    refresh_gold(lake, TTL_S)
    assert differences(lake, undisturbed) == {}


def test_a_run_of_many_batches_finds_what_repeats_an_earlier_one(spark, lake, tmp_path, undisturbed):
    log, parts = material.records(SEED), 2 * KEPT + 2
    run = Batches(lake.root, plan(tmp_path), "one run")
    for number in range(parts):
        run(material.raw(spark, log, number / parts, (number + 1) / parts), number)
    refresh_gold(lake, TTL_S)
    assert differences(lake, undisturbed) == {}


def test_where_only_spark_writes_the_tables_are_the_same(spark, lake, tmp_path, undisturbed, monkeypatch):
    monkeypatch.setattr(Lake, "folder", "")
    log, run = material.records(SEED), Batches(lake.root, plan(tmp_path), "one run")
    for number, begin in enumerate((0.0, 0.6)):
        run(material.raw(spark, log, begin, begin + 0.6), number)
    refresh_gold(lake, TTL_S)
    monkeypatch.undo()
    assert differences(lake, undisturbed) == {}


def test_a_second_ingest_is_refused_and_harms_nothing(spark, lake, tmp_path, undisturbed):
    log = material.records(SEED)
    one, two = (Batches(lake.root, plan(tmp_path), name) for name in ("one", "two"))
    one(material.raw(spark, log, 0.0, 0.3), 0)
    two(material.raw(spark, log, 0.0, 0.6), 0)
    with pytest.raises(Conflict, match="stop one of the two"):
        one(material.raw(spark, log, 0.3, 1.0), 1)
    two(material.raw(spark, log, 0.6, 1.0), 1)
    refresh_gold(lake, TTL_S)
    assert differences(lake, undisturbed) == {}


@pytest.mark.parametrize("apart", [True, False])
def test_another_writer_is_noticed_where_commits_could_be_lost(spark, lake, tmp_path, monkeypatch, apart):
    monkeypatch.setattr(Lake, "folder", "")
    monkeypatch.setattr(Lake, "keeps_writers_apart", apart)
    log, run = material.records(SEED), Batches(lake.root, plan(tmp_path), "one run")
    for number, begin in enumerate((0.0, 0.1)):
        run(material.raw(spark, log, begin, begin + 0.1), number)
    spark.sql(f"OPTIMIZE delta.`{lake.path('bronze')}`")  # as `maintain` does
    if apart:
        run(material.raw(spark, log, 0.2, 0.3), 2)
    else:
        with pytest.raises(Conflict, match=r"another job writes to .* one job at a time may write to a lake on S3"):
            run(material.raw(spark, log, 0.2, 0.3), 2)


def test_a_topic_that_was_made_anew_is_refused(spark, lake, tmp_path):
    log = material.records(SEED, reports=8, steps=9)
    Batches(lake.root, plan(tmp_path), "one")(material.raw(spark, log), 0)
    later = material.raw(spark, log).selectExpr("* EXCEPT (appended_at)", "appended_at + INTERVAL 1 DAY AS appended_at")
    with pytest.raises(Invalid, match="was created again"):
        Batches(lake.root, plan(tmp_path), "two")(later, 0)


@pytest.mark.release
def test_killed_in_earnest_between_files_and_commit_and_anywhere(spark, tmp_path):
    log, root = tmp_path / "log.db", tmp_path / "killed"
    asyncio.run(material.write(log, material.records(SEED)))
    arguments = [str(root), f"sqlite:{log}", "--partitions", str(material.PARTITIONS), "--max", "50"]
    orphans = killed_when(tmp_path, arguments, lambda: uncommitted(root / "tables" / "bronze"))
    assert orphans & uncommitted(root / "tables" / "bronze"), "written, and no commit names them"
    killed_when(tmp_path, arguments, lambda: uncommitted(root / "tables" / "broker_load"))
    assert run_to_its_end(tmp_path, arguments, "silver:2") == KILLED
    shutil.rmtree(root / "checkpoints")
    killed, whole, source = Lake(spark, str(root)), Lake(spark, str(tmp_path / "whole")), SqliteSource(log)
    Ingest(killed, source, Options(partitions=material.PARTITIONS)).run_available()
    rows = source.read(spark, TOPICS)
    Batches(whole.root, plan(tmp_path), "whole")(rows, 0)
    refresh_gold(whole, TTL_S)
    assert reached(whole, SILVER).batch == 0
    assert reached(killed, SILVER).batch > 0
    assert differences(killed, whole) == {}
    assert missed(killed, rows) == ""


def killed_when(directory: Path, arguments: list[str], seen: Callable[[], set[str]]) -> set[str]:
    """Start a victim and kill it as soon as something is seen that was not there before."""
    before, deadline = seen(), time.monotonic() + PATIENCE_S
    victim = Victim(directory / "victim.log", arguments)
    while not (now := seen() - before):
        assert time.monotonic() < deadline, said(directory)
        if not victim.running:
            victim = Victim(directory / "victim.log", arguments)
        time.sleep(Random().uniform(0.001, 0.01))
    victim.kill()
    return now


def run_to_its_end(directory: Path, arguments: list[str], point: str = "") -> int:
    """How a victim ended; one that ends by itself with an error, as on a machine that is too busy, is started again."""
    for _ in range(ATTEMPTS):
        code = Victim(directory / "victim.log", arguments, point).wait(PATIENCE_S)
        if code in (0, KILLED):
            return code
    raise AssertionError(said(directory))


def said(directory: Path) -> str:
    return (directory / "victim.log").read_text()[-3000:]
