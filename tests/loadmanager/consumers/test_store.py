"""Which records of a group count, when a former owner writes late, and a new one dies on the way."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loadmanager.consumers.coordinator.records import (
    GroupRecord,
    MemberRecord,
    Settings,
    Subscription,
    encoded,
    key_of,
)
from loadmanager.consumers.coordinator.store import Fenced, GroupStore, GroupTable
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.law.record import Token
from tests.loadmanager.consumers.running import in_background

G = "persistent://shop/orders/billing"
FIRST, SECOND, THIRD = (Token(1, 0, offset) for offset in (5, 9, 12))


def member(revision: int) -> bytes:
    return encoded(MemberRecord(Subscription(("orders",)), 1, revision))


def own(*, complete: bool = True) -> bytes:
    return encoded(GroupRecord(complete=complete))


@pytest.fixture
def table() -> GroupTable:
    """A group of one member, under the first token."""
    table = GroupTable()
    table.apply(key_of(G, FIRST, "a"), member(1))
    table.apply(key_of(G, FIRST), own())
    return table


def revisions(table: GroupTable) -> dict[str, int]:
    return {name: each.revision for name, each in table.valid(G).items() if isinstance(each, MemberRecord)}


def test_behind_a_fence_the_former_owner_writes_in_vain(table: GroupTable) -> None:
    table.apply(key_of(G, SECOND), own(complete=False))
    table.apply(key_of(G, FIRST, "a"), member(2))
    table.apply(key_of(G, FIRST, "b"), member(1))
    assert revisions(table) == {"a": 1}


def test_behind_a_fence_the_former_owner_deletes_nothing(table: GroupTable) -> None:
    table.apply(key_of(G, SECOND), own(complete=False))
    table.apply(key_of(G, FIRST, "a"), None)
    assert revisions(table) == {"a": 1}


def test_an_owner_that_died_before_it_was_complete_changed_nothing(table: GroupTable) -> None:
    table.apply(key_of(G, SECOND), own(complete=False))
    table.apply(key_of(G, SECOND, "a"), member(7))
    assert revisions(table) == {"a": 1}
    assert table.newest(G) == SECOND
    table.apply(key_of(G, THIRD), own(complete=False))
    table.apply(key_of(G, SECOND), own())
    assert revisions(table) == {"a": 1}


def test_a_complete_owner_counts_and_cleans_up(table: GroupTable) -> None:
    table.apply(key_of(G, SECOND), own(complete=False))
    table.apply(key_of(G, SECOND, "a"), member(7))
    table.apply(key_of(G, SECOND), own())
    assert revisions(table) == {"a": 7}
    for key, value in table.outdated(G, SECOND):
        table.apply(key, value)
    assert table.outdated(G, SECOND) == []
    assert revisions(table) == {"a": 7}


def test_a_group_without_records_is_gone(table: GroupTable) -> None:
    table.apply(key_of(G, FIRST, "a"), None)
    table.apply(key_of(G, FIRST), None)
    assert list(table) == []
    assert table.valid(G) == {}


@asynccontextmanager
async def store(directory: Path) -> AsyncGenerator[GroupStore]:
    log = SqliteLog(directory / "groups.db")
    await log.start(5)
    found = GroupStore(log)
    await found.start()
    try:
        async with in_background(found.run()):
            yield found
    finally:
        await log.close()


async def test_a_former_owner_learns_that_it_is_fenced(tmp_path: Path) -> None:
    async with store(tmp_path) as former, store(tmp_path) as later:
        assert await former.take_over([G], FIRST) == {G: {}}
        await former.write(G, FIRST, [(key_of(G, FIRST, "a"), member(1)), (key_of(G, FIRST), own())])
        await later.catch_up()
        assert (await later.take_over([G], SECOND))[G].keys() == {"", "a"}
        with pytest.raises(Fenced, match="another coordinator"):
            await former.write(G, FIRST, [(key_of(G, FIRST, "b"), member(1))])
        await later.catch_up()
        assert later.table.valid(G).keys() == {"", "a"}
        with pytest.raises(Fenced):
            await former.take_over([G], FIRST)


async def test_the_same_owner_may_take_over_again(tmp_path: Path) -> None:
    async with store(tmp_path) as only:
        await only.take_over([G], FIRST)
        record = encoded(GroupRecord(Settings(strategy="AVG")))
        await only.write(G, FIRST, [(key_of(G, FIRST), record)])
        assert (await only.take_over([G], FIRST))[G][""] == GroupRecord(Settings(strategy="AVG"))


async def test_an_entry_of_somebody_else_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with store(tmp_path) as only:
        await only.write(G, FIRST, [("nonsense", b"{}"), (key_of(G, FIRST), b"{"), (key_of(G, FIRST), own())])
        assert list(only.table) == [G]
    assert caplog.text.count("is skipped") == 2
