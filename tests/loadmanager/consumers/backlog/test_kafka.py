"""The backlog of groups on a real Kafka: with and without commits, deleted records, no answer, no rights."""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from loadmanager.broker.wiring import open_group_offsets
from loadmanager.consumers.backlog.figures import Figure
from loadmanager.consumers.backlog.filtering import FilteredBacklog, Record
from loadmanager.consumers.backlog.positions import Position, Step, resolve
from loadmanager.consumers.backlog.reading import BacklogReader
from loadmanager.consumers.backlog.sampling import Estimate, Limits, Sample
from loadmanager.errors import NotFound, Unavailable
from loadmanager.settings import Settings
from stack.kafka_security import PROTOCOLS, SASL
from stack.servers import HOST, KafkaServer
from statechannel.adapters.kafka.clients import connection_settings
from statechannel.adapters.kafka.group_offsets import GroupOffsets
from statechannel.adapters.kafka.groups import KafkaGroups
from statechannel.errors import LogError
from tests.servers import shared_kafka

pytestmark = pytest.mark.kafka

WAIT_S = 60
NOW_MS = 1_700_000_000_000


@pytest.fixture
def server(pytestconfig: pytest.Config) -> KafkaServer:
    return shared_kafka(pytestconfig)


@pytest.fixture
def world(server: KafkaServer) -> World:
    return World(server.address)


class World:
    """Topics and groups that somebody else made."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.admin = AdminClient({"bootstrap.servers": address, "broker.address.family": "v4"})
        self.offsets = GroupOffsets(connection_settings(address, {}, WAIT_S))
        self._ours = uuid.uuid4().hex[:8]

    def name(self, kind: str) -> str:
        return f"{kind}-{self._ours}"

    def topic(self, kind: str, partitions: int) -> str:
        name = self.name(kind)
        self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result(WAIT_S)
        return name

    def produce(self, topic: str, counts: Mapping[int, int], *, transactional: bool = False) -> None:
        """Records of one second each, the last of a partition stored at NOW_MS - 1,000."""
        settings: dict[str, str] = {"bootstrap.servers": self.address, "broker.address.family": "v4"}
        producer = Producer(settings | ({"transactional.id": self.name("writer")} if transactional else {}))
        if transactional:
            producer.init_transactions(WAIT_S)
            producer.begin_transaction()
        for partition, count in counts.items():
            for number in range(count):
                at_ms = NOW_MS - (count - number) * 1_000
                headers: list[tuple[str, str | bytes | None]] = [("partition", str(partition).encode())]
                producer.produce(topic, b"x", partition=partition, timestamp=at_ms, headers=headers)
        if transactional:
            producer.commit_transaction(WAIT_S)
        assert producer.flush(WAIT_S) == 0

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> str:
        places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        deadline_s = time.monotonic() + WAIT_S
        while True:  # a new Kafka takes a moment to know who keeps a group's offsets
            with suppress(KafkaException):
                done = self.offsets.commit(self.name(group), places, WAIT_S)
                if not any(place.error for place in done):
                    return self.name(group)
            assert time.monotonic() < deadline_s

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        (future,) = self.admin.delete_records([TopicPartition(topic, partition, offset)]).values()
        future.result(WAIT_S)


def reader(world: World) -> BacklogReader:
    return BacklogReader(open_group_offsets(Settings(log=f"kafka://{world.address}")), asyncio.to_thread)


async def test_a_plain_group_has_a_lag_with_its_age_and_nothing_else(world):
    topic = world.topic("orders", 4)
    world.produce(topic, {0: 10, 1: 10, 2: 10})
    group = world.commit("billing", topic, {0: 4, 1: 10, 3: 0})
    known = await reader(world).read(group, ages=10)
    queues = [backlog for _, backlog in known.of_queues(topic, NOW_MS)]
    assert [queue.lag for queue in queues] == [Figure(6, 6.0), Figure(0, 0.0), Figure(10, 10.0), Figure(0, 0.0)]
    assert [queue.uncommitted for queue in queues] == [0, 0, 1, 0]
    found = known.sum(NOW_MS)
    assert (found.lag, found.in_flight, found.available) == (Figure(16, 10.0), None, None)
    assert (found.queues, found.uncommitted, found.unknown, found.undated, found.deleted) == (4, 1, 0, 0, 0)


async def test_group_is_found_that_its_new_server_does_not_list_yet(world, server):
    class TakingOver(KafkaGroups):
        async def groups(self) -> frozenset[str]:
            return frozenset()

    topic = world.topic("orders", 1)
    group = world.commit("billing", topic, {0: 7})
    taken_over = TakingOver(server.address, request_timeout_s=WAIT_S)
    assert await taken_over.committed(group) == ({topic: {0: 7}}, {})
    assert await taken_over.committed(world.name("nobody")) is None


async def test_partitions_are_in_the_racks_of_their_servers(world):
    topic, other = world.topic("orders", 3), world.topic("carts", 1)
    groups = KafkaGroups(world.address)
    async with asyncio.timeout(WAIT_S):  # a server may not know a new topic yet
        while not {topic: 3, other: 1}.items() <= (await groups.queues([topic, other])).items():
            await asyncio.sleep(0.05)
    assert await groups.racks([topic, "nothing"]) == {topic: dict.fromkeys(range(3), "rack-1")}
    assert 0 in (await groups.racks([other]))[other]


async def test_ages_are_read_again_and_again_elsewhere(world):
    """With one consumer, that goes back as well."""
    topic = world.topic("orders", 2)
    world.produce(topic, {0: 10, 1: 10})
    groups = KafkaGroups(world.address)
    for first, second in ((4, 9), (0, 9), (8, 10), (9, 0)):
        found = await groups.stored_ms([(topic, 0, first), (topic, 1, second)])
        ages_s = [None if at_ms is None else (NOW_MS - at_ms) // 1000 for _, at_ms in sorted(found.items())]
        assert ages_s == [10 - first, 10 - second or None]


async def test_a_time_is_the_first_record_stored_then_or_later(world):
    topic = world.topic("orders", 3)
    world.produce(topic, {0: 10, 1: 3})
    offsets = open_group_offsets(Settings(log=f"kafka://{world.address}"))
    queues = {topic: range(3)}
    assert await offsets.since(queues, NOW_MS - 4_500) == {topic: {0: 6, 1: 0}}, "nothing was stored in partition 2"
    assert await offsets.since(queues, NOW_MS) == {}, "nothing was stored since"
    committed = {topic: {0: 9, 1: 1, 2: 0}}
    steps = await resolve(Position.parse("2023-11-14T22:13:16Z"), offsets, queues, committed)
    assert steps == {(topic, 0): Step(9, 6), (topic, 1): Step(1, 0), (topic, 2): Step(0, 0)}


async def test_ages_are_read_only_where_asked(world):
    topic = world.topic("orders", 2)
    world.produce(topic, {0: 10, 1: 20})
    group = world.commit("billing", topic, {0: 0, 1: 0})
    assert (await reader(world).read(group)).sum(NOW_MS).lag == Figure(30, None)
    found = (await reader(world).read(group, ages=1)).sum(NOW_MS)
    assert (found.lag, found.undated) == (Figure(30, 20.0), 1)


@pytest.mark.slow
async def test_the_ages_of_more_queues_than_are_read_at_once(world):
    topic = world.topic("many", 130)
    world.produce(topic, {partition: 1 + partition % 3 for partition in range(130)})
    group = world.commit("billing", topic, dict.fromkeys(range(130), 0))
    known = await reader(world).read(group, ages=130)
    ages = [backlog.lag and backlog.lag.latency_s for _, backlog in known.of_queues(topic, NOW_MS)]
    assert ages == [1.0 + partition % 3 for partition in range(130)]


async def test_deleted_records_are_no_lag_and_the_age_is_of_what_is_left(world):
    topic = world.topic("orders", 1)
    world.produce(topic, {0: 10})
    group = world.commit("billing", topic, {0: 3})
    world.delete_before(topic, 0, 8)
    found = (await reader(world).read(group, ages=1)).sum(NOW_MS)
    assert (found.lag, found.deleted) == (Figure(2, 2.0), 5)


async def test_an_empty_topic_has_no_lag(world):
    topic = world.topic("empty", 2)
    group = world.commit("billing", topic, {0: 0})
    found = (await reader(world).read(group, ages=5)).sum(NOW_MS)
    assert (found.lag, found.queues, found.uncommitted) == (Figure(0, 0.0), 2, 1)


async def test_behind_the_last_marker_of_a_transaction_nothing_is_old(world):
    topic = world.topic("orders", 1)
    world.produce(topic, {0: 3}, transactional=True)
    group = world.commit("billing", topic, {0: 3})
    groups = KafkaGroups(world.address)
    async with asyncio.timeout(WAIT_S):
        while await groups.ends({topic: [0]}) != {topic: {0: 4}}:  # Kafka answers a commit before it writes the marker
            await asyncio.sleep(0)
    assert (await reader(world).read(group, ages=1)).sum(NOW_MS).lag == Figure(1, 0.0)


async def test_a_filter_is_estimated_from_records_of_all_partitions(world):
    topic = world.topic("orders", 3)
    world.produce(topic, {0: 40, 1: 10, 2: 50})
    group = world.commit("billing", topic, {0: 10, 1: 10, 2: 0})
    groups = open_group_offsets(Settings(log=f"kafka://{world.address}"))
    known = await BacklogReader(groups, asyncio.to_thread).read(group)
    filtered = FilteredBacklog(groups, asyncio.to_thread)

    def in_first(record: Record) -> bool:
        return record.headers["partition"] == b"0" and record.value == b"x"

    found = await filtered.estimate(known, topic, in_first)
    assert found == Estimate(30, 30, 30, Sample(80, 30), exact=True)
    found = await filtered.estimate(known, topic, in_first, limits=Limits(scanned=40, matched=100))
    assert (found.sample.scanned, found.exact) == (40, False)
    assert found.low <= 30 <= found.high


# --- groups without commits, and what is not there
async def test_a_group_without_commits_has_all_before_it(world):
    topic = world.topic("orders", 2)
    world.produce(topic, {0: 5})
    async with member(world, "silent", topic) as group:
        found = (await reader(world).read(group, [topic], ages=1)).sum(NOW_MS)
        assert (found.lag, found.available, found.uncommitted) == (Figure(5, 5.0), Figure(5, 5.0), 2)
        assert (await reader(world).read(group)).topics == []


async def test_an_unknown_group_is_not_found_but_a_topic_waits_for_it(world):
    """So a scaler starts the first consumer."""
    topic = world.topic("orders", 2)
    world.produce(topic, {0: 5})
    with pytest.raises(NotFound, match="no consumer group 'nobody'"):
        await reader(world).read("nobody")
    found = (await reader(world).read("nobody", [topic])).sum(NOW_MS)
    assert (found.lag, found.uncommitted) == (Figure(5, None), 2)


async def test_a_topic_that_does_not_exist_is_not_found_and_not_made(world):
    topic = world.topic("orders", 1)
    group = world.commit("billing", topic, {0: 0})
    with pytest.raises(NotFound, match="no topic 'no-such-topic'"):
        await reader(world).read(group, [topic, "no-such-topic"])
    assert "no-such-topic" not in world.admin.list_topics(timeout=WAIT_S).topics


async def test_partitions_that_are_not_there_have_no_offsets(world):
    topic = world.topic("orders", 1)
    groups = KafkaGroups(world.address)
    assert await groups.ends({topic: [0, 7]}) == {topic: {0: 0}}


# --- no answer, no rights
async def test_a_kafka_that_does_not_answer_is_unavailable_and_the_loop_goes_on(world, server):
    topic = world.topic("orders", 1)
    group = world.commit("billing", topic, {0: 0})
    groups = KafkaGroups(server.address, request_timeout_s=1.0)
    impatient = BacklogReader(groups, asyncio.to_thread)
    await impatient.read(group)
    server.suspend()
    try:
        turns = asyncio.create_task(count_turns())
        for ask in (impatient.read(group), told(groups.ends({topic: [0]})), told(groups.queues([topic]))):
            with pytest.raises(Unavailable, match="not available"):
                await ask
        assert await groups.stored_ms([(topic, 0, 0)]) == {}, "left out"
        turns.cancel()
        assert count_turns.turns > 100, "nothing blocked the loop"
    finally:
        server.resume()
    await until(lambda: impatient.read(group))


async def test_an_address_where_nobody_listens_is_unavailable():
    nobody = BacklogReader(KafkaGroups(f"{HOST}:1", request_timeout_s=1.0), asyncio.to_thread)
    with pytest.raises(Unavailable, match="check its address"):
        await nobody.read("billing")


@pytest.mark.slow
async def test_a_group_that_this_user_may_not_see_is_not_found_and_says_so(guarded: KafkaServer):
    settings = {"security.protocol": PROTOCOLS[SASL], "sasl.mechanism": "PLAIN", "sasl.password": "secret"}
    address = f"{HOST}:{guarded.listener_port(SASL)}"
    mine = KafkaGroups(address, settings | {"sasl.username": "loadmanager"}, request_timeout_s=WAIT_S)
    assert await mine.committed("billing") is None
    stranger = KafkaGroups(address, settings | {"sasl.username": "stranger"}, request_timeout_s=WAIT_S)
    with pytest.raises(NotFound, match="may describe it"):
        await BacklogReader(stranger, asyncio.to_thread).read("billing")


@pytest.fixture
def guarded(tmp_path: Path) -> Generator[KafkaServer]:
    users = {"loadmanager": "secret", "stranger": "secret"}
    server = KafkaServer(tmp_path, users=users, powerless={"stranger"})
    server.start()
    yield server
    server.kill()


# --- waiting
@asynccontextmanager
async def member(world: World, group: str, topic: str) -> AsyncGenerator[str]:
    """A consumer that has joined the group, and commits nothing."""
    settings = {"bootstrap.servers": world.address, "broker.address.family": "v4", "group.id": world.name(group)}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    consumer.subscribe([topic])
    try:
        async with asyncio.timeout(WAIT_S):
            while not consumer.assignment():
                await asyncio.to_thread(consumer.poll, 0.1)
        yield world.name(group)
    finally:
        await asyncio.to_thread(consumer.close)


async def count_turns() -> None:
    count_turns.turns = 0
    while True:
        count_turns.turns += 1
        await asyncio.sleep(0.001)


async def told(asking) -> None:
    try:
        await asking
    except LogError as error:
        raise Unavailable(str(error)) from error


async def until(ask: Callable) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            await ask()
        except Unavailable:
            assert time.monotonic() < deadline_s
        else:
            return
