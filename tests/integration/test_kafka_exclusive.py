"""Exclusive writers on a real Kafka: what becomes of a group when its writer is fenced, cut off or killed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # pyright: ignore[reportPrivateImportUsage]

from stack.servers import KafkaServer
from statechannel.adapters.kafka.clients import exclusive_settings
from statechannel.adapters.kafka.exclusive import Exclusive
from statechannel.adapters.kafka.log import KafkaLog
from statechannel.adapters.kafka.transactions import FencedWhileCommitting, Transactions
from statechannel.errors import LogError, LogUnavailable, RecordTooLarge, WriterFenced
from statechannel.ports import Payload, TopicSpec
from statechannel.runtime.view import TableView
from tests.servers import shared_kafka, topic_prefix

pytestmark = pytest.mark.kafka

WAIT_S = 60
SNAPSHOTS = TopicSpec("snapshots", partitions=1, compacted=True)
ID = "writer-0"


@pytest.fixture
def kafka_server(pytestconfig: pytest.Config) -> KafkaServer:
    return shared_kafka(pytestconfig)


@pytest.fixture
def prefix() -> str:
    return topic_prefix("kafka-exclusive")


@asynccontextmanager
async def started(bootstrap: str, prefix: str, *, request_timeout_s: float = 30.0) -> AsyncGenerator[KafkaLog]:
    log = KafkaLog(bootstrap, topic_prefix=prefix, development=True, request_timeout_s=request_timeout_s)
    await log.start(timeout_s=WAIT_S)
    try:
        yield log
    finally:
        await log.close()


@pytest.fixture
async def log(kafka_server, prefix) -> AsyncGenerator[KafkaLog]:
    async with started(kafka_server.address, prefix) as log:
        await log.open_topic(SNAPSHOTS)
        yield log


def group(name: str, size: int = 3) -> list[Payload]:
    return [Payload(f"{name}/{i}".encode(), f"{name} {i}".encode()) for i in range(size)]


def texts(payloads: Sequence[Payload]) -> list[str]:
    return [(payload.value or b"").decode() for payload in payloads]


async def read(log: KafkaLog, start: int = 0) -> list[str]:
    async with asyncio.timeout(WAIT_S):
        return [(e.value or b"").decode() async for batch in log.read("snapshots", 0, start) for e in batch]


async def exclusive(log: KafkaLog) -> Exclusive:
    writer = await log.exclusive(ID)
    assert isinstance(writer, Exclusive)
    return writer


def before_it_ends(writer: Exclusive, act: Callable[[], object]) -> None:
    """Let something happen when a group was sent and its commit has not been asked for."""
    transactions = writer._transactions
    assert transactions is not None
    end = transactions._end

    def act_and_end(group) -> None:
        act()
        end(group)

    transactions._end = act_and_end


# --- what readers see
async def test_a_group_can_be_read_the_moment_its_commit_returns(log):
    writer = await exclusive(log)
    for turn in range(25):  # Kafka alone shows some later: about one in two
        await writer.commit("snapshots", 0, group(f"turn {turn}"))
        assert (await read(log))[-3:] == [f"turn {turn} {i}" for i in range(3)]


async def test_a_snapshot_of_tens_of_megabytes_is_one_transaction(log):
    chunks = [Payload(b"big/%d" % i, bytes([i]) * 900_000) for i in range(45)]
    writer = await exclusive(log)
    await writer.commit("snapshots", 0, chunks)
    async with asyncio.timeout(WAIT_S):
        found = [e async for batch in log.read("snapshots", 0, 0) for e in batch]
    assert [(e.key, e.value) for e in found] == [(chunk.key, chunk.value) for chunk in chunks]


async def test_reading_ends_before_a_transaction_that_is_still_open(log, kafka_server, prefix):
    await log.append("snapshots", 0, group("plain"))
    producer = open_transaction(log, prefix)
    (end,) = await log.ends("snapshots")
    for start in range(3, end + 1):
        assert await read(log, start) == []
    assert await read(log) == texts(group("plain"))
    producer.abort_transaction(WAIT_S)


async def test_reading_steps_over_a_transaction_that_was_aborted_and_ends(log, prefix):
    await log.append("snapshots", 0, group("plain"))
    open_transaction(log, prefix).abort_transaction(WAIT_S)
    (end,) = await log.ends("snapshots")
    assert end > 3
    for start in range(3, end + 1):
        assert await read(log, start) == []
    assert await read(log) == texts(group("plain"))


async def test_a_new_writer_closes_what_a_dead_one_left_open(log, prefix):
    open_transaction(log, prefix)
    writer = await exclusive(log)
    await writer.commit("snapshots", 0, group("new"))
    assert await read(log) == texts(group("new"))


async def test_a_view_is_ready_although_the_end_of_its_topic_is_no_entry(log):
    writer = await exclusive(log)
    await writer.commit("snapshots", 0, [Payload(b"key", b"value")])
    view = TableView[str](log, "snapshots", decode=bytes.decode, encode=str.encode, partitions=1)
    running = asyncio.ensure_future(view.run())
    try:
        assert await view.wait_ready(WAIT_S)
        assert dict(view) == {"key": "value"}
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def open_transaction(log: KafkaLog, prefix: str) -> Producer:
    """Somebody who wrote and has not committed."""
    producer = Producer(exclusive_settings(log._connection, 5.0, prefix + ID))
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for payload in group("open"):
        producer.produce(f"{prefix}snapshots", payload.value, payload.key, 0)
    assert producer.flush(WAIT_S) == 0
    return producer


# --- fenced
async def test_a_writer_that_was_fenced_while_it_rested_writes_nothing_more(log):
    first = await exclusive(log)
    await first.commit("snapshots", 0, group("first"))
    second = await exclusive(log)
    for _ in range(2):
        with pytest.raises(WriterFenced, match=ID):
            await first.commit("snapshots", 0, group("fenced"))
    await second.commit("snapshots", 0, group("second"))
    assert await read(log) == texts([*group("first"), *group("second")])


async def test_a_writer_that_is_fenced_before_it_commits_writes_nothing(log, prefix):
    first = await exclusive(log)
    successor = Transactions(exclusive_settings(log._connection, 5.0, prefix + ID), 5.0)
    before_it_ends(first, successor.take_over)
    with pytest.raises(WriterFenced, match="nothing was written"):
        await first.commit("snapshots", 0, group("fenced"))
    assert await read(log) == []


async def test_writer_fenced_after_a_commit_with_lost_answer_hears_it_committed(log):
    first = await exclusive(log)
    transactions = first._transactions
    assert transactions is not None
    end = transactions._end

    def end_unheard(group) -> None:
        end(group)
        raise FencedWhileCommitting("fenced", group.first)

    transactions._end = end_unheard
    await first.commit("snapshots", 0, group("committed"))
    assert await read(log) == texts(group("committed"))


async def test_writers_of_other_ids_are_left_alone(log):
    first, other = await exclusive(log), await log.exclusive("writer-1")
    await first.commit("snapshots", 0, group("first"))
    await other.commit("snapshots", 0, group("other"))
    assert await read(log) == texts([*group("first"), *group("other")])


# --- outages
async def test_a_kafka_that_does_not_answer_is_unavailable_to_a_new_writer(kafka_server, prefix):
    async with started(kafka_server.address, prefix, request_timeout_s=1.0) as log:
        await log.open_topic(SNAPSHOTS)
        kafka_server.suspend()
        try:
            asking = asyncio.ensure_future(log.exclusive(ID))
            _, pending = await asyncio.wait([asking], timeout=1)
            assert pending, "it waits for an answer"
            await log.close()
            with pytest.raises(LogUnavailable):
                await asking
        finally:
            kafka_server.resume()


async def test_unanswered_commit_is_all_or_nothing_and_ends_its_writer(kafka_server, prefix):
    async with (
        started(kafka_server.address, prefix, request_timeout_s=1.0) as log,
        started(kafka_server.address, prefix, request_timeout_s=WAIT_S) as patient,
    ):
        await log.open_topic(SNAPSHOTS)
        writer = await new_writer(log)
        before_it_ends(writer, kafka_server.suspend)
        try:
            with pytest.raises(LogUnavailable, match="new writer"):
                await writer.commit("snapshots", 0, group("unheard"))
            with pytest.raises(LogUnavailable, match="new writer"):
                await writer.commit("snapshots", 0, group("refused"))
        finally:
            kafka_server.resume()
        second = await new_writer(patient)
        found = await read(patient)
        assert found in ([], texts(group("unheard")))
        await second.commit("snapshots", 0, group("second"))
        assert await read(patient) == [*found, *texts(group("second"))]


@pytest.mark.slow
@pytest.mark.parametrize("sent", [False, True], ids=["while it is sent", "when it was sent"])
async def test_a_kafka_that_is_killed_during_a_commit_leaves_all_or_nothing(kafka_server, prefix, sent):
    large = [Payload(b"large/%d" % i, b"%d" % i * 400_000) for i in range(30)]
    async with (
        started(kafka_server.address, prefix, request_timeout_s=1.0) as log,
        started(kafka_server.address, prefix, request_timeout_s=WAIT_S) as patient,
    ):
        await log.open_topic(SNAPSHOTS)
        await (await new_writer(patient)).commit("snapshots", 0, group("before"))
        (end,) = await patient.ends("snapshots")
        writer = await new_writer(log)
        if sent:
            before_it_ends(writer, kafka_server.kill)
        committing = asyncio.ensure_future(writer.commit("snapshots", 0, large))
        while not sent and not committing.done() and (await patient.ends("snapshots"))[0] == end:
            await asyncio.sleep(0)
        kafka_server.kill()
        outcome = (await asyncio.gather(committing, return_exceptions=True))[0]
        await asyncio.to_thread(kafka_server.start)
        assert outcome is None or isinstance(outcome, LogUnavailable)
        second = await new_writer(patient)
        await second.commit("snapshots", 0, group("after"))
        found = await read(patient)
        wanted = [[*texts(group("before")), *middle, *texts(group("after"))] for middle in ([], texts(large))]
        assert found in (wanted if outcome else wanted[1:])


async def new_writer(log: KafkaLog) -> Exclusive:
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await exclusive(log)
            except LogUnavailable:
                await asyncio.sleep(0)


# --- refused, closed
async def test_a_group_that_the_topic_finds_too_large_leaves_nothing(log, kafka_server, prefix):
    admin = AdminClient({"bootstrap.servers": kafka_server.address})
    name = f"{prefix}narrow"
    admin.create_topics([NewTopic(name, 1, 1, config={"max.message.bytes": "1000"})])[name].result(WAIT_S)
    writer = await exclusive(log)
    with pytest.raises(RecordTooLarge, match="nothing"):
        await writer.commit("narrow", 0, [Payload(b"a", b"small"), Payload(b"b", b"x" * 5_000)])
    async with asyncio.timeout(WAIT_S):
        assert [batch async for batch in log.read("narrow", 0, 0)] == []


async def test_closed_writers_and_logs_are_unavailable_and_leave_no_thread(log):
    writer, other = await exclusive(log), await log.exclusive("writer-1")
    await writer.close()
    await writer.close()
    with pytest.raises(LogUnavailable, match="closed"):
        await writer.commit("snapshots", 0, group("late"))
    await log.close()
    with pytest.raises(LogUnavailable, match="closed"):
        await other.commit("snapshots", 0, group("late"))
    with pytest.raises(LogUnavailable, match="closed"):
        await log.exclusive(ID)
    async with asyncio.timeout(WAIT_S):
        while any(thread.name.startswith("kafka-kafka-exclusive") for thread in threading.enumerate()):
            await asyncio.sleep(0.01)


async def test_a_writer_that_the_cluster_will_never_take_is_told_what_to_change(kafka_server, prefix, monkeypatch):
    monkeypatch.setattr("statechannel.adapters.kafka.clients.TRANSACTION_TIMEOUT_S", 901)
    async with started(kafka_server.address, prefix) as log:
        with pytest.raises(LogError, match=r"transaction\.max\.timeout\.ms"):
            await log.exclusive(ID)
