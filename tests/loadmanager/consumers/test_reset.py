"""Offsets that are reset while members read: who stops, what is stored, and what happens if it does not work.

Topics are told, Kafka is not here; `test_group_consumer.py` resets on a real one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from loadmanager.client.redirection import Moved, NotServing
from loadmanager.consumer.assignment import Membership
from loadmanager.consumers.coordinator.messages import Answer, Why
from loadmanager.consumers.coordinator.records import Partition, Subscription
from loadmanager.consumers.coordinator.service import Coordinator
from loadmanager.errors import Conflict, NotFound, Unavailable
from loadmanager.testing import NAMESPACE, EmbeddedCluster, embedded_cluster
from statechannel.adapters.kafka.group_commits import GroupInUse
from tests.loadmanager.consumers.running import KnownTopics, running
from tests.loadmanager.embedded import PATIENT

GROUP = f"persistent://{NAMESPACE}/billing"
LONG_S = 60.0
ALL = [("orders", number) for number in range(6)]


class SlowTopics(KnownTopics):
    """Commits above 0 wait while `open` is not set; `begun` counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()
        self.open.set()
        self.begun = 0

    async def commit(self, group: str, offsets: Mapping[Partition, int], pulled: Mapping[Partition, int]) -> None:
        if any(offsets.values()):
            self.begun += 1
            await self.open.wait()
        await super().commit(group, offsets, pulled)


class World:
    """Two brokers, and members that do what they are told when a test says so."""

    def __init__(self, cluster: EmbeddedCluster[Coordinator], topics: SlowTopics) -> None:
        self.cluster = cluster
        self.topics = topics
        self.members: dict[str, Membership] = {}

    @property
    def coordinator(self) -> Coordinator:
        owner = self.cluster.owner(GROUP)
        assert owner is not None
        return self.cluster.host(owner)

    async def beat(self, name: str, *, drains: bool = True, session_timeout_ms: int = 60_000) -> Answer:
        member = self.members.setdefault(name, Membership(name, Subscription(("orders",), session_timeout_ms)))
        await asyncio.sleep(0)  # a heartbeat without news waits for nothing
        beat = member.beat(time.monotonic() * 1000)
        answer = await self.coordinator.heartbeat(GROUP, name, beat)
        assert isinstance(answer, Answer), answer
        change = member.answered(beat.sequence, answer)
        if drains:
            member.given_up(change.revoked)
        return answer

    def reads(self, name: str) -> list[Partition]:
        return sorted(self.members[name].reads(time.monotonic() * 1000))

    async def until_read(self, wanted: Mapping[str, list[Partition]], *, drains: bool = True) -> None:
        """Heartbeats until each member reads this."""
        async with asyncio.timeout(LONG_S):
            while {name: self.reads(name) for name in wanted} != wanted:
                for name in wanted:
                    await self.beat(name, drains=drains)

    async def joined(self, *names: str) -> dict[str, list[Partition]]:
        """These are members, and read everything."""
        for name in names:
            await self.beat(name)
        async with asyncio.timeout(LONG_S):
            while sorted(each for name in names for each in self.reads(name)) != ALL:
                for name in names:
                    await self.beat(name)
        return {name: self.reads(name) for name in names}

    def reset(self, offsets: Mapping[Partition, int], timeout_s: float = LONG_S) -> asyncio.Task[None]:
        return asyncio.create_task(self.coordinator.reset(GROUP, offsets, timeout_s))

    async def commit(self, name: str, offsets: Mapping[Partition, int]) -> Mapping[Partition, Why]:
        member = self.members[name]
        refused = await self.coordinator.commit(GROUP, name, member.epoch, member.revision, offsets)
        return {each: refusal.why for each, refusal in refused.items()}


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World]:
    topics = SlowTopics()
    async with AsyncExitStack() as stack:
        coordinators = [await running(stack, tmp_path, topics) for _ in range(2)]
        cluster = await stack.enter_async_context(embedded_cluster(coordinators.pop, brokers=2, bundles=2, **PATIENT))
        yield World(cluster, topics)
        topics.open.set()


async def test_members_stop_the_offsets_are_stored_and_the_same_go_on(world: World) -> None:
    before = await world.joined("a", "b")
    mine, others = before["a"][0], before["b"]
    revision = world.members["b"].revision
    reset = world.reset({mine: 3})
    await world.until_read({"a": before["a"][1:], "b": others}, drains=False)
    assert not reset.done(), "a has not given it up yet"
    assert world.topics.changed == {}
    world.members["a"].given_up([mine])
    await world.until_read(before)
    await reset
    assert world.topics.changed == world.topics.pulled == {mine: 3}
    assert world.members["b"].revision == revision, "who reads nothing there notices nothing"


async def test_a_former_holder_commits_before_it_stops_and_not_after(world: World) -> None:
    [mine, *_] = (await world.joined("a"))["a"]
    late = world.members["a"].revision
    reset = world.reset({mine: 3})
    async with asyncio.timeout(LONG_S):
        while mine in world.reads("a"):
            await world.beat("a", drains=False)
    assert await world.commit("a", {mine: 99}) == {}, "it drains"
    world.members["a"].given_up([mine])
    await world.until_read({"a": ALL})
    await reset
    refused = await world.coordinator.commit(GROUP, "a", world.members["a"].epoch, late, {mine: 98})
    assert refused[mine].why is Why.NOT_YOURS
    assert world.topics.changed == {mine: 3}


async def test_a_commit_on_its_way_is_waited_for(world: World) -> None:
    [mine, *rest] = (await world.joined("a"))["a"]
    world.topics.open.clear()
    commit = asyncio.create_task(world.commit("a", {mine: 99}))
    await world.cluster.until(lambda: world.topics.begun == 1)
    reset = world.reset({mine: 3})
    await world.until_read({"a": rest})
    await world.beat("a")  # it has stopped, but its commit is not answered
    await world.beat("a")
    assert world.topics.begun == 1
    assert not reset.done()
    world.topics.open.set()
    await asyncio.gather(commit, reset)
    assert world.topics.changed == {mine: 3}, "the commit does not overwrite it"


async def test_a_late_commit_does_not_overwrite_the_one_after_it(world: World) -> None:
    """A member that waited in vain for the answer sends the next one while Kafka has not answered the first."""
    [mine, other, *_] = (await world.joined("a"))["a"]
    world.topics.open.clear()
    late = asyncio.create_task(world.commit("a", {mine: 7}))
    await world.cluster.until(lambda: world.topics.begun == 1)
    after = asyncio.create_task(world.commit("a", {mine: 9}))
    aside = asyncio.create_task(world.commit("a", {other: 5}))
    await world.cluster.until(lambda: world.topics.begun == 2)
    await world.beat("a")
    assert world.topics.begun == 2, "the other partition's, and not the one after the late one"
    world.topics.open.set()
    assert await asyncio.gather(late, after, aside) == [{}, {}, {}]
    assert world.topics.changed == {mine: 9, other: 5}


async def test_who_does_not_stop_in_time_reads_on_and_nothing_is_stored(world: World) -> None:
    before = await world.joined("a", "b")
    mine = before["a"][0]
    reset = world.reset({mine: 3}, 4.0)
    await world.until_read({"a": before["a"][1:]}, drains=False)
    with pytest.raises(Unavailable, match=r"a did not stop within 4 s: no offset of .*billing was changed"):
        await reset
    world.members["a"].given_up([mine])
    await world.until_read(before)
    assert world.topics.changed == {}


async def test_a_member_that_dies_holds_a_reset_up_until_its_session_is_over(world: World) -> None:
    await world.beat("a", session_timeout_ms=4_000)
    async with asyncio.timeout(LONG_S):
        while not world.reads("a"):
            await world.beat("a")
    await world.reset(dict.fromkeys(ALL, 5))
    assert world.topics.changed == dict.fromkeys(ALL, 5)


async def test_who_joins_meanwhile_gets_it_afterwards(world: World) -> None:
    await world.joined("a")
    reset = world.reset(dict.fromkeys(ALL, 5))
    await world.until_read({"a": []}, drains=False)
    await world.beat("b")
    assert world.reads("b") == []
    world.members["a"].given_up(ALL)
    after = await world.joined("a", "b")
    await reset
    assert [len(its) for its in after.values()] == [3, 3]


@pytest.mark.parametrize("left", [False, True], ids=["unknown", "left"])
async def test_a_group_without_members_is_reset_at_once(world: World, left: bool) -> None:
    if left:
        await world.joined("a")
        await world.coordinator.leave(GROUP, "a")
    await world.reset({("orders", 2): 7})
    assert world.topics.changed == {("orders", 2): 7}
    assert list(world.coordinator.groups()) == ([GROUP] if left else []), "a group of Kafka's stays one"
    if not left:
        with pytest.raises(NotFound):
            await world.coordinator.describe(GROUP)


async def test_kafka_refuses_a_reset_while_others_are_members(world: World) -> None:
    before = await world.joined("a")
    world.topics.in_use = True
    reset = world.reset({ALL[0]: 7})
    await world.until_read({"a": ALL[1:]})
    await world.until_read(before)
    with pytest.raises(GroupInUse):
        await reset


async def test_a_partition_is_reset_once_at_a_time(world: World) -> None:
    await world.joined("a")
    reset = world.reset({ALL[0]: 7})
    await world.until_read({"a": ALL[1:]}, drains=False)
    with pytest.raises(Conflict, match="partition 0 of orders is being reset already"):
        await world.coordinator.reset(GROUP, {ALL[0]: 8, ALL[1]: 8}, 1.0)
    world.members["a"].given_up([ALL[0]])
    await world.until_read({"a": ALL})
    await reset
    assert world.topics.changed == {ALL[0]: 7}


async def test_the_next_coordinator_withholds_nothing(world: World) -> None:
    before = await world.joined("a", "b")
    reset = world.reset(dict.fromkeys(ALL, 5))
    await world.until_read({"a": []}, drains=False)
    owner = world.cluster.owner(GROUP)
    heir = next(each for each in world.cluster.brokers if each is not owner)
    await world.cluster.transfer(GROUP, heir)
    with pytest.raises(NotServing, match="moved while its offsets were reset"):
        await reset
    for name, its in before.items():
        world.members[name].given_up(its)
    await world.joined("a", "b")
    assert world.topics.changed == {}


async def test_a_group_that_went_and_came_back_is_not_reset(world: World) -> None:
    await world.joined("a")
    reset = world.reset(dict.fromkeys(ALL, 5))
    await world.until_read({"a": []}, drains=False)
    owner = world.cluster.owner(GROUP)
    assert owner is not None
    former = world.coordinator
    heir = next(each for each in world.cluster.brokers if each is not owner)
    async with former.broker.admit(GROUP) as claim:
        bundle, token = claim.bundle, claim.token
    await former.abandon(bundle)
    await former.acquire(bundle, token, None)
    with pytest.raises(NotServing, match="moved while its offsets were reset"):
        await reset
    await world.cluster.transfer(GROUP, heir)
    world.members["a"].given_up(ALL)
    await world.until_read({"a": ALL})
    assert world.topics.changed == {}


async def test_a_planned_move_waits_until_the_offsets_are_stored(world: World) -> None:
    before = await world.joined("a")
    world.topics.open.clear()
    reset = world.reset(dict.fromkeys(ALL, 5))
    async with asyncio.timeout(LONG_S):
        while not world.topics.begun:
            await world.beat("a")
    heir = next(each for each in world.cluster.brokers if each is not world.cluster.owner(GROUP))
    move = asyncio.create_task(world.cluster.transfer(GROUP, heir))
    gone = world.cluster.owner(GROUP)
    await world.cluster.until(lambda: world.cluster.owner(GROUP) is not gone or gone is None)
    world.topics.open.set()
    await asyncio.gather(reset, move)
    assert world.topics.changed == dict.fromkeys(ALL, 5)
    await world.until_read(before)


async def test_a_reset_that_is_cancelled_gives_everything_back(world: World) -> None:
    before = await world.joined("a")
    reset = world.reset(dict.fromkeys(ALL, 5))
    await world.until_read({"a": []}, drains=False)
    reset.cancel()
    await asyncio.wait([reset])
    world.members["a"].given_up(ALL)
    await world.until_read(before)
    assert world.topics.changed == {}


async def test_who_is_not_the_coordinator_sends_there(world: World) -> None:
    other = next(each for each in world.cluster.brokers if each is not world.cluster.owner(GROUP))
    with pytest.raises(Moved):
        await world.cluster.host(other).reset(GROUP, {ALL[0]: 1}, 1.0)
