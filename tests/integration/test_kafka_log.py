"""`KafkaLog` against a real Kafka: what it refuses, and what it bears. The rest is in `tests/contracts`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # pyright: ignore[reportPrivateImportUsage]

from stack.servers import KafkaServer, free_port
from statechannel.adapters.kafka.log import KafkaLog
from statechannel.errors import LogError, LogUnavailable, TopicMismatch, Trimmed
from statechannel.ports import Payload, TopicSpec
from statechannel.runtime.batching import BatchSettings
from tests.faults import Cut, proxy_to
from tests.servers import shared_kafka, topic_prefix

pytestmark = pytest.mark.kafka

WAIT_S = 60
CHANNEL = TopicSpec("channel", partitions=2)
KEEPS_ALL = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
PROXY = "PROXY"

T = TypeVar("T")


@pytest.fixture
def kafka_server(pytestconfig: pytest.Config) -> KafkaServer:
    return shared_kafka(pytestconfig)


@pytest.fixture
def prefix() -> str:
    return topic_prefix("kafka-log")


@asynccontextmanager
async def started(
    bootstrap: str, prefix: str, *, request_timeout_s: float = 30.0, development: bool = True
) -> AsyncGenerator[KafkaLog]:
    log = KafkaLog(bootstrap, topic_prefix=prefix, development=development, request_timeout_s=request_timeout_s)
    await log.start(timeout_s=WAIT_S)
    try:
        yield log
    finally:
        await log.close()


class Operator:
    """Somebody with Kafka's own tools."""

    def __init__(self, server: KafkaServer) -> None:
        self._admin = AdminClient({"bootstrap.servers": server.address})

    def create(self, topic: str, settings: dict[str, str], partitions: int = 2) -> None:
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings)
        self._admin.create_topics([new])[topic].result(WAIT_S)

    def trim(self, topic: str, partition: int, before: int) -> None:
        where = TopicPartition(topic, partition, before)
        self._admin.delete_records([where])[where].result(WAIT_S)


@pytest.fixture
def operator(kafka_server) -> Operator:
    return Operator(kafka_server)


async def test_appends_that_gather_all_arrive_in_order_and_wait_for_room(kafka_server, prefix):
    """300 KiB through a queue of 64: the client refuses what does not fit, and its caller waits."""
    gathering = BatchSettings(batch_max_bytes=16 << 10, batch_max_delay_ms=50, total_batch_max_bytes=64 << 10)
    log = KafkaLog(
        kafka_server.address, topic_prefix=prefix, development=True, request_timeout_s=30.0, batching=gathering
    )
    await log.start(timeout_s=WAIT_S)
    try:
        await log.open_topic(CHANNEL)
        said = [f"{number:04}" + "x" * 1_020 for number in range(300)]
        await asyncio.gather(*(log.append("channel", 0, [Payload(None, text.encode())]) for text in said))
        assert await texts_from(log, [0, 0], said[-1]) == said
    finally:
        await log.close()


async def texts_from(log: KafkaLog, starts: Sequence[int], until: str) -> list[str]:
    """Everything from `starts` up to an entry of this text."""
    found: list[str] = []
    async with asyncio.timeout(WAIT_S), aclosing(log.tail("channel", starts)) as tail:
        while until not in found:
            found += [(entry.value or b"").decode() for entry in await anext(tail)]
    return found


async def answered(ask: Callable[[], Awaitable[T]]) -> T:
    """What a Kafka that is well says at last: a slow machine may need longer than a short request time-out."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await ask()
            except LogUnavailable:
                await asyncio.sleep(0)


async def append_until_taken(log: KafkaLog, text: str) -> None:
    """It may stand there more than once: an append without an answer may have been made."""
    await answered(lambda: log.append("channel", 0, [Payload(None, text.encode())]))


# --- what it refuses
@pytest.mark.parametrize(
    ("settings", "mend"),
    [
        ({**KEEPS_ALL, "cleanup.policy": "compact"}, "cleanup.policy=delete"),
        ({**KEEPS_ALL, "cleanup.policy": "compact,delete"}, "cleanup.policy=delete"),
        ({**KEEPS_ALL, "retention.ms": "604800000"}, "retention.ms=-1"),
        ({**KEEPS_ALL, "retention.bytes": "1000000"}, "retention.bytes=-1"),
        ({**KEEPS_ALL, "max.message.bytes": "1000"}, "max.message.bytes=1048588"),
    ],
)
async def test_lossy_channel_topic_is_refused_with_the_command_that_mends_it(
    kafka_server, operator, prefix, settings, mend
):
    operator.create(f"{prefix}channel", settings)
    async with started(kafka_server.address, prefix) as log:
        command = f"kafka-configs.sh --bootstrap-server {kafka_server.address} --alter .*{prefix}channel.*{mend}"
        with pytest.raises(TopicMismatch, match=command):
            await log.open_topic(CHANNEL)


async def test_a_channel_topic_that_an_operator_made_rightly_is_taken(kafka_server, operator, prefix):
    operator.create(f"{prefix}channel", KEEPS_ALL, partitions=3)
    async with started(kafka_server.address, prefix) as log:
        assert await log.open_topic(TopicSpec("channel")) == 3


async def test_another_partition_count_is_refused_with_both_numbers(kafka_server, operator, prefix):
    operator.create(f"{prefix}channel", KEEPS_ALL, partitions=3)
    async with started(kafka_server.address, prefix) as log:
        with pytest.raises(TopicMismatch, match=rf"has 3 partitions, not 2.*--topic {prefix}channel"):
            await log.open_topic(CHANNEL)


@pytest.fixture
def portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three partitions a request, as if that were all that Kafka takes."""
    monkeypatch.setattr("statechannel.adapters.kafka.topics.PARTITIONS_A_REQUEST", 3)


@pytest.mark.usefixtures("portions")
async def test_a_topic_of_many_partitions_is_created_in_portions_by_all_who_open_it(kafka_server, prefix):
    spec = msgspec.structs.replace(CHANNEL, partitions=8)
    async with started(kafka_server.address, prefix) as log, started(kafka_server.address, prefix) as other:
        assert await asyncio.gather(log.open_topic(spec), other.open_topic(spec)) == [8, 8]
        assert await log.ends("channel") == 8 * (0,)


@pytest.mark.usefixtures("portions")
async def test_a_topic_whose_creator_died_grows_unless_it_was_written(kafka_server, operator, prefix):
    spec = msgspec.structs.replace(CHANNEL, partitions=8)
    operator.create(f"{prefix}channel", KEEPS_ALL, partitions=6)
    async with started(kafka_server.address, prefix) as log:
        await log.open_topic(msgspec.structs.replace(CHANNEL, partitions=6))
        await log.append("channel", 5, [Payload(None, b"x")])
        with pytest.raises(TopicMismatch, match="has 6 partitions, not 8"):
            await log.open_topic(spec)
    operator.create(f"{prefix}2-channel", KEEPS_ALL, partitions=3)
    async with started(kafka_server.address, f"{prefix}2-") as log:
        assert await log.open_topic(spec) == 8


async def test_in_production_one_node_cannot_hold_a_new_topic(kafka_server, prefix):
    async with started(kafka_server.address, prefix, development=False) as log:
        with pytest.raises(TopicMismatch, match=r"replication 3.*development"):
            await log.open_topic(CHANNEL)


async def test_in_production_an_existing_topic_without_replicas_is_refused(kafka_server, operator, prefix):
    operator.create(f"{prefix}channel", {**KEEPS_ALL, "min.insync.replicas": "2"})
    async with started(kafka_server.address, prefix, development=False) as log:
        with pytest.raises(TopicMismatch, match="replication 1"):
            await log.open_topic(CHANNEL)


@pytest.mark.parametrize(
    ("setting", "found"), [("min.insync.replicas", "1"), ("unclean.leader.election.enable", "true")]
)
async def test_in_production_unsafe_topic_settings_are_refused(kafka_server, operator, prefix, setting, found):
    operator.create(f"{prefix}channel", {**KEEPS_ALL, "min.insync.replicas": "2", setting: found})
    async with started(kafka_server.address, prefix, development=False) as log:
        with pytest.raises(TopicMismatch, match=f"{setting}={found}.*kafka-configs.sh"):
            await log.open_topic(CHANNEL)


@pytest.mark.parametrize("unsafe", [{"replication": 2}, {"min_insync": 1}])
async def test_in_production_unsafe_settings_of_our_own_are_refused_at_the_start(kafka_server, unsafe):
    with pytest.raises(TopicMismatch, match="set development=true"):
        await KafkaLog(kafka_server.address, **unsafe).start(timeout_s=WAIT_S)


@pytest.mark.parametrize(
    "setting",
    [
        {"acks": "1"},
        {"enable.idempotence": "false"},
        {"auto.offset.reset": "latest"},
        {"isolation.level": "read_uncommitted"},
        {"bootstrap.servers": "elsewhere:9092"},
        {"message.timeout.ms": "1"},
    ],
)
def test_client_settings_the_protocol_rests_on_are_refused_by_name(setting):
    with pytest.raises(LogError, match=next(iter(setting))):
        KafkaLog("127.0.0.1:1", client_settings={"compression.type": "lz4", **setting})


async def test_a_client_setting_that_does_not_exist_is_refused_by_name(kafka_server):
    log = KafkaLog(kafka_server.address, development=True, client_settings={"no.such.setting": "1"})
    with pytest.raises(LogError, match=r"no\.such\.setting"):
        await log.start(timeout_s=WAIT_S)


async def test_a_kafka_that_is_not_there_is_named(prefix):
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(LogUnavailable, match=address):
        await KafkaLog(address, topic_prefix=prefix, development=True).start(timeout_s=0.5)


# --- what it never skips
async def test_a_tail_from_an_offset_that_was_trimmed_fails_instead_of_skipping(kafka_server, operator, prefix):
    async with started(kafka_server.address, prefix) as log:
        await log.open_topic(CHANNEL)
        await log.append("channel", 0, [Payload(None, b"%d" % i) for i in range(10)])
        operator.trim(f"{prefix}channel", 0, before=6)
        assert await texts_from(log, [6, 0], until="9") == ["6", "7", "8", "9"]
        with pytest.raises(Trimmed, match="partition 0 has no offset 5 any more, it was trimmed up to 6"):
            await texts_from(log, [5, 0], until="9")


async def test_a_tail_from_beyond_the_end_fails_instead_of_waiting(kafka_server, prefix):
    async with started(kafka_server.address, prefix) as log:
        await log.open_topic(CHANNEL)
        await log.append("channel", 1, [Payload(None, b"only")])
        with pytest.raises(LogError, match=r"partition 1 has no offset 7, only 0 to 1.*damaged, or replaced") as raised:
            await texts_from(log, [0, 7], until="never")
        assert not isinstance(raised.value, Trimmed), "no snapshot mends this"


# --- what it bears
@pytest.mark.slow
async def test_a_kafka_that_is_killed_and_restarted_loses_nothing_acknowledged(kafka_server, prefix):
    acknowledged: list[str] = []

    async def write() -> None:
        for i in range(1_000_000):
            try:
                await log.append("channel", 0, [Payload(None, f"{i}".encode())])
            except LogUnavailable:
                continue
            acknowledged.append(f"{i}")

    async with started(kafka_server.address, prefix, request_timeout_s=1.0) as log:
        await log.open_topic(CHANNEL)
        async with aclosing(log.tail("channel", [0, 0])) as tail:
            seen: list[str] = []
            writing = asyncio.ensure_future(write())
            async with asyncio.timeout(WAIT_S):
                while len(seen) < 100:
                    seen += [(e.value or b"").decode() for e in await anext(tail)]
                await answered(lambda: log.ends("channel"))
                kafka_server.kill()
                before = len(acknowledged)
                await asyncio.to_thread(kafka_server.start)
                while len(acknowledged) < before + 100:  # the same producer, or its successor, goes on
                    seen += [(e.value or b"").decode() for e in await anext(tail)]
            assert min(await answered(lambda: log.ends("channel"))) >= 0  # in the leader's new epoch
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            await append_until_taken(log, "end")
            async with asyncio.timeout(WAIT_S):
                while "end" not in seen:
                    seen += [(e.value or b"").decode() for e in await anext(tail)]
        again = up_to_the_end(await texts_from(log, [0, 0], until="end"))
    assert up_to_the_end(seen) == again, "the tail that lived through it missed or doubled something"
    assert set(acknowledged) <= set(again)
    first_seen = list(dict.fromkeys(again))
    assert [text for text in first_seen if text in set(acknowledged)] == acknowledged


def up_to_the_end(texts: list[str]) -> list[str]:
    return texts[: texts.index("end") + 1]


async def test_a_producer_that_broke_for_good_is_replaced_by_the_next_append(kafka_server, prefix):
    async with started(kafka_server.address, prefix) as log:
        await log.open_topic(CHANNEL)
        await log.append("channel", 0, [Payload(None, b"by the first")])
        first = log._writer
        assert first is not None
        first.broken = "as after a fatal error"
        await log.append("channel", 0, [Payload(None, b"by the second")])
        assert log._writer is not first
        assert await texts_from(log, [0, 0], until="by the second") == ["by the first", "by the second"]


async def test_close_without_kafka_does_not_wait_for_pending_answers(kafka_server, prefix):
    log = KafkaLog(kafka_server.address, topic_prefix=prefix, development=True, request_timeout_s=2.0 * WAIT_S)
    await log.start(timeout_s=WAIT_S)
    await log.open_topic(CHANNEL)
    await log.append("channel", 0, [Payload(None, b"before")])
    kafka_server.suspend()
    try:
        append = asyncio.ensure_future(log.append("channel", 0, [Payload(None, b"never acknowledged")]))
        await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):
            await log.close()
            with pytest.raises(LogUnavailable):
                await append
    finally:
        kafka_server.resume()


@pytest.fixture(scope="module")
def proxied_kafka(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[KafkaServer, int]]:
    """A Kafka that sends the clients of its proxy listener back to the proxy's port."""
    port = free_port()
    directory: Path = tmp_path_factory.mktemp("proxied-kafka")
    server = KafkaServer(directory, proxied_at={PROXY: port})
    server.start()
    yield server, port
    server.kill()


@pytest.mark.slow
@pytest.mark.parametrize("how", list(Cut))
async def test_after_an_outage_appends_and_tails_go_on_by_themselves(proxied_kafka, prefix, how):
    server, port = proxied_kafka
    target = f"127.0.0.1:{server.listener_port(PROXY)}"
    async with (
        proxy_to(target, port) as proxy,
        started(proxy.address, prefix, request_timeout_s=1.0) as log,
    ):
        await log.open_topic(CHANNEL)
        async with aclosing(log.tail("channel", [0, 0])) as tail:
            await append_until_taken(log, "before")
            async with asyncio.timeout(WAIT_S):
                assert {e.value for e in await anext(tail)} == {b"before"}

            proxy.cut(how)
            for _ in range(3):
                with pytest.raises(LogUnavailable):
                    await log.append("channel", 0, [Payload(None, b"during")])
            with pytest.raises(LogUnavailable):
                await log.ends("channel")

            proxy.heal()
            await append_until_taken(log, "after")
            found: list[bytes | None] = []
            async with asyncio.timeout(WAIT_S):
                while b"after" not in found:
                    found += [e.value for e in await anext(tail)]
            assert set(found) <= {b"before", b"during", b"after"}
            assert (await answered(lambda: log.ends("channel")))[0] >= 1 + len(found)


@pytest.mark.slow
async def test_an_append_that_gets_no_answer_fails_after_the_request_time_out(proxied_kafka, prefix):
    server, port = proxied_kafka
    target = f"127.0.0.1:{server.listener_port(PROXY)}"
    async with (
        proxy_to(target, port) as proxy,
        started(proxy.address, prefix, request_timeout_s=1.0) as log,
        started(proxy.address, prefix, request_timeout_s=WAIT_S) as patient,
    ):
        await log.open_topic(CHANNEL)
        for each in (log, patient):
            await append_until_taken(each, "before")
        proxy.cut(Cut.BLACKHOLE)
        waiting = asyncio.ensure_future(patient.append("channel", 0, [Payload(None, b"waits longer")]))
        began = asyncio.get_running_loop().time()
        with pytest.raises(LogUnavailable):
            await log.append("channel", 0, [Payload(None, b"lost")])
        assert asyncio.get_running_loop().time() - began > 0.5
        assert not waiting.done(), "each log has its own time-out"
        waiting.cancel()
