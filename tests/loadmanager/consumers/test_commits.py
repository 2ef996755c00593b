"""Commits are ordered: of a member by its sequence, of a coordinator by its writer, of two by a fence in Kafka."""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import asyncio
import shutil
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import ClassVar, cast

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from loadmanager.client.http_router import HttpRouter
from loadmanager.client.redirection import NotServing
from loadmanager.client.router import Router
from loadmanager.consumer.assignment import Place
from loadmanager.consumer.session import GroupClient
from loadmanager.consumers.coordinator.messages import Why
from loadmanager.consumers.coordinator.records import Partition
from stack.servers import KafkaServer, free_port
from statechannel.adapters.kafka import group_commits
from statechannel.adapters.kafka.group_commits import WRITERS, GroupCommits, GroupInUse, place_of
from statechannel.adapters.kafka.transactions import SEND_S, Transactions
from statechannel.errors import LogUnavailable, TopicUnknown, WriterFenced
from tests.faults import Cut, TcpProxy
from tests.loadmanager.consumers.test_reset import GROUP, World, world
from tests.servers import shared_kafka

__all__ = ["world"]

P: Partition = ("orders", 0)
LONG_S = 60.0


async def test_a_commit_that_comes_after_a_later_one_is_refused(world: World) -> None:
    await world.joined("a")
    member = world.members["a"]

    async def commit(offset: int, sequence: int) -> Why | None:
        refused = await world.coordinator.commit(
            GROUP, "a", member.epoch, member.revision, {P: offset}, None, sequence, (await world.beat("a")).coordinator
        )
        return refused[P].why if refused else None

    assert await commit(60, 2) is None
    assert await commit(60, 2) is None, "the same one again, as after a broken connection"
    assert await commit(50, 1) is Why.LATE
    assert world.topics.committed[P] == 60
    assert await commit(70, 3) is None


async def test_a_commit_to_a_former_coordinator_is_refused_and_sent_again_by_who_waits_for_it(world: World) -> None:
    await world.joined("a")
    member = world.members["a"]
    async with Router(world.cluster.admin_urls) as router:
        client = GroupClient(HttpRouter(router, protocol="groups"), GROUP)
        await client.heartbeat("a", member.beat(0), 0, LONG_S)
        assert await client.commit("a", member.epoch, member.revision, {P: Place(50, 50)}, LONG_S) == {}
        former = (await world.beat("a")).coordinator
        here = world.cluster.owner(GROUP)
        await world.cluster.transfer(GROUP, next(each for each in world.cluster.brokers if each != here))
        assert await client.commit("a", member.epoch, member.revision, {P: Place(60, 60)}, LONG_S) == {}
    late = await world.coordinator.commit(GROUP, "a", member.epoch, member.revision, {P: 55}, None, 1, former)
    assert late[P].why is Why.LATE
    assert world.topics.committed[P] == 60


async def test_who_takes_over_has_a_former_coordinator_fenced_unless_all_its_commits_have_ended(world: World) -> None:
    await world.joined("a")
    others = [each for each in world.cluster.brokers if each != world.cluster.owner(GROUP)]
    await world.cluster.transfer(GROUP, others[0])
    assert world.topics.fenced == set()
    await world.joined("a")
    world.topics.open.clear()
    stuck = asyncio.create_task(world.commit("a", {P: 60}))
    async with asyncio.timeout(LONG_S):
        while world.topics.begun < 1:
            await asyncio.sleep(0.01)
        here = world.cluster.owner(GROUP)
        await world.cluster.transfer(GROUP, next(each for each in world.cluster.brokers if each != here))
    with pytest.raises(NotServing, match="moved"):
        await stuck
    assert world.topics.fenced == {"one"}
    assert world.topics.changed == {}


# --- the clients of one coordinator


async def test_bundles_that_are_taken_over_together_share_their_fences(monkeypatch: pytest.MonkeyPatch) -> None:
    fenced, under_way, lock = Counter[str](), Counter[str](), threading.Lock()
    most = 0
    over = threading.Event()

    def fence(producer: object, writer: str) -> None:
        nonlocal most
        del producer
        with lock:
            under_way[writer] += 1
            fenced[writer] += 1
            most = max(most, under_way.total())
        over.wait(LONG_S)
        with lock:
            under_way[writer] -= 1

    monkeypatch.setattr(group_commits, "_fence", fence)
    monkeypatch.setattr(group_commits, "FENCED_KEPT", 10)
    names = [f"writer-{each}" for each in range(50)]
    async with commits_to("127.0.0.1:9") as (commits,):
        bundles = [asyncio.create_task(commits.fence(names)) for _ in range(10)]
        async with asyncio.timeout(LONG_S):
            while most < group_commits.FENCES_AT_ONCE:
                await asyncio.sleep(0.01)
        bundles[0].cancel()
        over.set()
        await asyncio.gather(*bundles[1:])
        assert most == group_commits.FENCES_AT_ONCE
        assert fenced == dict.fromkeys(names, 1), "those of a bundle that gave up count for the others"
        await commits.fence([*commits._fenced])
        assert fenced.total() == len(names), "what was fenced stays so"
        assert len(commits._fenced) == 10


async def test_a_fence_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def fence(producer: object, writer: str) -> None:
        del producer
        tried.append(writer)
        if len(tried) == 1:
            raise LogUnavailable("Kafka is away")

    monkeypatch.setattr(group_commits, "_fence", fence)
    async with commits_to("127.0.0.1:9") as (commits,):
        with pytest.raises(LogUnavailable, match="Kafka is away"):
            await commits.fence(["one"])
        await commits.fence(["one"])
        assert tried == ["one", "one"]


class Producer:
    """Notes what it does under its name; its first commit fails while another job waits for the thread."""

    done: ClassVar[list[tuple[str, str]]] = []

    def __init__(self, name: str) -> None:
        self._name = name

    def take_over(self) -> None:
        self.done.append(("taken over", self._name))

    def commit_offsets(self, offsets: object) -> dict[str, KafkaError]:
        del offsets
        self.done.append(("committed", self._name))
        if [what for what, _ in self.done].count("committed") == 1:
            raise WriterFenced("a successor fenced it")
        return {}

    def drop(self) -> None: ...

    def leave(self) -> None: ...


async def test_a_name_that_failed_makes_no_other_commit_whatever_waits_for_the_thread() -> None:
    Producer.done.clear()
    writer = group_commits._Writer(cast("Callable[[str], Transactions]", Producer), "groups-", LONG_S)
    first, offsets, at_once = writer.name, [TopicPartition("orders", 0, 1)], threading.Event()
    writer._thread.submit(at_once.wait, LONG_S)
    writer._spent.append("former")
    failing = asyncio.create_task(writer.commit("billing", offsets))
    while not writer._sent:
        await asyncio.sleep(0)
    reading = asyncio.create_task(writer.until_ended("shipping"))
    await asyncio.sleep(0)
    at_once.set()
    with pytest.raises(WriterFenced):
        await failing
    await reading
    await writer.commit("billing", offsets)
    writer.close()
    assert Producer.done == [
        ("taken over", "former"), ("taken over", first), ("committed", first),
        ("taken over", first), ("taken over", writer.name), ("committed", writer.name),
    ]  # fmt: skip
    assert writer.name != first


# --- on Kafka


@pytest.fixture
def place(pytestconfig: pytest.Config) -> Partition:
    return made(shared_kafka(pytestconfig).address)


def made(address: str) -> Partition:
    """A partition of a new topic."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": address, "broker.address.family": "v4"})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(LONG_S)
    return topic, 0


@asynccontextmanager
async def commits_to(*addresses: str, timeout_s: float = LONG_S) -> AsyncGenerator[list[GroupCommits]]:
    """One for each address, each of which has committed before."""
    found = [GroupCommits(each, request_timeout_s=timeout_s) for each in addresses]
    try:
        yield found
    finally:
        for each in found:
            await each.close()


async def stored(commits: GroupCommits, group: str, place: Partition) -> int:
    return (await commits.committed(group, [place]))[place][0]


async def sent(commits: GroupCommits, group: str, place: Partition, offset: int) -> None:
    """As a coordinator does that still has the group."""
    while True:
        try:
            return await commits.commit(group, {place: offset}, {})
        except WriterFenced:
            await asyncio.sleep(0.1)


@pytest.mark.kafka
async def test_kafka_refuses_a_writer_that_was_fenced(pytestconfig: pytest.Config, place: Partition) -> None:
    group, kafka = uuid.uuid4().hex, shared_kafka(pytestconfig).address
    async with commits_to(kafka, kafka) as (former, later):
        await former.commit(group, {place: 50}, {})
        writer = former.writer(group)
        await later.fence([writer])
        await later.commit(group, {place: 100}, {})
        with pytest.raises(WriterFenced):
            await former.commit(group, {place: 60}, {})
        assert await stored(later, group, place) == 100
        assert former.writer(group) != writer
        await former.commit(group, {place: 110}, {})
        assert await stored(later, group, place) == 110


@pytest.mark.kafka
@pytest.mark.slow
async def test_offsets_of_a_group_are_deleted_unless_it_has_members_of_kafkas_own(
    pytestconfig: pytest.Config, place: Partition
) -> None:
    """Deleted at once after they were acknowledged, when Kafka may not have ended the transaction yet."""
    kafka, good, used = shared_kafka(pytestconfig).address, uuid.uuid4().hex, uuid.uuid4().hex
    consumer = Consumer({"bootstrap.servers": kafka, "broker.address.family": "v4", "group.id": used})
    try:
        async with commits_to(kafka) as (commits,):
            assert not await commits.delete(good)
            for offset in (50, 60):
                await commits.commit(used, {place: offset}, {})
                await commits.commit(good, {place: offset}, {})
                assert await commits.delete(good)
                assert await commits.committed(good, [place]) == {}
            assert await stored(commits, used, place) == 60
            consumer.subscribe([place[0]])
            async with asyncio.timeout(LONG_S):
                while not consumer.assignment():
                    await asyncio.to_thread(consumer.poll, 0.1)
            with pytest.raises(GroupInUse, match="stop them"):
                await commits.delete(used)
            assert await stored(commits, used, place) == 60
    finally:
        consumer.close()


@pytest.mark.slow
async def test_the_process_that_deletes_offsets_may_die_or_hear_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with commits_to(f"127.0.0.1:{free_port()}", timeout_s=2.0) as (commits,):
        with pytest.raises(LogUnavailable, match="did not delete the offsets of billing within 2 s"):
            await commits.delete("billing")
        monkeypatch.setitem(cast(dict[str, object], commits._connection), "no.such.setting", "1")
        with pytest.raises(LogUnavailable, match="died"):
            await commits.delete("billing")


@pytest.mark.kafka
async def test_a_group_that_kafka_refuses_holds_up_no_other(pytestconfig: pytest.Config, place: Partition) -> None:
    """Of a transaction of three groups, one has a consumer of Kafka's own protocol, one names no topic that exists."""
    kafka, good, used, lost = shared_kafka(pytestconfig).address, *(uuid.uuid4().hex for _ in range(3))
    settings = {"bootstrap.servers": kafka, "broker.address.family": "v4", "group.id": used}
    consumer = Consumer(settings)
    consumer.subscribe([place[0]])
    try:
        async with asyncio.timeout(LONG_S):
            while not consumer.assignment():
                await asyncio.to_thread(consumer.poll, 0.1)
        async with commits_to(kafka) as (commits,):
            await commits.commit(good, {place: 1}, {})
            results = await asyncio.gather(
                commits.commit(used, {place: 7}, {}),
                commits.commit(lost, {("nothing", 0): 7}, {}),
                commits.commit(good, {place: 7}, {place: 9}),
                return_exceptions=True,
            )
            assert [type(each) for each in results] == [GroupInUse, TopicUnknown, type(None)]
            assert await commits.committed(good, [place]) == {place: (7, 9)}
            assert await commits.committed(used, [place]) == {}
    finally:
        consumer.close()


@pytest.mark.slow
@pytest.mark.kafka
async def test_a_topic_that_is_gone_holds_others_up_once(pytestconfig: pytest.Config, place: Partition) -> None:
    """Both groups have one writer. The second time Kafka is asked for the topic before there is a transaction; and the
    topic may come back."""
    kafka = shared_kafka(pytestconfig).address
    good, lost = beside(uuid.uuid4().hex), beside(uuid.uuid4().hex)
    topic = f"late-{uuid.uuid4().hex[:8]}"
    async with commits_to(kafka) as (commits,):
        await commits.commit(good, {place: 1}, {})
        with pytest.raises(TopicUnknown):
            await commits.commit(lost, {(topic, 0): 7}, {})
        begun_s = time.monotonic()
        results = await asyncio.gather(
            commits.commit(lost, {(topic, 0): 7}, {}), commits.commit(good, {place: 2}, {}), return_exceptions=True
        )
        assert [type(each) for each in results] == [TopicUnknown, type(None)]
        assert time.monotonic() - begun_s < SEND_S
        admin = AdminClient({"bootstrap.servers": kafka, "broker.address.family": "v4"})
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(LONG_S)
        while True:
            try:
                await commits.commit(lost, {(topic, 0): 7}, {})
                break
            except TopicUnknown:
                await asyncio.sleep(0.1)
        assert await stored(commits, lost, (topic, 0)) == 7


def beside(text: str) -> str:
    """A name of a group whose offsets are in the first partition."""
    return next(name for name in (f"{text}-{each}" for each in range(10_000)) if not place_of(name))


@pytest.mark.parametrize(
    ("name", "place"), [("", 0), ("abc", 96354 % 50), ("polygenelubricants", 0), ("ä😀", None), ("billing" * 9, None)]
)
def test_a_group_is_in_the_partition_that_kafka_says(name: str, place: int | None) -> None:
    """Java: the hash of "polygenelubricants" is the least number, which has no absolute value."""
    assert place_of(name) in (range(WRITERS) if place is None else (place,))


class TwoDisks(KafkaServer):
    """A Kafka with two disks and all partitions that a usual one has."""

    def disks(self) -> list[Path]:
        return [self.data_dir / "one", self.data_dir / "two"]

    def _settings(self) -> dict[str, str]:
        return {
            **super()._settings(), "log.dirs": ",".join(map(str, self.disks())),
            "metadata.log.dir": str(self.disks()[0]), "offsets.topic.num.partitions": str(WRITERS),
        }  # fmt: skip


@pytest.mark.slow
@pytest.mark.kafka
async def test_a_partition_of_offsets_without_a_leader_holds_no_other_group_up(tmp_path: Path) -> None:
    """The disk with one partition of `__consumer_offsets` is lost; its groups' commits wait, and no others."""
    kafka = TwoDisks(tmp_path)
    kafka.start()
    try:
        place, groups = made(kafka.address), [f"group-{each}" for each in range(20)]
        async with commits_to(kafka.address) as (commits,):
            for group in groups:
                await sent(commits, group, place, 1)
        await asyncio.to_thread(kafka.stop)
        one, two = kafka.disks()
        offsets = {each.name for each in two.glob("__consumer_offsets-*/")}
        victim = next(each for each in groups if f"__consumer_offsets-{place_of(each)}" in offsets)
        for each in [*two.glob("*-*/")]:
            if each.name != f"__consumer_offsets-{place_of(victim)}":
                each.rename(one / each.name)
        shutil.rmtree(two)
        two.touch()
        await asyncio.to_thread(kafka.start)
        others = [each for each in groups if place_of(each) != place_of(victim)]
        async with commits_to(kafka.address) as (commits,):

            async def waited_s(at: int) -> float:
                """How long the last of them waited for its commit."""
                begun_s = time.monotonic()
                await asyncio.gather(*(sent(commits, group, place, at) for group in others))
                return time.monotonic() - begun_s

            await waited_s(2)
            stuck = asyncio.create_task(commits.commit(victim, {place: 2}, {}))
            assert median([await waited_s(at) for at in range(3, 12)]) < SEND_S
            assert not stuck.done()
            stuck.cancel()
    finally:
        await asyncio.to_thread(kafka.kill)


@pytest.mark.slow
@pytest.mark.kafka
async def test_nothing_that_is_late_overtakes_what_came_after(tmp_path: Path) -> None:
    """Once it is in the network while its sender is fenced, once in a Kafka that stands still until it was given up."""
    port = free_port()
    kafka = KafkaServer(tmp_path, proxied_at={"PROXIED": port})
    kafka.start()
    proxy = TcpProxy(f"127.0.0.1:{kafka.listener_port('PROXIED')}", port)
    await proxy.start()
    place, group = made(kafka.address), "billing"
    try:
        async with commits_to(proxy.address, kafka.address) as (former, later):
            await former.commit(group, {place: 50}, {})
            proxy.cut(Cut.BLACKHOLE)
            late = asyncio.create_task(former.commit(group, {place: 60}, {}))
            await later.fence([former.writer(group)])
            await later.commit(group, {place: 100}, {})
            proxy.heal()
            with pytest.raises(WriterFenced):
                await late
            assert await stored(later, group, place) == 100
            writer = former.writer(group)
            await former.commit(group, {place: 110}, {})
            proxy.cut(Cut.BLACKHOLE)
            late = asyncio.create_task(former.commit(group, {place: 120}, {}))
            await later.fence([writer])
            await later.commit(group, {place: 200}, {})
            with pytest.raises(WriterFenced):
                await late  # it has failed by itself, and nobody has told it of the fence
            assert former.writer(group) != writer
            proxy.heal()
            assert await stored(former, group, place) == 200
        async with commits_to(kafka.address, kafka.address) as (patient, other):
            await patient.commit(group, {place: 110}, {})
            kafka.suspend()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2.0):
                    await patient.commit(group, {place: 120}, {})
            after = asyncio.create_task(sent(patient, group, place, 130))
            kafka.resume()
            await after
            assert await stored(patient, group, place) == 130
            writer = patient.writer(group)
            assert await stored(other, group, place) == 130
            await sent(patient, group, place, 140)
            assert patient.writer(group) == writer, "it failed once"
    finally:
        kafka.resume()
        await proxy.aclose()
        await asyncio.to_thread(kafka.kill)
