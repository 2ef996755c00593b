"""Coordinators in real brokers: members go on wherever the group's bundle is. Topics are told, Kafka is not here."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from loadmanager import Bundle, Claim, Token
from loadmanager.client.redirection import Moved, NotServing
from loadmanager.consumer.assignment import Membership
from loadmanager.consumers.coordinator import hosted, service
from loadmanager.consumers.coordinator.group import LARGE, Group
from loadmanager.consumers.coordinator.hosted import has_news
from loadmanager.consumers.coordinator.messages import Answer, Beat, Refusal, Why
from loadmanager.consumers.coordinator.records import Mode, Partition, Settings, Subscription
from loadmanager.consumers.coordinator.service import Coordinator
from loadmanager.consumers.coordinator.targets import Situation, Targets
from loadmanager.errors import NotFound, Unavailable
from loadmanager.testing import NAMESPACE, EmbeddedCluster, embedded_cluster
from statechannel.law.bundle import even_boundaries, tile
from tests.loadmanager.consumers.running import KnownTopics, running

GROUP = f"persistent://{NAMESPACE}/billing"
BROKERS = 3


class World:
    """A cluster of coordinators, and members that ask whoever owns the group."""

    def __init__(self, cluster: EmbeddedCluster[Coordinator], topics: KnownTopics) -> None:
        self.cluster = cluster
        self.topics = topics
        self.members: dict[str, Membership] = {}

    @property
    def coordinator(self) -> Coordinator:
        owner = self.cluster.owner(GROUP)
        assert owner is not None
        return self.cluster.host(owner)

    async def beat(self, name: str, wait_s: float = 0.0, session_timeout_ms: int = 10_000) -> Answer:
        """A heartbeat of a member that does at once what it is told."""
        subscription = Subscription(("orders",), session_timeout_ms)
        member = self.members.setdefault(name, Membership(name, subscription))
        beat = member.beat(time.monotonic() * 1000)
        answer = await self.asked(name, beat, wait_s)
        assert isinstance(answer, Answer), answer
        change = member.answered(beat.sequence, answer)
        assert not change.lost
        member.given_up(change.revoked)
        return answer

    async def asked(self, name: str, beat: Beat, wait_s: float) -> Answer | Refusal:
        async with asyncio.timeout(20):
            while True:
                owner = self.cluster.owner(GROUP)
                try:
                    if owner is not None:
                        return await self.cluster.host(owner).heartbeat(GROUP, name, beat, wait_s)
                except (Moved, NotServing, Unavailable):
                    pass
                await asyncio.sleep(0.02)

    def reads(self, name: str) -> list[int]:
        return sorted(number for _, number in self.members[name].reads(time.monotonic() * 1000))

    async def balanced(self, *names: str, partitions: int = 6) -> None:
        """Heartbeats until everybody reads their part."""
        async with asyncio.timeout(20):
            while sorted(each for name in names for each in self.reads(name)) != list(range(partitions)):
                for name in names:
                    await self.beat(name, wait_s=0.02)


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World]:
    topics = KnownTopics()
    async with AsyncExitStack() as stack:
        coordinators = [await running(stack, tmp_path, topics) for _ in range(BROKERS)]
        cluster = await stack.enter_async_context(embedded_cluster(coordinators.pop, brokers=BROKERS, bundles=4))
        yield World(cluster, topics)


async def join_both(world: World) -> dict[str, list[int]]:
    await world.beat("a")
    await world.beat("b")
    await world.balanced("a", "b")
    assert [len(world.reads(name)) for name in "ab"] == [3, 3]
    return {name: world.reads(name) for name in "ab"}


async def test_members_share_a_topic(world: World) -> None:
    await join_both(world)
    found = await world.coordinator.describe(GROUP)
    assert found.members.keys() == {"a", "b"}
    assert len(found.holders) == 6
    assert found.targets == {}
    assert list(world.coordinator.groups()) == [GROUP]


async def test_a_move_of_the_coordinator_moves_no_partition(world: World) -> None:
    before = await join_both(world)
    for broker in world.cluster.brokers:
        await world.cluster.transfer(GROUP, broker)
        for name in "ab":
            last = world.members[name].revision
            assert (await world.beat(name)).revision == last
            assert world.reads(name) == before[name]


@pytest.mark.parametrize("strategy", ["AVG", "CONSISTENT_HASH", "WEIGHTED_STICKY"])
async def test_a_large_group_is_divided_on_a_thread_and_step_by_step(
    world: World, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    partitions = LARGE
    threads, steps = set[threading.Thread](), list[int]()
    renew, place = Targets.renew, Group._place

    def renewed(self: Targets, situation: Situation) -> set[Partition]:
        threads.add(threading.current_thread())
        return renew(self, situation)

    def placed(self: Group, some: Collection[Partition], now_ms: int) -> None:
        steps.append(len(some))
        place(self, some, now_ms)

    world.topics.known["orders"] = partitions
    await world.beat("a")
    await world.balanced("a", partitions=partitions)
    monkeypatch.setattr(Targets, "renew", renewed)
    monkeypatch.setattr(Group, "_place", placed)
    monkeypatch.setattr(service, "STEP", 100)
    await world.coordinator.configure(GROUP, Settings(strategy=strategy))
    await world.beat("b")
    async with asyncio.timeout(20):
        while (await world.coordinator.describe(GROUP)).targets or not world.reads("b"):
            await world.beat("a", wait_s=0.2)
            await world.beat("b", wait_s=0.2)
    assert threading.current_thread() not in threads
    assert threads
    assert steps.count(100) >= 3
    assert sorted(world.reads("a") + world.reads("b")) == list(range(partitions))


@pytest.mark.parametrize(("partitions", "is_apart"), [(6, False), (LARGE, True)])
async def test_a_large_group_is_taken_over_on_a_thread(
    world: World, monkeypatch: pytest.MonkeyPatch, partitions: int, is_apart: bool
) -> None:
    threads = set[threading.Thread]()
    restore = Group.restored

    def restored(*arguments: Any) -> Group:
        threads.add(threading.current_thread())
        return restore(*arguments)

    world.topics.known["orders"] = partitions
    await world.beat("a")
    await world.balanced("a", partitions=partitions)
    monkeypatch.setattr(Group, "restored", restored)
    here = world.cluster.owner(GROUP)
    await world.cluster.transfer(GROUP, next(each for each in world.cluster.brokers if each != here))
    await world.beat("a")
    assert len(world.reads("a")) == partitions
    assert {each is not threading.main_thread() for each in threads} == {is_apart}


async def test_the_death_of_the_coordinators_broker_moves_no_partition(world: World) -> None:
    before = await join_both(world)
    owner = world.cluster.owner(GROUP)
    assert owner is not None
    await world.cluster.kill(owner)
    await world.cluster.settled()
    for name in "ab":
        last = world.members[name].revision
        assert (await world.beat(name)).revision == last
        assert world.reads(name) == before[name]


async def test_a_split_of_the_bundle_moves_no_partition(world: World) -> None:
    before = await join_both(world)
    await world.cluster.split(GROUP)
    for name in "ab":
        await world.beat(name)
        assert world.reads(name) == before[name]


async def test_a_dead_member_lives_no_longer_for_a_move_of_the_coordinator(world: World) -> None:
    await world.beat("a")
    await world.beat("b", session_timeout_ms=1_000)
    for _ in range(2):
        for broker in world.cluster.brokers:
            await world.cluster.transfer(GROUP, broker)
    async with asyncio.timeout(20):
        while len(world.reads("a")) < 6:
            await world.beat("a", wait_s=1.0)
    assert (await world.coordinator.describe(GROUP)).members.keys() == {"a"}


async def test_news_wake_a_waiting_heartbeat(world: World) -> None:
    await world.beat("a")
    await world.balanced("a")
    waiting = asyncio.create_task(world.beat("a", wait_s=60.0))
    await world.beat("b")
    async with asyncio.timeout(20):
        assert len((await waiting).partitions["orders"]) == 3
    await world.beat("a")
    assert len((await world.beat("b")).partitions["orders"]) == 3


async def test_only_heartbeats_with_news_are_woken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 20 members leaves: its partition has a new reader. All have news when they are to divide themselves."""
    looked: list[str] = []

    def counted(answer: Answer, beat: Beat) -> bool:
        looked.append(beat.process)
        return has_news(answer, beat)

    names = [f"m{number}" for number in range(20)]
    for name in names:
        await world.beat(name)
    await world.balanced(*names)
    monkeypatch.setattr(hosted, "has_news", counted)
    waiting = {name: asyncio.create_task(world.beat(name, wait_s=60.0)) for name in names}
    async with asyncio.timeout(20):
        while world.coordinator.waiting < len(names):
            await asyncio.sleep(0.01)
        looked.clear()
        leaver = next(name for name in names if world.reads(name))
        waiting.pop(leaver).cancel()
        await world.coordinator.leave(GROUP, leaver)
        await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED)
        (heir,) = [name for name, each in waiting.items() if each.done()]
        assert (await waiting.pop(heir)).partitions["orders"]
        assert len(looked) == 1
        await world.coordinator.configure(GROUP, Settings(Mode.CLIENT))
        assert all(each.view is not None for each in await asyncio.gather(*waiting.values()))
    assert len(looked) == 1 + len(waiting)


async def test_a_waiting_heartbeat_holds_no_move_up(world: World) -> None:
    await world.beat("a")
    await world.balanced("a")
    waiting = asyncio.create_task(world.beat("a", wait_s=60.0))
    owner = world.cluster.owner(GROUP)
    heir = next(each for each in world.cluster.brokers if each is not owner)
    await world.cluster.transfer(GROUP, heir)
    await world.beat("b")
    async with asyncio.timeout(20):
        assert len((await waiting).partitions["orders"]) == 3


async def test_commits_of_who_does_not_hold_the_partition_are_refused(world: World) -> None:
    await join_both(world)
    member, own, other = world.members["a"], world.reads("a")[0], world.reads("b")[0]
    offsets = {("orders", own): 7, ("orders", other): 9}
    refused = await world.coordinator.commit(GROUP, "a", member.epoch, member.revision, offsets)
    assert {partition: each.why for partition, each in refused.items()} == {("orders", other): Why.NOT_YOURS}
    assert world.topics.changed == {("orders", own): 7}
    await world.coordinator.leave(GROUP, "a")
    refused = await world.coordinator.commit(GROUP, "a", member.epoch, member.revision, {("orders", own): 8})
    assert refused[("orders", own)].why is Why.UNKNOWN_MEMBER
    assert world.topics.changed == {("orders", own): 7}


async def test_new_partitions_are_seen(world: World) -> None:
    await join_both(world)
    world.topics.known["orders"] = 8
    async with asyncio.timeout(20):
        while sum(len(world.reads(name)) for name in "ab") < 8:
            for name in "ab":
                await world.beat(name, wait_s=0.1)


async def test_a_topic_that_is_not_seen_twice_is_not_gone(world: World) -> None:
    before = await join_both(world)
    world.topics.blind = 2
    async with asyncio.timeout(20):
        while world.topics.blind:
            await world.beat("a", wait_s=0.05)
    for name in "ab":
        await world.beat(name)
        assert world.reads(name) == before[name]


async def test_a_topic_that_is_gone_is_read_by_nobody(world: World) -> None:
    await join_both(world)
    world.topics.known.clear()
    async with asyncio.timeout(20):
        while any(world.reads(name) for name in "ab"):
            for name in "ab":
                await world.beat(name, wait_s=0.1)


async def test_rebalances_are_measured_and_outlive_a_move(world: World) -> None:
    began_ms = time.time() * 1000 - 1
    await join_both(world)
    await world.beat("b")
    before = await world.coordinator.rebalances(GROUP)
    newest = before[0]
    assert (newest.why, newest.members, newest.partitions, newest.moved, newest.kept) == ("b joined", 2, 6, 3, 3)
    assert newest.settled_ms is not None
    assert newest.pause_max_ms is not None
    assert 0 <= newest.pause_max_ms <= newest.settled_ms
    assert began_ms <= newest.at_ms <= time.time() * 1000
    for broker in world.cluster.brokers:
        await world.cluster.transfer(GROUP, broker)
        assert await world.coordinator.rebalances(GROUP) == before


async def test_settings_of_a_group_outlive_a_move(world: World) -> None:
    await join_both(world)
    await world.coordinator.configure(GROUP, Settings(strategy="AVG_BY_CIRCLE"))
    for broker in world.cluster.brokers:
        await world.cluster.transfer(GROUP, broker)
    async with asyncio.timeout(20):
        while (world.reads("a"), world.reads("b")) != ([0, 2, 4], [1, 3, 5]):
            for name in "ab":
                await world.beat(name)


class Paused:
    """A broker that admits a request, and has lost the bundle when the answer is due."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim

    @asynccontextmanager
    async def admit(self, topic: str, timeout_s: float = 5.0) -> AsyncGenerator[Claim]:
        yield self._claim

    def claim(self, topic: str) -> None:
        return None

    async def quiesce(self, bundle: Bundle, timeout_s: float | None = None) -> bool:
        return True


async def test_nothing_is_promised_for_a_new_group_once_the_bundle_is_lost(tmp_path: Path) -> None:
    """A later owner that took the bundle before the group was written does not know it, and fences nobody off."""
    async with AsyncExitStack() as stack:
        coordinator = await running(stack, tmp_path, KnownTopics())
        claim = Claim(tile(NAMESPACE, even_boundaries(1))[0], Token(1, 0, 7))
        coordinator.attached(Paused(claim))
        await coordinator.acquire(claim.bundle, claim.token, None)
        with pytest.raises(NotServing, match="not served here any more"):
            await coordinator.heartbeat(GROUP, "a", Beat(Subscription(("orders",))))


async def test_a_group_that_nobody_joined_is_not_found(world: World) -> None:
    with pytest.raises(NotFound, match="no group is called"):
        await world.coordinator.describe(GROUP)
    with pytest.raises(NotFound, match="no group is called"):
        await world.coordinator.rebalance(GROUP)


async def test_load_counts_groups_and_members(world: World) -> None:
    await join_both(world)
    found = world.coordinator.load()[world.cluster.bundle(GROUP)]
    assert (found.keys, found.sessions) == (1, 2)
    assert found.in_rate_msg_s > 0
