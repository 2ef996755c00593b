"""The lag of groups is in a topic by the minute, within bounds, and goes with its group."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from loadmanager.consumers.backlog.figures import GroupBacklog
from loadmanager.consumers.coordinator.group import Group
from loadmanager.consumers.coordinator.lag_topic import (
    GROUP_LAG,
    GROUP_LAG_TOPIC,
    GroupLagRecord,
    GroupLags,
    LagTopic,
    deletions,
    key_of,
)
from loadmanager.consumers.coordinator.lag_watch import Reading
from loadmanager.consumers.coordinator.messages import Beat
from loadmanager.consumers.coordinator.records import Subscription
from loadmanager.testing import NAMESPACE
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.law.record import Token
from statechannel.ports import TopicSpec
from tests.loadmanager.consumers.running import KnownTopics, running
from tests.loadmanager.consumers.test_forgetting import BUNDLE, LONG_S, Owner

NAME, ID = f"persistent://{NAMESPACE}/billing", f"{NAMESPACE}/billing"
BEAT = Beat(Subscription(("orders",)))


@asynccontextmanager
async def log_in(directory: Path) -> AsyncGenerator[SqliteLog]:
    log = SqliteLog(directory / "groups.db")
    await log.start(5)
    try:
        yield log
    finally:
        await log.close()


async def entries(log: SqliteLog) -> list[tuple[bytes, bytes | None]]:
    if not await log.has_topic(GROUP_LAG_TOPIC):
        return []
    await log.open_topic(GROUP_LAG)
    return [(entry.key or b"", entry.value) async for batch in log.read(GROUP_LAG_TOPIC, 0, 0) for entry in batch]


async def last(log: SqliteLog) -> dict[bytes, GroupLagRecord]:
    """What the topic has when it is compacted."""
    found = dict(await entries(log))
    return {key: msgspec.json.decode(value, type=GroupLagRecord) for key, value in found.items() if value is not None}


def lags(group: str, count: int, lag: int = 7) -> GroupLags:
    return GroupLags(group, 60_000, {("orders", each): lag for each in range(count)}, {("orders", 0): "a"}, 3)


async def test_a_report_says_who_has_the_queue_and_a_name_may_have_line_breaks(tmp_path: Path) -> None:
    async with log_in(tmp_path) as log:
        await LagTopic(log).report([])
        assert not await log.has_topic(GROUP_LAG_TOPIC), "no topic where there is nothing to say"
        await LagTopic(log).report([lags("shop/orders/a\nb", 2)])
        assert await last(log) == {
            b"shop/orders/a\nb\norders\n0": GroupLagRecord(60_000, "shop/orders/a\nb", "orders", 0, 7, "a", 3),
            b"shop/orders/a\nb\norders\n1": GroupLagRecord(60_000, "shop/orders/a\nb", "orders", 1, 7, "", 3),
        }


async def test_where_there_are_too_many_partitions_they_take_turns(tmp_path: Path) -> None:
    async with log_in(tmp_path) as log:
        topic = LagTopic(log, most=4)
        groups = [lags("shop/orders/a", 5), lags("shop/orders/b", 5)]
        for _ in range(5):
            await topic.report(groups)
        written = [key for key, _ in await entries(log)]
        assert len(written) == 20
        assert {written.count(key) for key in set(written)} == {2}
        assert len(set(written)) == 10


async def test_a_topic_of_another_kind_is_refused_and_a_deletion_does_not_wait_for_it(tmp_path: Path) -> None:
    async with log_in(tmp_path) as log:
        await log.open_topic(TopicSpec(GROUP_LAG_TOPIC, 1))
        with pytest.raises(Exception, match=GROUP_LAG_TOPIC):
            await LagTopic(log).report([lags("shop/orders/a", 1)])
        await LagTopic(log).delete("shop/orders/a", {"orders": 1})


def test_what_may_have_a_report_outlives_a_coordinator() -> None:
    group = Group(NAME)
    group.reported = {"orders": 2}
    again = Group.restored(NAME, {"": group.record()}, 2)
    assert again.reported == {"orders": 2}
    assert [each.key for each in deletions(ID, again.reported)] == [key_of(ID, ("orders", n)) for n in (0, 1)]


def offsets(topics: KnownTopics, **sizes: Mapping[int, tuple[int, int]]) -> None:
    """By topic and queue: where the group goes on, and the end."""
    topics.offsets.groups_committed[ID] = {
        topic: {number: each[0] for number, each in its.items()} for topic, its in sizes.items()
    }
    topics.offsets.topics = {topic: [(0, each[1]) for each in its.values()] for topic, its in sizes.items()}


async def test_a_coordinator_reports_its_groups_and_deletes_what_goes(tmp_path: Path) -> None:
    topics = KnownTopics({"orders": 2, "bills": 1})
    offsets(topics, orders={0: (3, 10), 1: (5, 5)}, bills={0: (0, 4)})
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(log_in(tmp_path))
        coordinator = await running(stack, tmp_path, topics, lag_every_s=0.05, reported_every_s=0.2)
        owner = Owner(Token(1, 0, 1))
        coordinator.attached(owner)
        await coordinator.acquire(BUNDLE, owner.owned.token, None)
        await coordinator.heartbeat(NAME, "a", BEAT)

        async def until_topic_has(expected: dict[tuple[str, int], int]) -> dict[bytes, GroupLagRecord]:
            async with asyncio.timeout(LONG_S):
                while True:
                    found = await last(log)
                    if {(each.topic, each.queue): each.lag for each in found.values()} == expected:
                        return found
                    await asyncio.sleep(0.02)

        found = await until_topic_has({("orders", 0): 7, ("orders", 1): 0, ("bills", 0): 4})
        assert {each.group for each in found.values()} == {ID}
        offsets(topics, orders={0: (4, 10), 1: (5, 5)})
        found = await until_topic_has({("orders", 0): 6, ("orders", 1): 0})
        await coordinator.leave(NAME, "a")
        await coordinator.delete(NAME)
        assert await last(log) == {}
        assert NAME not in coordinator.groups()


async def test_a_report_of_a_hundred_thousand_partitions_keeps_the_loop_for_no_long_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time of the processor that the loop's thread takes in one turn."""
    turns_s: list[float] = []
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began_s = time.thread_time()
        run(handle)
        turns_s.append(time.thread_time() - began_s)

    async with AsyncExitStack() as stack:
        coordinator = await running(stack, tmp_path, KnownTopics())
        owner = Owner(Token(1, 0, 1))
        coordinator.attached(owner)
        await coordinator.acquire(BUNDLE, owner.owned.token, None)
        await coordinator.heartbeat(NAME, "a", BEAT)
        hosted = coordinator._hosted[NAME]
        partitions = {(f"topic-{topic}", each): 1 for topic in range(100) for each in range(1_000)}
        hosted.group.reported = {"bills": 20_000}
        backlog = GroupBacklog(ID)
        coordinator.lag._watch.add(NAME, Reading(asyncio.get_running_loop().time(), backlog, {}, partitions, 0))
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.Handle, "_run", timed)
            await coordinator._report_once()
        assert hosted.group.reported == {f"topic-{each}": 1_000 for each in range(100)}
        assert max(turns_s) < 0.02
