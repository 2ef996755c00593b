"""Single records reach a real log in batches, from its loop and from threads, and Kafka's client gets our settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from statechannel.adapters.kafka.clients import MAX_MESSAGE_BYTES, producer_settings
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.errors import LogUnavailable, TopicMismatch
from statechannel.ports import TopicSpec
from statechannel.runtime.auto_batch import BatchedAppends
from statechannel.runtime.batching import BatchSettings
from tests.contracts.entries import WAIT_S, held, texts, value

TOPIC = "stream"


@asynccontextmanager
async def opened(path: Path, settings: BatchSettings | None = None) -> AsyncIterator[tuple[SqliteLog, BatchedAppends]]:
    log = SqliteLog(path / "log.db", append_timeout_s=30.0)
    await log.start(timeout_s=WAIT_S)
    try:
        await log.open_topic(TopicSpec(TOPIC, partitions=2))
        batched = BatchedAppends(log, settings)
        yield log, batched
        await batched.close()
        assert batched.held_bytes == 0
    finally:
        await log.close()


async def test_records_of_a_loop_arrive_in_order_in_few_rows(tmp_path):
    async with opened(tmp_path) as (log, batched):
        await asyncio.gather(*(batched.append(TOPIC, i % 2, value(i)) for i in range(2_000)))
        for partition in (0, 1):
            assert texts(await held(log, TOPIC, partition)) == [str(i) for i in range(partition, 2_000, 2)]


async def test_records_of_threads_arrive_and_each_thread_keeps_its_order(tmp_path):
    async with opened(tmp_path) as (log, batched):

        def write(thread: int) -> None:
            for i in range(40):
                batched.append_blocking(TOPIC, 0, value(f"{thread}.{i}"), WAIT_S)

        with ThreadPoolExecutor(8) as pool:
            loop = asyncio.get_running_loop()
            await asyncio.gather(*(loop.run_in_executor(pool, write, thread) for thread in range(8)))
        found = texts(await held(log, TOPIC))
        for thread in range(8):
            assert [text for text in found if text.startswith(f"{thread}.")] == [f"{thread}.{i}" for i in range(40)]


async def test_threads_and_the_loop_keep_one_order_when_each_knows_of_the_other(tmp_path):
    async with opened(tmp_path, BatchSettings(batch_max_bytes=1)) as (log, batched):
        told: list[int] = []
        for i in range(0, 100, 2):  # each record is a batch: handed in by the loop, then by a thread
            assert batched.try_append(TOPIC, 0, value(i), lambda _, error, i=i: told.append(i))
            await asyncio.to_thread(batched.append_blocking, TOPIC, 0, value(i + 1), WAIT_S)
        assert texts(await held(log, TOPIC)) == [str(i) for i in range(100)]
        assert told == list(range(0, 100, 2))


async def test_a_refusal_of_the_log_reaches_each_caller(tmp_path):
    async with opened(tmp_path) as (_, batched):
        refused = await asyncio.gather(*(batched.append(TOPIC, 9, value(i)) for i in range(3)), return_exceptions=True)
        assert [type(error) for error in refused] == [TopicMismatch] * 3
        assert batched.held_bytes == 0


async def test_a_close_writes_what_is_there_and_takes_no_more(tmp_path):
    async with opened(tmp_path, BatchSettings(batch_max_delay_ms=30_000)) as (log, batched):
        waiting = asyncio.ensure_future(batched.append(TOPIC, 0, value("last")))
        await asyncio.sleep(0)
        await batched.close()
        await waiting
        with pytest.raises(LogUnavailable, match="closed"):
            await batched.append(TOPIC, 0, value("too late"))
        assert texts(await held(log, TOPIC)) == ["last"]


async def test_a_log_that_closes_first_fails_what_waits_and_keeps_no_byte(tmp_path):
    async with opened(tmp_path, BatchSettings(batch_max_delay_ms=30_000)) as (log, batched):
        waiting = asyncio.ensure_future(batched.append(TOPIC, 0, value("lost")))
        await asyncio.sleep(0)
        await log.close()
        await batched.close()
        with pytest.raises(LogUnavailable):
            await waiting


# --- Kafka
def test_kafkas_client_gets_our_settings_in_its_own_words():
    ours = BatchSettings(batch_max_bytes=16_384, batch_max_delay_ms=25, total_batch_max_bytes=3_000_000)
    made = producer_settings({}, 5.0, ours)
    assert (made["linger.ms"], made["batch.size"], made["queue.buffering.max.kbytes"]) == (25, 16_384, 2_930)


def test_without_batching_nothing_waits_on_kafka():
    made = producer_settings({}, 5.0)
    assert (made["linger.ms"], made["batch.size"]) == (0, MAX_MESSAGE_BYTES // 2)


def test_a_batch_on_kafka_fits_into_what_its_topics_accept():
    assert producer_settings({}, 5.0, BatchSettings(batch_max_bytes=2 << 20))["batch.size"] < MAX_MESSAGE_BYTES


def test_what_a_user_sets_goes_before_ours():
    made = producer_settings({"linger.ms": "3"}, 5.0, BatchSettings())
    assert made["linger.ms"] == "3"
