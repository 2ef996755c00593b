"""Bounded reads, trimming and asking for offsets on a real Kafka that does not answer, or trims while one reads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import pytest

from stack.servers import KafkaServer
from statechannel.adapters.kafka.log import KafkaLog
from statechannel.errors import LogUnavailable, TopicMismatch, Trimmed
from statechannel.ports import LogEntry, Payload, TopicSpec
from tests.servers import shared_kafka, topic_prefix

pytestmark = pytest.mark.kafka

WAIT_S = 60
CHANNEL = TopicSpec("channel", partitions=1)
SMALL_STEPS = {"queued.max.messages.kbytes": "64", "fetch.message.max.bytes": "65536"}
"""With these a consumer cannot have read ahead what is trimmed."""


@pytest.fixture
def kafka_server(pytestconfig: pytest.Config) -> KafkaServer:
    return shared_kafka(pytestconfig)


@pytest.fixture
def prefix() -> str:
    return topic_prefix("kafka-read")


@asynccontextmanager
async def started(
    server: KafkaServer, prefix: str, *, request_timeout_s: float = 30.0, settings: dict[str, str] | None = None
) -> AsyncGenerator[KafkaLog]:
    log = KafkaLog(
        server.address,
        topic_prefix=prefix,
        development=True,
        request_timeout_s=request_timeout_s,
        client_settings=settings,
    )
    await log.start(timeout_s=WAIT_S)
    await log.open_topic(CHANNEL)
    try:
        yield log
    finally:
        await log.close()


async def fill(log: KafkaLog, count: int, size: int) -> None:
    entries = [Payload(None, str(number).encode().ljust(size)) for number in range(count)]
    await log.append("channel", 0, entries)


async def go_on(reading: AsyncIterator[Sequence[LogEntry]], seen: list[int]) -> None:
    async for batch in reading:
        seen += [int(entry.value or b"") for entry in batch]


# --- trimmed meanwhile
@pytest.mark.parametrize("kind", ["tail", "read"])
async def test_a_reader_that_a_trim_overtakes_is_told_where_it_goes_on(kafka_server, prefix, kind):
    async with started(kafka_server, prefix, settings=SMALL_STEPS) as log:
        await fill(log, 3_000, 5_000)
        reading = log.tail("channel", [0]) if kind == "tail" else log.read("channel", 0, 0)
        async with asyncio.timeout(WAIT_S), aclosing(reading):
            seen = [int(entry.value or b"") for entry in await anext(reading)]
            await log.trim("channel", 0, 2_900)
            with pytest.raises(Trimmed, match="trimmed up to 2900"):
                await go_on(reading, seen)
        assert seen == list(range(len(seen)))
        assert len(seen) < 2_900


async def test_compacted_topic_is_not_trimmed_and_the_message_says_what_to_do(kafka_server, prefix):
    async with started(kafka_server, prefix) as log:
        await log.open_topic(TopicSpec("table", 1, compacted=True))
        await log.append("table", 0, [Payload(b"key", b"1"), Payload(b"key", b"2")])
        with pytest.raises(TopicMismatch, match="tombstones"):
            await log.trim("table", 0, 1)
        assert await log.begins("table") == (0,)


# --- no answer
async def test_a_kafka_that_does_not_answer_is_unavailable_to_each_question(kafka_server, prefix):
    async with (
        started(kafka_server, prefix, request_timeout_s=1.0) as log,
        started(kafka_server, prefix, request_timeout_s=WAIT_S) as patient,
    ):
        await fill(patient, 10, 10)
        kafka_server.suspend()
        try:
            waiting = asyncio.ensure_future(patient.begins("channel"))
            asked = [log.begins("channel"), log.offset_at("channel", 0, 0), log.trim("channel", 0, 5), whole(log)]
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
            assert not waiting.done(), "each log has its own time-out"
        finally:
            kafka_server.resume()
        assert await waiting == (0,)
        assert [type(outcome) for outcome in outcomes] == [LogUnavailable] * 4
        assert all(kafka_server.address in str(outcome) for outcome in outcomes)
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    assert len(await whole(log)) in (5, 10)  # a trim without an answer may have been made
                    break
                except LogUnavailable:
                    await asyncio.sleep(0)


async def whole(log: KafkaLog) -> list[int]:
    (begin,) = await log.begins("channel")
    return [entry.offset async for batch in log.read("channel", 0, begin) for entry in batch]


async def test_kafka_silent_during_a_read_is_unavailable_and_nothing_is_skipped(kafka_server, prefix):
    async with (
        started(kafka_server, prefix, request_timeout_s=1.0, settings=SMALL_STEPS) as log,
        started(kafka_server, prefix) as writer,
    ):
        await fill(writer, 3_000, 5_000)
        seen: list[int] = []
        async with asyncio.timeout(WAIT_S), aclosing(log.read("channel", 0, 0)) as reading:
            seen += [int(entry.value or b"") for entry in await anext(reading)]
            kafka_server.suspend()
            try:
                with pytest.raises(LogUnavailable, match="no record of"):
                    await go_on(reading, seen)
            finally:
                kafka_server.resume()
        assert seen == list(range(len(seen)))
        assert len(seen) < 3_000


# --- what it leaves behind
@pytest.mark.slow
async def test_reads_that_ended_were_closed_or_dropped_leave_no_thread(kafka_server, prefix):
    async with started(kafka_server, prefix) as log:
        await fill(log, 3_000, 500)
        before = threading.active_count()
        for _ in range(5):
            assert len([batch async for batch in log.read("channel", 0, 0)]) >= 3
            async with aclosing(log.read("channel", 0, 0)) as reading:
                await anext(reading)
            waiting = asyncio.ensure_future(whole(log))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(WAIT_S):
            while threading.active_count() > before:
                await asyncio.sleep(0.01)
