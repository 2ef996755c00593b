"""Topics on a real Kafka: what is read is what brokers wrote, in one go and as a stream, with holes told."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from loadmanager.errors import Invalid
from loadmanager.history.schemas import RAW
from loadmanager.history.sources import TOPICS, KafkaSource, missing, source_of
from loadmanager.settings import Settings
from stack.servers import KafkaServer
from statechannel.adapters.kafka.log import KafkaLog
from statechannel.ports import Payload, TopicSpec
from tests.history.sources.streams import Streaming, channel, found, payloads
from tests.servers import topic_prefix

pytestmark = pytest.mark.kafka

WAIT_S = 60
CHANNEL = TopicSpec("bundle-state", 2)
BROKERS = TopicSpec("load-brokers", 1, compacted=True, followed=True)


@asynccontextmanager
async def log_at(source: KafkaSource) -> AsyncGenerator[KafkaLog]:
    log = KafkaLog(source.bootstrap, topic_prefix=source.prefix, development=True, request_timeout_s=30.0)
    await log.start(timeout_s=WAIT_S)
    await log.open_topic(CHANNEL)
    try:
        yield log
    finally:
        await log.close()


@pytest.fixture
def source(kafka_server: KafkaServer) -> KafkaSource:
    return KafkaSource(kafka_server.address, topic_prefix("history.x"))


async def test_everything_is_read_with_its_place_and_time_and_nothing_of_other_prefixes(spark, source):
    before_s = int(time.time())
    other = KafkaSource(source.bootstrap, source.prefix.replace(".", "x"))  # what the dots of a pattern would match
    async with log_at(source) as log, log_at(other) as others:
        await others.append("bundle-state", 0, payloads(0, 1))
        await log.append("bundle-state", 0, payloads(0, 1_500))
        await log.append("bundle-state", 1, [Payload(None, b"without a key"), Payload(b"gone", None)])
        assert source.available(TOPICS) == ("bundle-state",)
        rows = source.read(spark, TOPICS)
        assert rows.schema.simpleString() == RAW.simpleString()
        expected = [*channel(0, 0, 1_500), ("bundle-state", 1, 0, b"without a key"), ("bundle-state", 1, 1, None)]
        assert found(rows) == expected
        assert {row.key and bytes(row.key) for row in rows.where("partition = 1").collect()} == {None, b"gone"}
        assert all(row.appended_at.timestamp() >= before_s for row in rows.select("appended_at").collect())


async def test_a_stream_goes_on_from_its_checkpoint_takes_no_more_than_it_may_and_later_topics_join(
    spark, source, tmp_path
):
    async with log_at(source) as log:
        streaming = Streaming(spark, source, tmp_path)
        await log.append("bundle-state", 0, payloads(0, 900))
        streaming.drain(500)
        assert max(map(len, streaming.batches)) <= 500
        assert sorted(streaming.rows) == channel(0, 0, 900)
        streaming.batches.clear()
        await log.append("bundle-state", 0, payloads(900, 100))
        await log.open_topic(BROKERS)
        await log.append("load-brokers", 0, [Payload(b"a", b"1"), Payload(b"a", b"2")])
        streaming.drain(500)
        brokers = [("load-brokers", 0, 0, b"1"), ("load-brokers", 0, 1, b"2")]
        assert sorted(streaming.rows) == [*channel(0, 900, 100), *brokers]


async def test_what_was_trimmed_before_it_was_read_is_a_hole_that_is_told(spark, source, tmp_path):
    async with log_at(source) as log:
        streaming = Streaming(spark, source, tmp_path)
        await log.append("bundle-state", 0, payloads(0, 100))
        streaming.drain()
        await log.append("bundle-state", 0, payloads(100, 400))
        await log.trim("bundle-state", 0, 300)
        streaming.batches.clear()
        streaming.drain()
        assert sorted(streaming.rows) == channel(0, 300, 200)
        columns = "topic string, partition int, next_offset long"
        positions = spark.createDataFrame([("bundle-state", 0, 100)], columns)
        [hole] = missing(source.read(spark, TOPICS), positions).collect()
        assert (hole.partition, hole.offset, hole.kind) == (0, 100, "missing")
        assert hole.reason == "offsets 100 to 299 were trimmed before they were read"


def test_a_kafka_that_does_not_answer_says_so(monkeypatch):
    monkeypatch.setattr("loadmanager.history.sources.kafka.ANSWER_TIMEOUT_S", 0.2)
    with pytest.raises(Invalid, match="no answer from Kafka at 127"):
        KafkaSource("127.0.0.1:1").available(TOPICS)


def test_the_source_is_where_the_brokers_log_is():
    settings = Settings(log="kafka://k:9092,l:9092", coordination="zookeeper://z:2181", kafka={"client.id": "x"})
    assert source_of(settings) == KafkaSource("k:9092,l:9092", settings.topic_prefix, {"client.id": "x"})
