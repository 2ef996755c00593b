"""Consumer groups go with the channel: a move takes their members along, a file their settings."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from loadmanager.channel.migration.export import _seal, decode, encode, fill_groups, groups_in
from loadmanager.consumers.coordinator.messages import Answer, Beat, Refusal, Why
from loadmanager.consumers.coordinator.records import GroupRecord, Settings, Subscription, encoded, key_of
from loadmanager.consumers.coordinator.service import Coordinator
from loadmanager.consumers.coordinator.store import GROUPS, TOPIC
from loadmanager.errors import Conflict, Invalid
from loadmanager.testing import NAMESPACE
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.law.record import Token
from statechannel.ports import Payload
from tests.loadmanager.channel.migration.channels import exported, replaced, two_namespaces
from tests.loadmanager.consumers.running import KnownTopics, running
from tests.loadmanager.consumers.test_forgetting import BUNDLE, Owner

NAME = f"persistent://{NAMESPACE}/billing"
WEIGHTED = Settings(strategy="WEIGHTED_STICKY")


class Here:
    """A log in a directory, and a coordinator on it whose tokens are of one generation."""

    def __init__(self, stack: AsyncExitStack, directory: Path, generation: int) -> None:
        directory.mkdir()
        self._stack, self._directory = stack, directory
        self._owner = Owner(Token(generation, 0, 1))
        self.log = SqliteLog(directory / "groups.db")
        self.coordinator: Coordinator

    async def open(self) -> SqliteLog:
        await self.log.start(5)
        self._stack.push_async_callback(self.log.close)
        return self.log

    async def coordinate(self) -> Coordinator:
        self.coordinator = await running(self._stack, self._directory, KnownTopics())
        self.coordinator.attached(self._owner)
        await self.coordinator.acquire(BUNDLE, self._owner.owned.token, None)
        return self.coordinator

    async def beat(self, member: str, epoch: int = 0, sequence: int = 1) -> Answer | Refusal:
        return await self.coordinator.heartbeat(NAME, member, Beat(Subscription(("orders",)), epoch, 0, sequence))


async def filled(here: Here) -> int:
    """A group with settings and a member that may read everything; the member's epoch."""
    await here.open()
    coordinator = await here.coordinate()
    await coordinator.configure(NAME, WEIGHTED)
    answer, sequence = await here.beat("m"), 1
    while isinstance(answer, Answer) and not answer.partitions:
        sequence += 1
        answer = await here.beat("m", answer.epoch, sequence)
    assert isinstance(answer, Answer)
    return answer.epoch


async def test_a_move_takes_members_along_and_nobody_else_reads_what_they_may_be_reading(tmp_path: Path):
    async with AsyncExitStack() as stack:
        old, new = Here(stack, tmp_path / "old", 1), Here(stack, tmp_path / "new", 2)
        epoch = await filled(old)
        found = await groups_in(old.log, members=True)
        assert await fill_groups(await new.open(), found) == len(found) == 2
        assert await fill_groups(new.log, found) == 0, "an interrupted move is run again"
        later = await new.coordinate()
        described = await later.describe(NAME)
        assert (described.settings, set(described.holders.values())) == (WEIGHTED, {"m"})
        other = await new.beat("n")
        assert isinstance(other, Answer)
        assert other.partitions == {}
        assert isinstance(await new.beat("m", epoch, 99), Answer), "it goes on in the new log"


async def test_a_file_has_the_settings_and_members_of_an_earlier_time_have_to_join_again(tmp_path: Path):
    async with AsyncExitStack() as stack:
        old, new = Here(stack, tmp_path / "old", 1), Here(stack, tmp_path / "new", 2)
        epoch = await filled(old)
        export = replaced(exported(two_namespaces()), groups=await groups_in(old.log, members=False))
        data = encode(export)
        assert data.startswith(b"LMEXPORT 03 ")
        assert decode(data).groups == export.groups
        assert await fill_groups(await new.open(), decode(data).groups) == 1
        later = await new.coordinate()
        assert (await later.describe(NAME)).settings == WEIGHTED
        refused = await new.beat("m", epoch, 99)
        assert isinstance(refused, Refusal)
        assert refused.why is Why.UNKNOWN_MEMBER


@pytest.mark.parametrize("members", [True, False])
async def test_what_a_former_owner_writes_behind_a_fence_replaces_nothing(tmp_path: Path, members: bool):
    async with AsyncExitStack() as stack:
        old, new = Here(stack, tmp_path / "old", 1), Here(stack, tmp_path / "new", 2)
        await filled(old)
        before = await groups_in(old.log, members=True)  # its coordinator may write another one of the same key later
        fence = key_of(NAME, Token(1, 0, 2)).encode(), encoded(GroupRecord(complete=False))
        late = [(key, encoded(GroupRecord()) if key.endswith(b"\n") else value) for key, value in before]
        unread = [(key, b"not a record") for key, _ in before]
        new_member = key_of(NAME, Token(1, 0, 1), "n").encode(), before[0][1]
        await old.log.append(TOPIC, 0, [Payload(*each) for each in (fence, *late, *unread, new_member)])
        found = await groups_in(old.log, members=members)
        assert [key for key, _ in found] == [key for key, _ in before if members or key.endswith(b"\n")] + [fence[0]]
        assert found[-1] == fence
        assert not {value for _, value in found} & {encoded(GroupRecord()), b"not a record"}
        await fill_groups(await new.open(), found)
        described = await (await new.coordinate()).describe(NAME)
        assert (described.settings, set(described.members)) == (WEIGHTED, {"m"} if members else set())


async def test_what_is_deleted_stays_so_and_where_there_are_no_groups_no_topic_is_made(tmp_path: Path):
    async with AsyncExitStack() as stack:
        old, new = Here(stack, tmp_path / "old", 1), Here(stack, tmp_path / "new", 2)
        await filled(old)
        await old.coordinator.leave(NAME, "m")
        await old.coordinator.delete(NAME)
        assert await groups_in(old.log, members=True) == ()
        assert await fill_groups(await new.open(), ()) == 0
        assert not await new.log.has_topic(TOPIC)


async def test_a_log_with_other_groups_is_refused_and_keeps_them(tmp_path: Path):
    async with AsyncExitStack() as stack:
        old, new = Here(stack, tmp_path / "old", 1), Here(stack, tmp_path / "new", 2)
        await filled(old)
        await filled(new)
        keys = {key for key, _ in await groups_in(new.log, members=True)}
        with pytest.raises(Conflict, match="groups of its own"):
            await fill_groups(new.log, [*await groups_in(old.log, members=True), (b"other\n1-0-1\n", b"{}")])
        assert {key for key, _ in await groups_in(new.log, members=True)} == keys


def test_a_header_that_counts_more_groups_than_there_are_is_refused():
    data = encode(replaced(exported(two_namespaces()), groups=((b"k", b"v"),)))
    with pytest.raises(Invalid, match="lacks groups"):
        decode((body := data[:-33].replace(b'"groups":1', b'"groups":2', 1)) + _seal(body))


async def test_a_key_that_is_none_is_left_out_of_a_file(tmp_path: Path):
    async with AsyncExitStack() as stack:
        old = Here(stack, tmp_path / "old", 1)
        await filled(old)
        await old.log.open_topic(GROUPS)
        await old.log.append(TOPIC, 0, [Payload(b"\xff", b"1"), Payload(b"no key", b"1"), Payload(None, b"1")])
        assert len(await groups_in(old.log, members=False)) == 1
