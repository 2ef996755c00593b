"""Late, repeated, damaged and newer records: each is where it belongs, once, with the reason."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.decisions.log import DECISIONS_TOPIC
from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.history import verdicts
from loadmanager.history.ingest.batch import Batches, Plan, reread
from loadmanager.history.ingest.failpoints import NEVER
from loadmanager.history.ingest.positions import SILVER, WRITER, advance, arrived
from loadmanager.history.lake import Lake, Once
from loadmanager.history.sources import SqliteSource
from loadmanager.model.load import BROKERS_TOPIC, BUNDLES_TOPIC
from statechannel.law import codec
from statechannel.law.record import Action, BrokerId, Record
from statechannel.ports import Payload
from tests.history.folding.tasks import of_format
from tests.history.ingest import material

pytestmark = pytest.mark.timeout(600)


def plan(directory) -> Plan:
    return Plan(SqliteSource(directory / "log.db"), material.PARTITIONS, NEVER)


def test_every_record_is_in_silver_or_in_quarantine_and_repeats_count_once(spark, lake, tmp_path):
    log = material.records(5)
    for number, end in enumerate((0.4, 0.7, 1.0)):
        Batches(lake.root, plan(tmp_path), f"run {number}")(material.raw(spark, log, 0.0, end), 0)
    bad = Counter((row.topic, row.kind) for row in lake.table("quarantine").collect())
    channel = lake.table("channel").count()
    assert channel + bad[CHANNEL_TOPIC, "corrupt"] == sum(
        len(p) for (topic, _), p in log.items() if topic == CHANNEL_TOPIC
    )
    for topic, table in ((BROKERS_TOPIC, "broker_load"), (BUNDLES_TOPIC, "bundle_total")):
        values = [payload.value for payload in log[topic, 0]]
        reports = {value for value in values if value is not None and value != b"{damaged"}
        assert lake.table(table).where("at IS NOT NULL").count() == len(reports)
        assert bad[topic, "corrupt"] == 1
        first = {row.offset for row in lake.table(table).where("at IS NOT NULL").select("offset").collect()}
        assert first == {values.index(report) for report in reports}, "the first offset counts"
    assert lake.table("bundle_load").count() == 3 * lake.table("bundle_total").count()
    assert lake.table("decision").count() == 8
    assert (bad[DECISIONS_TOPIC, "corrupt"], bad[DECISIONS_TOPIC, "newer"]) == (1, 1)
    assert not [kind for kind in bad if kind[1] == "missing"]


def test_offsets_that_were_gone_are_told(spark, lake, tmp_path):
    log = {(BROKERS_TOPIC, 0): material.loads(Random(1), 12, material.BASE_MS)[BROKERS_TOPIC]}
    rows = material.raw(spark, log).where("offset NOT IN (3, 4)")
    Batches(lake.root, plan(tmp_path), "run")(rows, 0)
    [gap] = lake.table("quarantine").where("kind = 'missing'").collect()
    assert (gap.topic, gap.offset) == (BROKERS_TOPIC, 3)
    assert "offsets 3 to 4" in gap.reason


def test_a_record_of_a_newer_release_waits_and_in_the_channel_all_behind_it(spark, lake, tmp_path):
    newer = codec.NEWEST_VERSION + 1
    log = {(CHANNEL_TOPIC, 0): [noop(0), Payload(None, of_format(newer)), noop(2)]}
    Batches(lake.root, plan(tmp_path), "run")(material.raw(spark, log), 0)
    [row] = lake.table("quarantine").collect()
    assert (row.offset, row.kind) == (1, "newer")
    assert lake.table("channel").count() == 1
    assert verdicts.positions(lake.table("channel_state"))[0].held == newer
    assert reread(lake) == 0
    assert lake.table("quarantine").count() == 1, "this release does not read it either"


def test_what_waited_is_read_by_the_release_that_can(spark, lake, tmp_path):
    log = {(CHANNEL_TOPIC, 0): [noop(offset) for offset in range(4)], (DECISIONS_TOPIC, 0): decisions()}
    Batches(lake.root, plan(tmp_path), "before")(material.raw(spark, log, 0.0, 0.25), 0)
    left_by_an_older_release(lake, material.raw(spark, log, 0.25, 0.75))
    assert reread(lake) == 1, "the decision"
    Batches(lake.root, plan(tmp_path), "after")(material.raw(spark, log), 0)
    assert reread(lake) == 0
    assert sorted(row.offset for row in lake.table("channel").collect()) == [0, 1, 2, 3]
    assert sorted(row.offset for row in lake.table("decision").collect()) == [0, 1, 3]
    assert lake.table("move").where("offset = 1").count() == 1
    assert lake.table("quarantine").count() == 0
    at = verdicts.positions(lake.table("channel_state"))[0]
    assert (at.next_offset, at.held) == (4, None)


def test_a_batch_that_an_older_release_left_half_done_is_done_by_this_one(spark, lake, tmp_path):
    log = {(CHANNEL_TOPIC, 0): [noop(offset) for offset in range(4)]}
    Batches(lake.root, plan(tmp_path), "before")(material.raw(spark, log, 0.0, 0.25), 0)
    in_bronze(lake, material.raw(spark, log, 0.25, 0.75))
    for table in ("channel", "transition"):  # to that release the batch began with a record of a newer format
        lake.append(table, lake.table(table).limit(0), Once(WRITER, 1))
    Batches(lake.root, plan(tmp_path), "after")(material.raw(spark, log), 0)
    assert sorted(row.offset for row in lake.table("channel").collect()) == [0, 1, 2, 3]
    assert verdicts.positions(lake.table("channel_state"))[0].next_offset == 4


def left_by_an_older_release(lake: Lake, rows: DataFrame) -> None:
    """Batch 1, offsets 1 and 2: to that release the first of each topic was of a newer format."""
    rows = rows.where(f.col("offset") > 0)
    day = f.to_date("appended_at").alias("day")
    once = Once(WRITER, 1)
    in_bronze(lake, rows)
    first = rows.where(f.col("offset") == 1)
    lake.append(
        "quarantine", first.select("*", f.lit("newer").alias("kind"), f.lit("newer").alias("reason"), day), once
    )
    state = lake.table("channel_state").where("batch = 0")
    held = state.withColumn("batch", f.lit(1).cast("long")).withColumn("held", f.lit(codec.NEWEST_VERSION))
    lake.append("channel_state", held, once)
    advance(lake, SILVER, 1, arrived(rows))


def in_bronze(lake: Lake, rows: DataFrame) -> None:
    """As batch 1."""
    day, batch = f.to_date("appended_at").alias("day"), f.lit(1).cast("long").alias("batch")
    lake.append("bronze", rows.select("*", day, batch), Once(WRITER, 1))


def noop(offset: int) -> Payload:
    return Payload(None, codec.encode(Record(f"r{offset}", Action.NOOP, BrokerId("a:1", 1))))


def decisions() -> list[Payload]:
    """Of four, the second with one move."""
    return material.decisions(Random(1), 8, material.BASE_MS)[3:7]
