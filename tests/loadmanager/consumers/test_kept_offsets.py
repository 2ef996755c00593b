"""A group has a committed offset in each partition before it reads it, and keeps it however long it is idle."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from loadmanager.consumer.assignment import Membership
from loadmanager.consumer.kafka_client import starts_at
from loadmanager.consumers.coordinator import service
from loadmanager.consumers.coordinator.kept_offsets import LONGEST_S, UNKNOWN_S, keep, period_s, start_of
from loadmanager.consumers.coordinator.records import Partition, Subscription
from loadmanager.consumers.coordinator.service import Coordinator
from loadmanager.testing import NAMESPACE, EmbeddedCluster, embedded_cluster
from statechannel.adapters.kafka.group_commits import GroupInUse
from statechannel.errors import LogUnavailable
from tests.loadmanager.consumers.running import KnownTopics, running

GROUP = f"persistent://{NAMESPACE}/billing"
A: Partition = ("orders", 0)
B: Partition = ("orders", 1)
LONG_S = 60.0


class Topics(KnownTopics):
    """Two partitions, of which the group has committed nothing; `times` counts the commits of each."""

    def __init__(self) -> None:
        super().__init__({"orders": 2})
        self.is_fresh = True
        self.offsets.topics = {"orders": [(3, 10), (4, 20)]}
        self.times: dict[Partition, int] = {}
        self.is_down = False

    async def commit(self, group: str, offsets: Mapping[Partition, int], pulled: Mapping[Partition, int]) -> None:
        if self.is_down:
            raise LogUnavailable("Kafka is away")
        await super().commit(group, offsets, pulled)
        for each in offsets:
            self.times[each] = self.times.get(each, 0) + 1


@pytest.mark.parametrize(("start", "expected"), [("earliest", {A: 3, B: 4}), ("latest", {A: 10, B: 20}), ("none", {})])
async def test_a_group_starts_where_its_policy_says(start: str, expected: Mapping[Partition, int]) -> None:
    topics = Topics()
    assert await keep(topics, GROUP, [A, B], start, partial(topics.commit, GROUP)) == set()
    assert topics.committed == topics.pulled == expected


@pytest.mark.parametrize("start", ["earliest", "latest", "none"])
async def test_a_partition_that_came_later_starts_at_its_begin(start: str) -> None:
    topics = Topics()
    topics.committed = {A: 7}
    assert await keep(topics, GROUP, [A, B], start, partial(topics.commit, GROUP)) == set()
    assert topics.committed == {A: 7, B: 4}
    assert topics.times == {A: 1, B: 1}, "what is unchanged is committed again as well"


async def test_a_topic_waits_for_all_of_its_leaders() -> None:
    """With some of its commits alone, the others would seem to have come later."""
    topics = Topics()
    topics.offsets.topics["orders"][1] = (4, None)
    assert await keep(topics, GROUP, [A, B], "latest", partial(topics.commit, GROUP)) == {"orders"}
    assert topics.committed == {}


async def test_what_is_pulled_is_kept_too() -> None:
    topics = Topics()
    topics.committed, topics.pulled = {A: 7, B: 8}, {A: 9}
    await keep(topics, GROUP, [A, B], "latest", partial(topics.commit, GROUP))
    assert (topics.committed, topics.pulled) == ({A: 7, B: 8}, {A: 9})


def test_one_member_that_starts_at_the_begin_decides() -> None:
    members = [Subscription(("orders",), starts_at=each) for each in ("none", "latest", "earliest")]
    assert [start_of(members[:count]) for count in range(1, 4)] == ["none", "latest", "earliest"]
    assert start_of([]) == "none"


def test_the_policy_is_that_of_kafkas_client() -> None:
    names = ("smallest", "earliest", "beginning", "largest", "latest", "end", "error")
    expected = ["earliest"] * 3 + ["latest"] * 3 + ["none"]
    assert [starts_at({"auto.offset.reset": each}) for each in names] == expected
    assert starts_at({}) == "latest"


@pytest.mark.parametrize(
    ("retention_s", "expected_s"), [(60.0, 15.0), (604_800.0, LONGEST_S), (None, UNKNOWN_S)], ids=str
)
def test_offsets_are_committed_well_before_they_expire(retention_s: float | None, expected_s: float) -> None:
    assert period_s(retention_s) == expected_s


class World:
    """One coordinator, and members that do at once what they are told."""

    def __init__(self, cluster: EmbeddedCluster[Coordinator], topics: Topics) -> None:
        self.cluster = cluster
        self.topics = topics
        self.member = Membership("a", Subscription(("orders",), 60_000))

    async def beat(self) -> list[Partition]:
        now_ms = time.monotonic() * 1000
        beat = self.member.beat(now_ms)
        owner = self.cluster.owner(GROUP)
        assert owner is not None
        answer = await self.cluster.host(owner).heartbeat(GROUP, "a", beat)
        self.member.given_up(self.member.answered(beat.sequence, answer).revoked)
        return sorted(self.member.reads(now_ms))

    async def until_read(self, *partitions: Partition) -> None:
        async with asyncio.timeout(LONG_S):
            while await self.beat() != list(partitions):
                await asyncio.sleep(0.02)


async def world(stack: AsyncExitStack, directory: Path, topics: Topics) -> World:
    coordinator = await running(stack, directory, topics, topics_every_s=0.02)
    cluster = await stack.enter_async_context(embedded_cluster(lambda: coordinator, brokers=1, bundles=1))
    await cluster.settled()
    return World(cluster, topics)


async def test_nobody_reads_a_partition_without_a_committed_offset(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        topics = Topics()
        topics.is_down = True
        found = await world(stack, tmp_path, topics)
        for _ in range(10):
            assert await found.beat() == []
            await asyncio.sleep(0.02)
        topics.is_down = False
        await found.until_read(A, B)
        assert topics.committed == {A: 10, B: 20}
        topics.offsets.topics["orders"].append((0, 5))
        topics.known["orders"] = 3
        await found.until_read(A, B, ("orders", 2))
        assert topics.committed == {A: 10, B: 20, ("orders", 2): 0}, "nothing of what came later is skipped"


async def test_offsets_of_idle_partitions_are_committed_again(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        topics = Topics()
        topics.retained_s = 0.4
        found = await world(stack, tmp_path, topics)
        await found.until_read(A, B)
        before = dict(topics.times)
        await found.cluster.until(lambda: all(topics.times[each] >= before[each] + 3 for each in (A, B)))
        assert topics.committed == {A: 10, B: 20}


async def test_offsets_of_many_partitions_are_committed_in_parts_of_whole_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic whose first commits were in two parts would start at two places after a failure between them."""
    monkeypatch.setattr(service, "STEP", 5)
    sizes = {"a": 2, "b": 2, "c": 7, "d": 1}
    parts: list[dict[str, int]] = []
    async with AsyncExitStack() as stack:
        topics = Topics()
        topics.known = sizes
        topics.offsets.topics = {topic: [(0, 9)] * size for topic, size in sizes.items()}
        commit = topics.commit

        async def counted(group: str, offsets: Mapping[Partition, int], pulled: Mapping[Partition, int]) -> None:
            parts.append(Counter(topic for topic, _ in offsets))
            await commit(group, offsets, pulled)

        monkeypatch.setattr(topics, "commit", counted)
        found = await world(stack, tmp_path, topics)
        found.member.subscription = Subscription(tuple(sizes))
        await found.until_read(*((topic, number) for topic, size in sizes.items() for number in range(size)))
        assert parts == [{"a": 2, "b": 2}, {"c": 7}, {"d": 1}]


async def test_members_of_a_group_that_kafka_refuses_learn_it_when_they_commit(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        topics = Topics()
        topics.in_use = True
        found = await world(stack, tmp_path, topics)
        await found.until_read(A, B)
        owner = found.cluster.owner(GROUP)
        assert owner is not None
        with pytest.raises(GroupInUse):
            await found.cluster.host(owner).commit(GROUP, "a", found.member.epoch, found.member.revision, {A: 11})
