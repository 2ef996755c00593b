"""The fold as Spark runs it: rows in any order and place, states in the lake's table, snapshots out of their topic."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from random import Random

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from loadmanager.errors import Invalid
from loadmanager.history.schemas import CHANNEL, CHANNEL_STATE, QUARANTINE, RAW, TRANSITION
from loadmanager.history.tasks import numbers_of, spread
from loadmanager.history.verdicts import SEEDED, Known, fold, known, of_rows, positions, seed, unpacked
from statechannel.ports import LogEntry
from statechannel.runtime.core import ChannelCore
from tests.statechannel.snapshots import Topic, write

from .tasks import Entry, history

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def raw(spark: SparkSession, entries: Iterable[Entry]) -> DataFrame:
    rows = [("bundle-state", e.partition, e.offset, None, e.value, WHEN) for e in entries]
    return spark.createDataFrame(rows, RAW).repartition(3)


def same(one: DataFrame, other: DataFrame) -> bool:
    return sorted(map(repr, one.collect())) == sorted(map(repr, other.collect()))


def replayed(entries: Iterable[Entry]) -> ChannelCore:
    core = ChannelCore(2)
    for entry in entries:
        core.apply(LogEntry(entry.partition, entry.offset, None, entry.value, 0))
    return core


def test_batches_say_what_one_pass_says_also_when_one_is_run_again(spark: SparkSession):
    entries = history(7, 160)
    shuffled = Random(1).sample(entries[80:] + entries[70:90], 100)
    whole = fold(raw(spark, entries), Known(), 2, 0)
    whole.lists.persist()
    first = fold(raw(spark, entries[:80]), Known(), 2, 0)
    first.lists.persist()
    kept = first.state
    second = fold(raw(spark, shuffled), known(kept, 1), 2, 1)
    second.lists.persist()
    after = kept.unionByName(second.state).persist()
    again = fold(raw(spark, shuffled), known(after, 1), 2, 1)
    for found, schema in ((whole.channel, CHANNEL), (whole.transition, TRANSITION), (whole.unreadable, QUARANTINE)):
        assert found.schema == schema
    assert whole.state.schema == CHANNEL_STATE
    assert same(first.channel.unionByName(second.channel), whole.channel)
    assert same(first.transition.unionByName(second.transition), whole.transition)
    assert same(second.channel, again.channel), "states of this batch and later ones don't count"
    core = replayed(entries)
    at = positions(after)
    assert {p: position.next_offset for p, position in at.items()} == {p: core.table.next_offset(p) for p in (0, 1)}
    for partition in (0, 1):
        rows = after.where((f.col("partition") == partition) & (f.col("batch") == 1)).orderBy("chunk").collect()
        assert unpacked(partition, [row["data"] for row in rows]).digest() == core.table.digest(partition)
    assert positions(after, 1)[0].batch == 0
    after.unpersist()
    for each in (whole, first, second):
        each.lists.unpersist()


def test_what_a_run_knows_of_its_states_is_what_the_table_says(spark: SparkSession):
    entries = history(7, 160)
    table, there = spark.createDataFrame([], CHANNEL_STATE), Known()
    for batch, which in enumerate((entries[:80], [e for e in entries[80:] if e.partition == 1], [], entries[80:])):
        made = fold(raw(spark, which), there, 2, batch).state.persist()
        there, table = there.behind(of_rows(made.collect())), table.unionByName(made)
        told = known(table, batch + 1)
        assert there == told
    assert {at.batch for at in there.positions.values()} == {1, 3}, "one of them stood still in the last batch"


def test_a_seed_is_the_oldest_intact_snapshot_behind_the_first_record(spark: SparkSession, monkeypatch):
    entries = [e for e in history(9, 200) if e.partition == 0]
    topic = Topic(0)
    for end in (20, 40, 60, 80):
        name = f"s{end}"
        write(topic, replayed(entries[:end]).table.cut(0), name, keep={"s20", "s40", "s60"})
    topic.replace(b"s40/0", b"damaged")
    rows = [("bundle-state-snapshots", 0, e.offset, e.key, e.value, WHEN) for e in topic.entries]
    snapshots = spark.createDataFrame(rows, RAW).repartition(2)
    seeded = seed(snapshots, {0: 30, 1: 0}, {}).persist()
    assert {(r["batch"], r["next_offset"]) for r in seeded.collect()} == {(SEEDED, 60)}, "s40 is damaged"
    there = known(seeded, 0)
    assert seed(snapshots, {0: 50}, there.positions).isEmpty(), "what is known is enough"
    folded = fold(raw(spark, entries[30:]), there, 2, 0)
    whole = fold(raw(spark, entries), Known(), 2, 0)
    assert same(folded.channel.where("offset >= 60"), whole.channel.where("offset >= 60"))
    unknown = folded.channel.where("offset < 60").select("verdict").distinct().collect()
    assert [row["verdict"] for row in unknown] == ["unknown"]
    assert seed(snapshots, {0: 90}, {}).isEmpty(), "no snapshot goes so far"
    seeded.unpersist()


@pytest.mark.parametrize("tasks", [1, 2, 5, 16])
def test_neighbouring_partitions_come_to_tasks_of_their_own(spark: SparkSession, tasks: int):
    partitions = spark.range(0, 4 * tasks).select(f.col("id").cast("int").alias("partition"))
    placed = spread(partitions, f.col("partition"), tasks).select("partition", f.spark_partition_id().alias("task"))
    counts = placed.groupBy("task").count().collect()
    assert sorted(row["count"] for row in counts) == [4] * tasks
    assert len(set(numbers_of(tasks))) == tasks


def test_a_channel_has_partitions(spark: SparkSession):
    with pytest.raises(Invalid, match="1 partition"):
        fold(raw(spark, []), Known(), 0, 0)
