"""A tail of a topic, against the simulated cluster that Kafka's own client brings: no entry twice, none left out."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import Producer

from statechannel.adapters.kafka.clients import connection_settings, consumer_settings
from statechannel.adapters.kafka.reader import Tail
from statechannel.errors import LogError

TOPIC = "orders"
WAIT_S = 60


class Cluster:
    """One simulated server, which lives as long as its client, and what was written to partition 0 of TOPIC."""

    def __init__(self) -> None:
        settings = {"bootstrap.servers": "none:1", "test.mock.num.brokers": 1, "log_level": 0}
        self._producer = Producer(settings)
        servers = self._producer.list_topics(TOPIC, timeout=WAIT_S).brokers.values()
        self.address = ",".join(f"{server.host}:{server.port}" for server in servers)

    def write(self, value: bytes) -> None:
        self._producer.produce(TOPIC, value, partition=0)
        assert self._producer.flush(WAIT_S) == 0

    def tail(self, start: int) -> Tail:
        """One whose client counts its servers only in `strand`."""
        settings = consumer_settings(connection_settings(self.address, {}, 30.0))
        return Tail({**settings, "statistics.interval.ms": 0}, TOPIC, {0: start})


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def next_of(tail: Tail) -> list[tuple[int, bytes | None]]:
    async with asyncio.timeout(WAIT_S):
        return [(entry.offset, entry.value) for entry in await anext(tail)]


async def strand(tail: Tail) -> None:
    """Tell its client that it knows no server, and wait until another client has its place."""
    tail.trouble.count('{"brokers": {}}')
    async with asyncio.timeout(WAIT_S):
        while tail.trouble.stranded:
            await asyncio.sleep(0.01)


async def ended(tail: Tail) -> None:
    await tail.aclose()
    await asyncio.to_thread(tail.join, WAIT_S)


async def test_a_replaced_reader_that_had_read_one_entry_goes_on_with_the_second(cluster: Cluster):
    tail = cluster.tail(0)
    cluster.write(b"first")
    assert await next_of(tail) == [(0, b"first")]
    await strand(tail)
    cluster.write(b"second")
    assert await next_of(tail) == [(1, b"second")]
    await ended(tail)


async def test_a_replaced_reader_that_had_read_nothing_begins_where_it_was_to_begin(cluster: Cluster):
    cluster.write(b"first")
    tail = cluster.tail(1)
    await strand(tail)
    cluster.write(b"second")
    assert await next_of(tail) == [(1, b"second")]
    await ended(tail)


async def test_an_offset_that_is_not_there_is_an_error_and_never_a_jump(cluster: Cluster):
    cluster.write(b"first")
    tail = cluster.tail(7)
    with pytest.raises(LogError, match=r"orders partition 0 has no offset 7, only 0 to 1 .*the log was damaged"):
        await next_of(tail)
    await ended(tail)
