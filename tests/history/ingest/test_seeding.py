"""The channel's log was trimmed before the lake began: the channel's own snapshots say what came before, and behind
them the history says what it says of the whole log.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from loadmanager.diagnostics.topics import CHANNEL_TOPIC, SNAPSHOTS_TOPIC
from loadmanager.history import verdicts
from loadmanager.history.ingest import Ingest, Options
from loadmanager.history.ingest.batch import Batches, Plan
from loadmanager.history.ingest.failpoints import NEVER, VARIABLE
from loadmanager.history.lake import Lake
from loadmanager.history.sources import SqliteSource
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.ports import LogEntry, Payload, TopicSpec
from statechannel.runtime.core import ChannelCore
from tests.history.folding.tasks import Entry, history
from tests.history.ingest import material
from tests.history.ingest.dying import Crash, Fragile
from tests.statechannel.snapshots import Topic, write

TRIMMED, SNAPSHOT, LATER = 20, 45, 60
"""Offsets of each partition: the first that the log still has, and those that its two snapshots cover to."""

LOGS_OWN = ("appended_at", "at", "day", "batch")
"""Columns that come from when the log took a record: the two logs were written at different times."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    made = history(21, 180)
    assert min(sum(e.partition == partition for e in made) for partition in (0, 1)) > LATER
    return made


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, entries: list[Entry]) -> Lake:
    """A lake that saw everything."""
    lake = Lake(spark, str(tmp_path_factory.mktemp("whole")))
    log = {(CHANNEL_TOPIC, n): [Payload(None, e.value) for e in entries if e.partition == n] for n in (0, 1)}
    Batches(lake.root, Plan(SqliteSource(Path("none")), 2, NEVER), "whole")(material.raw(spark, log), 0)
    return lake


def snapshots(entries: list[Entry], partition: int, *ends: int) -> list[Payload]:
    """What the channel's owner wrote: a snapshot after so many records each, all of them kept."""
    topic, core = Topic(partition), ChannelCore(2)
    of_partition = [entry for entry in entries if entry.partition == partition]
    for count, entry in enumerate(of_partition, 1):
        core.apply(LogEntry(partition, entry.offset, None, entry.value, 0))
        if count in ends:
            write(topic, core.table.cut(partition), f"s{count}", keep={f"s{end}" for end in ends})
    return [Payload(entry.key, entry.value) for entry in topic.entries]


async def trimmed(path: Path, entries: list[Entry], *ends: int) -> None:
    log = SqliteLog(path)
    await log.start(timeout_s=60)
    try:
        await log.open_topic(TopicSpec(CHANNEL_TOPIC, 2))
        await log.open_topic(TopicSpec(SNAPSHOTS_TOPIC, 2, compacted=True))
        for partition in (0, 1):
            values = [Payload(None, entry.value) for entry in entries if entry.partition == partition]
            await log.append(CHANNEL_TOPIC, partition, values)
            if ends:
                await log.append(SNAPSHOTS_TOPIC, partition, snapshots(entries, partition, *ends))
            await log.trim(CHANNEL_TOPIC, partition, TRIMMED)
    finally:
        await log.close()


async def only_the_later_one(path: Path, entries: list[Entry]) -> None:
    """The channel's owner has written another snapshot, and dropped the older one."""
    log = SqliteLog(path)
    await log.start(timeout_s=60)
    try:
        await log.open_topic(TopicSpec(SNAPSHOTS_TOPIC, 2, compacted=True))
        for partition in (0, 1):
            gone = [Payload(payload.key, None) for payload in snapshots(entries, partition, SNAPSHOT)]
            await log.append(SNAPSHOTS_TOPIC, partition, [*gone, *snapshots(entries, partition, LATER)])
    finally:
        await log.close()


def behind(lake: Lake, table: str, offset: int) -> set[str]:
    """The rows of a table from an offset on, as text."""
    rows: DataFrame = lake.table(table).where(f.col("offset") >= offset).drop(*LOGS_OWN)
    return {str(row) for row in rows.collect()}


def ingest(lake: Lake, path: Path) -> None:
    Ingest(lake, SqliteSource(path), Options(partitions=2, max_per_trigger=40)).run_available()


def check(lake: Lake, whole: Lake) -> None:
    """All records are there, those behind the snapshot as in the whole log, and those before it are not judged."""
    for table in ("channel", "transition"):
        assert behind(lake, table, SNAPSHOT) == behind(whole, table, SNAPSHOT) != set()
    before = lake.table("channel").where(f.col("offset") < SNAPSHOT).groupBy("verdict").agg(f.min("offset")).collect()
    assert [(row[0], row[1]) for row in before] == [("unknown", TRIMMED)]
    there = f.col("offset").between(TRIMMED, SNAPSHOT - 1)
    assert lake.table("channel").where(there).count() == whole.table("channel").where(there).count()
    holes = lake.table("quarantine").where("kind = 'missing'").select("partition", "offset", "reason").collect()
    assert sorted((row.partition, row.offset) for row in holes) == [(0, 0), (1, 0)]
    assert all(f"offsets 0 to {TRIMMED - 1} were trimmed" in row.reason for row in holes)
    ends = [
        {number: at.next_offset for number, at in verdicts.positions(each.table("channel_state")).items()}
        for each in (lake, whole)
    ]
    assert ends[0] == ends[1]


def test_behind_the_snapshot_verdicts_are_those_of_the_whole_log(lake, whole, entries, tmp_path):
    asyncio.run(trimmed(tmp_path / "log.db", entries, SNAPSHOT, LATER))
    ingest(lake, tmp_path / "log.db")
    check(lake, whole)


def test_a_run_that_dies_goes_on_from_its_seed_though_the_snapshot_is_gone(lake, whole, entries, tmp_path):
    path = tmp_path / "log.db"
    asyncio.run(trimmed(path, entries, SNAPSHOT))
    source = SqliteSource(path)
    rows = source.read(lake.spark, [CHANNEL_TOPIC]).where(f.col("offset") < TRIMMED + 10)
    with pytest.raises(Crash):
        Batches(lake.root, Plan(source, 2, Fragile({VARIABLE: "judged"})), "one")(rows, 0)
    asyncio.run(only_the_later_one(path, entries))
    ingest(lake, path)
    check(lake, whole)


def test_without_a_snapshot_nothing_is_judged_and_nothing_is_lost(lake, whole, entries, tmp_path):
    asyncio.run(trimmed(tmp_path / "log.db", entries))
    ingest(lake, tmp_path / "log.db")
    verdicts = lake.table("channel").groupBy("verdict").count().collect()
    expected = whole.table("channel").where(f.col("offset") >= TRIMMED).count()
    assert [tuple(row) for row in verdicts] == [("unknown", expected)]
    assert lake.table("transition").isEmpty()
