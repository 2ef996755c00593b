"""Groups without members are forgotten, deleted and bounded; many are taken over together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from loadmanager.broker.serving import Claim
from loadmanager.client.redirection import NotServing
from loadmanager.consumers.coordinator import lag_topic, service
from loadmanager.consumers.coordinator.group import Group
from loadmanager.consumers.coordinator.lag_topic import GROUP_LAG_TOPIC
from loadmanager.consumers.coordinator.messages import Beat, Refusal, Why
from loadmanager.consumers.coordinator.records import Settings, Subscription
from loadmanager.consumers.coordinator.service import Coordinator
from loadmanager.consumers.coordinator.store import GroupStore
from loadmanager.errors import Conflict, Forbidden, Invalid, NotFound
from loadmanager.testing import NAMESPACE
from statechannel.adapters.kafka.group_commits import GroupInUse
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.errors import LogUnavailable
from statechannel.law.bundle import Bundle, even_boundaries, tile
from statechannel.law.record import Token
from statechannel.ports import Payload
from tests.loadmanager.consumers.running import KnownTopics, in_background, running

LONG_S = 60.0
BUNDLE = tile(NAMESPACE, even_boundaries(1))[0]
BEAT = Beat(Subscription(("orders",)))


class Owner:
    """A broker that owns the bundle."""

    def __init__(self, token: Token) -> None:
        self.owned = Claim(BUNDLE, token)

    @asynccontextmanager
    async def admit(self, topic: str, timeout_s: float = 5.0):
        yield self.owned

    def claim(self, topic: str) -> Claim:
        return self.owned

    async def quiesce(self, bundle: Bundle, timeout_s: float | None = None) -> bool:
        return True


def named(number: int) -> str:
    return f"persistent://{NAMESPACE}/run-{number}"


async def owning(
    stack: AsyncExitStack, directory: Path, number: int, retention_s: float = LONG_S, topics: KnownTopics | None = None
) -> Coordinator:
    found = await running(stack, directory, topics or KnownTopics(), retention_s=retention_s)
    owner = Owner(Token(1, 0, number))
    found.attached(owner)
    await found.acquire(BUNDLE, owner.owned.token, None)
    return found


async def until_gone(coordinator: Coordinator, name: str) -> None:
    async with asyncio.timeout(LONG_S):
        while name in coordinator.groups():
            await asyncio.sleep(0.01)


def test_time_without_members_is_counted_in_whole_steps_only() -> None:
    group = Group(named(1))
    assert [group.passed(6.0) for _ in range(3)] == [0.0, 6.0, 12.0], "it may have become empty just before the first"
    group.heartbeat("a", BEAT, 0)
    assert group.passed(6.0) == 0.0
    group.leave("a", 1)
    assert [group.passed(6.0) for _ in range(2)] == [0.0, 6.0]
    again = Group.restored(group.name, {"": group.record()}, 2)
    assert [again.passed(6.0) for _ in range(2)] == [6.0, 12.0], "another coordinator counts on"


async def test_a_group_without_members_is_forgotten_and_one_with_members_is_not(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        coordinator = await owning(stack, tmp_path, 1, retention_s=0.3)
        for number in (1, 2):
            await coordinator.heartbeat(named(number), "a", BEAT)
        await coordinator.leave(named(1), "a")
        await until_gone(coordinator, named(1))
        assert [*coordinator.groups()] == [named(2)]
        with pytest.raises(NotFound):
            await coordinator.describe(named(1))
        await coordinator.heartbeat(named(1), "b", BEAT)
        assert (await coordinator.describe(named(1))).members.keys() == {"b"}


async def test_a_deleted_group_is_gone_for_every_coordinator(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        first, second = await owning(stack, tmp_path, 1), await owning(stack, tmp_path, 2)
        await second.heartbeat(named(1), "a", BEAT)
        with pytest.raises(Conflict, match="has 1 members: stop them first"):
            await second.delete(named(1))
        await second.leave(named(1), "a")
        await second.delete(named(1))
        with pytest.raises(NotFound):
            await second.delete(named(1))
        await until_gone(first, named(1))


async def test_a_namespace_has_so_many_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "GROUPS", 2)
    async with AsyncExitStack() as stack:
        coordinator = await owning(stack, tmp_path, 1)
        for number in (1, 2):
            await coordinator.heartbeat(named(number), "a", BEAT)
        with pytest.raises(Invalid, match="has 2 groups, the most it may have: groups delete removes one"):
            await coordinator.heartbeat(named(3), "a", BEAT)
        await coordinator.heartbeat(named(2), "b", BEAT)
        await coordinator.leave(named(1), "a")
        await coordinator.delete(named(1))
        await coordinator.heartbeat(named(3), "a", BEAT)


async def test_a_principal_creates_so_many_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "CREATED", 2)
    async with AsyncExitStack() as stack:
        first = await owning(stack, tmp_path, 1)
        await first.heartbeat(named(0), "a", BEAT)
        for number in (1, 2):
            await first.heartbeat(named(number), "a", BEAT, creator="ann")
        says = "ann has created 2 groups that are still there, the most for one principal: groups delete removes one"
        with pytest.raises(Forbidden, match=says):
            await first.heartbeat(named(3), "a", BEAT, creator="ann")
        with pytest.raises(Forbidden, match=says):
            await first.configure(named(3), Settings(strategy="AVG"), "ann")
        with pytest.raises(NotFound):
            await first.describe(named(3))
        await first.heartbeat(named(0), "b", BEAT, creator="ann")
        await first.heartbeat(named(4), "a", BEAT, creator="bob")
        await first.heartbeat(named(5), "a", BEAT)
        later = await owning(stack, tmp_path, 2)
        assert (await later.describe(named(1))).creator == "ann"
        with pytest.raises(Forbidden, match=says):
            await later.heartbeat(named(3), "a", BEAT, creator="ann")
        await later.leave(named(1), "a")
        await later.delete(named(1))
        await later.heartbeat(named(3), "a", BEAT, creator="ann")
        assert (await later.describe(named(3))).creator == "ann"


async def test_what_is_refused_creates_no_group(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        coordinator = await owning(stack, tmp_path, 1)
        with pytest.raises(Invalid):
            await coordinator.heartbeat(named(1), "a", Beat(Subscription(("a/b",))))
        with pytest.raises(Invalid):
            await coordinator.configure(named(1), Settings(strategy="NONE"))
        for beat in (Beat(Subscription(("orders",), version=9)), Beat(Subscription(("orders",)), epoch=7)):
            assert isinstance(await coordinator.heartbeat(named(1), "a", beat), Refusal)
        refused = await coordinator.commit(named(1), "a", 7, 1, {("orders", 0): 5})
        assert refused["orders", 0].why is Why.UNKNOWN_MEMBER
        await coordinator.leave(named(1), "a")
        with pytest.raises(NotFound):
            await coordinator.describe(named(1))
        assert [*coordinator.groups()] == []


class Deleting(KnownTopics):
    """Deletes offsets when it is `free`."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.free = asyncio.Event(), asyncio.Event()

    async def delete(self, group: str) -> bool:
        self.begun.set()
        await self.free.wait()
        return await super().delete(group)


async def test_while_offsets_are_deleted_no_member_joins_and_none_is_committed(tmp_path: Path) -> None:
    topics = Deleting()
    async with AsyncExitStack() as stack:
        coordinator = await owning(stack, tmp_path, 1, topics=topics)
        await coordinator.heartbeat(named(1), "a", BEAT)
        with pytest.raises(Conflict, match="has 1 members"):
            await coordinator.delete(named(1), offsets=True)
        await coordinator.leave(named(1), "a")
        topics.committed = {("orders", 0): 7}
        deleting = asyncio.create_task(coordinator.delete(named(1), offsets=True))
        await topics.begun.wait()
        with pytest.raises(NotServing, match="are being deleted"):
            await coordinator.heartbeat(named(1), "b", BEAT)
        with pytest.raises(NotServing, match="are being deleted"):
            await coordinator.reset(named(1), {("orders", 0): 5}, 1.0)
        await coordinator.heartbeat(named(2), "b", BEAT)
        topics.free.set()
        await deleting
        assert topics.committed == {}
        assert [*coordinator.groups()] == [named(2)]
        await coordinator.heartbeat(named(1), "b", BEAT)


async def test_a_group_whose_offsets_kafka_keeps_is_not_forgotten(tmp_path: Path) -> None:
    topics = Deleting()
    topics.in_use = True
    topics.free.set()
    async with AsyncExitStack() as stack:
        coordinator = await owning(stack, tmp_path, 1, topics=topics)
        await coordinator.heartbeat(named(1), "a", BEAT)
        await coordinator.leave(named(1), "a")
        with pytest.raises(GroupInUse):
            await coordinator.delete(named(1), offsets=True)
        await coordinator.heartbeat(named(1), "b", BEAT)
        assert [*coordinator.groups()] == [named(1)]


class Held(SqliteLog):
    """Its topic of lags answers when `is_free`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.is_free = asyncio.Event()
        self.held = 0

    async def append(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        if topic == GROUP_LAG_TOPIC:
            self.held += 1
            await self.is_free.wait()
        await super().append(topic, partition, payloads)


async def reported(stack: AsyncExitStack, directory: Path, *numbers: int, retention_s: float = LONG_S) -> Coordinator:
    """A coordinator of these groups without members, each with a report of its lag; its log is `Held`."""
    log = Held(directory / "groups.db")
    await log.start(5)
    stack.push_async_callback(log.close)
    clock_s = asyncio.get_running_loop().time
    coordinator = Coordinator(GroupStore(log), KnownTopics(), clock_s, topics_every_s=0.05, retention_s=retention_s)
    coordinator.attached(Owner(Token(1, 0, 1)))
    await coordinator.start()
    await stack.enter_async_context(in_background(coordinator.run()))
    await coordinator.acquire(BUNDLE, Token(1, 0, 1), None)
    for number in numbers:
        await coordinator.heartbeat(named(number), "a", BEAT)
        coordinator._hosted[named(number)].group.reported = {"orders": 2}
        await coordinator.leave(named(number), "a")
    return coordinator


def log_of(coordinator: Coordinator) -> Held:
    log = coordinator._store.log
    assert isinstance(log, Held)
    return log


async def until_held(log: Held) -> None:
    async with asyncio.timeout(LONG_S):
        while not log.held:
            await asyncio.sleep(0.01)


async def test_a_member_that_joins_while_its_group_is_deleted_stays_one_for_the_next_coordinator(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        coordinator = await reported(stack, tmp_path, 1)
        log = log_of(coordinator)
        deleting = asyncio.create_task(coordinator.delete(named(1)))
        await until_held(log)
        await coordinator.heartbeat(named(1), "b", BEAT)
        log.is_free.set()
        with pytest.raises(Conflict, match="has 1 members"):
            await deleting
        successor = await owning(stack, tmp_path, 2)
        assert (await successor.describe(named(1))).members.keys() == {"b"}


async def test_an_event_of_a_deleted_group_does_not_bring_it_back(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        coordinator = await owning(stack, tmp_path, 1)
        await coordinator.heartbeat(named(1), "a", BEAT)
        await coordinator.leave(named(1), "a")
        hosted = coordinator._hosted[named(1)]
        await coordinator.delete(named(1))
        hosted.group.reported = {"orders": 1}  # as a report of the lag that was under way
        await coordinator._publish(named(1), hosted)
        assert [*coordinator.groups()] == []


async def test_a_lag_topic_that_does_not_answer_holds_up_no_other_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag_topic, "DELETED_WITHIN_S", 0.2)
    async with AsyncExitStack() as stack:
        coordinator = await reported(stack, tmp_path, 1, 2, 3, retention_s=0.3)
        with pytest.raises(LogUnavailable, match="could not be deleted from group-lag within"):
            async with asyncio.timeout(LONG_S):
                await coordinator.delete(named(1))
        assert named(1) in coordinator.groups()
        await coordinator.heartbeat(named(4), "a", BEAT)
        await coordinator.leave(named(4), "a")
        await until_gone(coordinator, named(4))
        assert {*coordinator.groups()} == {named(1), named(2), named(3)}, "their records say what is to be deleted"
        log_of(coordinator).is_free.set()
        for number in (1, 2, 3):
            await until_gone(coordinator, named(number))


class Counted(SqliteLog):
    """Counts its appends."""

    appends = 0

    async def append(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        self.appends += 1
        await super().append(topic, partition, payloads)


async def test_hundreds_of_groups_are_taken_over_with_three_appends(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        former = await owning(stack, tmp_path, 1)
        await asyncio.gather(*(former.heartbeat(named(number), "a", BEAT) for number in range(300)))
        log = Counted(tmp_path / "groups.db")
        await log.start(5)
        stack.push_async_callback(log.close)
        later = Coordinator(GroupStore(log), KnownTopics(), asyncio.get_running_loop().time)
        later.attached(Owner(Token(1, 0, 2)))
        await later.start()
        await stack.enter_async_context(in_background(later.run()))
        before = log.appends
        await later.acquire(BUNDLE, Token(1, 0, 2), None)
        assert log.appends - before == 2
        assert (await later.describe(named(299))).members.keys() == {"a"}
        table = later._store.table
        async with asyncio.timeout(LONG_S):
            while any(table.outdated(each, Token(1, 0, 2)) for each in table):
                await asyncio.sleep(0.01)
        assert log.appends - before == 3, "what the former owner wrote is deleted at once, and nothing waits for it"
