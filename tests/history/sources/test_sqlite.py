"""Topics in the embedded log's file: what is read is what brokers wrote, in one go and as a stream."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from loadmanager.errors import Invalid
from loadmanager.history.schemas import RAW
from loadmanager.history.sources import TOPICS, SqliteSource, missing, source_of
from loadmanager.settings import Settings
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.ports import Payload, TopicSpec
from tests.history.sources.streams import Streaming, channel, found, payloads

CHANNEL = TopicSpec("bundle-state", 2)
BROKERS = TopicSpec("load-brokers", 1, compacted=True)


@asynccontextmanager
async def log_at(path: Path) -> AsyncGenerator[SqliteLog]:
    log = SqliteLog(path)
    await log.start(timeout_s=30)
    await log.open_topic(CHANNEL)
    try:
        yield log
    finally:
        await log.close()


async def test_everything_is_read_with_its_place_and_time_while_a_broker_has_the_file_open(spark, tmp_path):
    before_s = int(time.time())
    async with log_at(tmp_path / "log.db") as log:
        await log.append("bundle-state", 0, payloads(0, 2_500))
        await log.append("bundle-state", 1, [Payload(None, b"without a key"), Payload(b"gone", None)])
        rows = SqliteSource(tmp_path / "log.db").read(spark, TOPICS)
        assert rows.schema == RAW
        expected = [*channel(0, 0, 2_500), ("bundle-state", 1, 0, b"without a key"), ("bundle-state", 1, 1, None)]
        assert found(rows) == expected
        keys = {row.key and bytes(row.key) for row in rows.where("partition = 1").collect()}
        assert keys == {None, b"gone"}
        assert all(row.appended_at.timestamp() >= before_s for row in rows.select("appended_at").collect())


async def test_a_file_that_nobody_has_open_is_read_too(spark, tmp_path):
    async with log_at(tmp_path / "log.db") as log:
        await log.append("bundle-state", 0, payloads(0, 3))
    assert found(SqliteSource(tmp_path / "log.db").read(spark, TOPICS)) == channel(0, 0, 3)
    async with log_at(tmp_path / "log.db") as log:  # and brokers go on with it
        await log.append("bundle-state", 0, payloads(3, 1))
    assert found(SqliteSource(tmp_path / "log.db").read(spark, TOPICS)) == channel(0, 0, 4)


async def test_topics_that_are_not_there_give_no_rows(spark, tmp_path):
    source = SqliteSource(tmp_path / "log.db")
    async with log_at(source.path):
        assert source.available(TOPICS) == ("bundle-state",)
        assert found(source.read(spark, ["audit", "group-lag"])) == []


async def test_of_a_compacted_topic_the_newest_values_are_read_where_they_stand(spark, tmp_path):
    async with log_at(tmp_path / "log.db") as log:
        await log.open_topic(BROKERS)
        for value in (b"1", b"2"):
            await log.append("load-brokers", 0, [Payload(b"a", value), Payload(b"b", value)])
        await log.append("load-brokers", 0, [Payload(b"a", None)])
        rows = SqliteSource(tmp_path / "log.db").read(spark, ["load-brokers"])
        assert found(rows) == [("load-brokers", 0, 3, b"2"), ("load-brokers", 0, 4, None)]


async def test_a_stream_goes_on_from_its_checkpoint_and_takes_no_more_than_it_may(spark, tmp_path):
    async with log_at(tmp_path / "log.db") as log:
        streaming = Streaming(spark, SqliteSource(tmp_path / "log.db"), tmp_path)
        await log.append("bundle-state", 0, payloads(0, 1_200))
        await log.append("bundle-state", 1, payloads(0, 100))
        streaming.drain(500)
        assert max(map(len, streaming.batches)) <= 500
        assert sorted(streaming.rows) == [*channel(0, 0, 1_200), *channel(1, 0, 100)]
        streaming.batches.clear()
        await log.append("bundle-state", 0, payloads(1_200, 700))
        streaming.drain(500)
        assert max(map(len, streaming.batches)) <= 500
        assert sorted(streaming.rows) == channel(0, 1_200, 700)


async def test_a_topic_that_comes_later_joins(spark, tmp_path):
    async with log_at(tmp_path / "log.db") as log:
        streaming = Streaming(spark, SqliteSource(tmp_path / "log.db"), tmp_path)
        await log.append("bundle-state", 0, payloads(0, 1))
        streaming.drain()
        await log.open_topic(TopicSpec("audit", 1))
        await log.append("audit", 0, [Payload(None, b"somebody")])
        streaming.drain()
        assert streaming.batches == [channel(0, 0, 1), [("audit", 0, 0, b"somebody")]]


async def test_what_was_trimmed_before_it_was_read_is_a_hole_that_is_told(spark, tmp_path):
    async with log_at(tmp_path / "log.db") as log:
        source = SqliteSource(tmp_path / "log.db")
        streaming = Streaming(spark, source, tmp_path)
        await log.append("bundle-state", 0, payloads(0, 1_500))
        streaming.drain(200)
        await log.append("bundle-state", 0, payloads(1_500, 3_000))
        await log.trim("bundle-state", 0, 4_000)
        streaming.batches.clear()
        streaming.drain(200)  # the bound is not used up by what is not there
        assert streaming.rows == channel(0, 4_000, 500)
        assert [len(batch) for batch in streaming.batches] == [200, 200, 100]
        positions = spark.createDataFrame([("bundle-state", 0, 1_500)], "topic string, partition int, next_offset long")
        [hole] = missing(source.read(spark, TOPICS), positions).collect()
        assert (hole.topic, hole.partition, hole.offset, hole.kind) == ("bundle-state", 0, 1_500, "missing")
        assert hole.reason == "offsets 1500 to 3999 were trimmed before they were read"
        assert hole.value is None
        assert hole.day == hole.appended_at.date()


async def test_a_file_in_the_place_of_the_one_that_was_read_stops_the_stream(spark, tmp_path):
    streaming = Streaming(spark, SqliteSource(tmp_path / "log.db"), tmp_path)
    for count in (10, 3):
        async with log_at(tmp_path / "log.db") as log:
            await log.append("bundle-state", 0, payloads(0, count))
        if count == 10:
            streaming.drain()
        else:
            with pytest.raises(PySparkException, match="another file than this query began with"):
                streaming.drain()
        for each in tmp_path.glob("log.db*"):
            each.unlink()


def test_a_file_that_is_not_there_says_so(tmp_path):
    with pytest.raises(Invalid, match="check that this is the brokers' log"):
        SqliteSource(tmp_path / "none.db").available(TOPICS)


def test_a_file_that_is_no_log_says_so(tmp_path):
    (tmp_path / "other.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(Invalid, match="not an SQLite database"):
        SqliteSource(tmp_path / "other.db").available(TOPICS)


def test_the_source_is_where_the_brokers_log_is(tmp_path):
    assert source_of(Settings(log=f"sqlite:{tmp_path}/log.db")) == SqliteSource(tmp_path / "log.db")
    with pytest.raises(ValueError, match="is not a log"):
        source_of(Settings(log="elsewhere:log"))
