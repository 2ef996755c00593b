"""`KafkaLog` and a Kafka that names no server of its own for some moments: the clients lose all that they knew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress

import pytest

from stack.servers import KafkaServer, free_port
from statechannel.adapters.kafka.log import KafkaLog
from statechannel.adapters.kafka.reader import Tail
from statechannel.adapters.kafka.trouble import STATISTICS_S
from statechannel.errors import LogUnavailable
from statechannel.ports import LogEntry, TopicSpec
from tests.faults import Cut
from tests.integration.fenced import FencedKafka
from tests.integration.test_kafka_log import PROXY, WAIT_S, append_until_taken, started
from tests.servers import topic_prefix

pytestmark = pytest.mark.kafka

CLIENTS = 15
ROUNDS = 20
MOST_FAILED = 6
"""Requests of two seconds each."""
CHANNEL = TopicSpec("channel", partitions=1)


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[str, int]]:
    """Where a Kafka listens, and the port to which it sends its clients."""
    port = free_port()
    server = KafkaServer(tmp_path_factory.mktemp("fenced-kafka"), proxied_at={PROXY: port})
    server.start()
    yield f"127.0.0.1:{server.listener_port(PROXY)}", port
    server.kill()


async def offsets_until(tail: Tail, text: bytes) -> list[int]:
    found: list[LogEntry] = []
    async with asyncio.timeout(WAIT_S):
        while text not in [entry.value for entry in found]:
            found += await anext(tail)
    return [entry.offset for entry in found]


@asynccontextmanager
async def behind(proxied: tuple[str, int]) -> AsyncGenerator[tuple[FencedKafka, KafkaLog]]:
    """A proxy, and a log behind it with a channel that has one entry."""
    proxy = FencedKafka(*proxied)
    await proxy.start()
    try:
        async with started(proxy.address, topic_prefix("fenced"), request_timeout_s=2.0) as log:
            await log.open_topic(CHANNEL)
            await append_until_taken(log, "before")
            yield proxy, log
    finally:
        await proxy.aclose()


async def restarted(proxy: FencedKafka, clients: int) -> None:
    """Break all connections; then answer so many requests with no server."""
    proxy.cut(Cut.RESET)
    proxy.fenced, proxy.answers = True, 0
    proxy.heal()
    async with asyncio.timeout(WAIT_S):
        while proxy.answers < clients:
            await asyncio.sleep(0.05)


async def until_replaced(proxy: FencedKafka, logged: pytest.LogCaptureFixture) -> None:
    """Break connections and name no server, again and again, until a tail has a new consumer."""
    for _ in range(ROUNDS):
        await restarted(proxy, 1)
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * STATISTICS_S):
                while "replacing the Kafka consumer of" not in logged.text:
                    await asyncio.sleep(0.05)
                return
    pytest.fail("no consumer lost its servers: a librdkafka that keeps them needs no replacement")


@pytest.mark.slow
async def test_tails_and_appends_go_on_with_new_clients(proxied, caplog):
    """Several clients of each kind, since not each loses its servers."""
    async with AsyncExitStack() as stack:
        proxy, log = await stack.enter_async_context(behind(proxied))
        prefix = topic_prefix("fenced-more")
        writers = [
            await stack.enter_async_context(started(proxy.address, prefix, request_timeout_s=2.0))
            for _ in range(CLIENTS)
        ]
        for writer in writers:
            await writer.open_topic(CHANNEL)
            await append_until_taken(writer, "before")
        tails = [await stack.enter_async_context(aclosing(log.tail("channel", [0]))) for _ in range(CLIENTS)]
        read = [await offsets_until(tail, b"before") for tail in tails]
        sending = asyncio.gather(*(append_until_taken(writer, "during") for writer in writers))
        await until_replaced(proxy, caplog)
        proxy.fenced = False
        await sending
        for writer in (log, *writers):
            await append_until_taken(writer, "after")
        for tail, before in zip(tails, read, strict=True):
            offsets = before + await offsets_until(tail, b"after")
            assert offsets == list(range(len(offsets))), "it goes on where it was"


@pytest.mark.slow
async def test_producer_that_says_that_it_is_stranded_gives_way(proxied):
    async with behind(proxied) as (_, log):
        first = log._writer
        assert first is not None
        async with asyncio.timeout(WAIT_S):
            while not first.broken:
                first._trouble.count('{"brokers": {}}')  # again and again, since its own statistics say otherwise
                await asyncio.sleep(0.01)
        await append_until_taken(log, "after")
        assert log._writer is not first


@pytest.mark.slow
async def test_requests_of_the_admin_client_are_answered_again(proxied):
    async with behind(proxied) as (proxy, log):
        assert (await log.ends("channel"))[0] >= 1
        asking = asyncio.ensure_future(restarted(proxy, 1))
        failed = 0
        for _ in range(3):
            with suppress(LogUnavailable):
                await log.ends("channel")
        await asking
        proxy.fenced = False
        while failed < MOST_FAILED:
            try:
                assert (await log.ends("channel"))[0] >= 1
            except LogUnavailable:
                failed += 1
            else:
                break
        assert failed < MOST_FAILED, "the old client would have answered after half a minute"
