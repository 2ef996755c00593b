"""`Directory` in moments that a server cannot be brought to: what is read just then, by a session that is scripted."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from statechannel.adapters.zookeeper.session import Session, Watch
from statechannel.adapters.zookeeper.watches import LISTED_NAMES_PER_S, Directory
from statechannel.errors import CoordinationUnavailable
from statechannel.ports import WatchCounts


class Names:
    """A session that lists these names."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)

    async def children(self, _path: str, _watch: Watch) -> list[str]:
        return self.names


class Reading:
    """Reads of children that wait until they may go on."""

    def __init__(self) -> None:
        self.under_way = asyncio.Event()
        self.may_end = asyncio.Event()
        self.reads: list[str] = []
        self.fails = False
        self.directory: Directory[str] = Directory("/dir", self._read, lambda: None, WatchCounts())

    async def _read(self, _session: Session, name: str, _before: str | None, _watch: Watch) -> str:
        self.reads.append(name)
        self.under_way.set()
        try:
            await self.may_end.wait()
        finally:
            if self.fails:
                raise CoordinationUnavailable("lost")
        return f"value of {name}"

    async def refresh(self, *names: str) -> None:
        await self.directory.refresh(cast("Any", Names(*names)))


async def test_who_is_cancelled_while_a_read_fails_ends():
    reading = Reading()
    task = asyncio.create_task(reading.refresh("a", "b"))
    await reading.under_way.wait()
    reading.fails = True
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_could_not_be_read_is_due_still():
    reading = Reading()
    reading.fails = True
    reading.may_end.set()
    with pytest.raises(CoordinationUnavailable):
        await reading.refresh("a", "b")
    assert reading.directory.stale
    reading.fails = False
    await reading.refresh("a", "b")
    assert not reading.directory.stale
    assert dict(reading.directory.values) == {"a": "value of a", "b": "value of b"}


async def test_what_is_read_while_the_link_is_lost_is_read_again():
    reading = Reading()
    task = asyncio.create_task(reading.refresh("a"))
    await reading.under_way.wait()
    reading.directory.link_lost()
    reading.may_end.set()
    await task
    assert reading.directory.stale
    await reading.refresh("a")
    assert reading.reads == ["a", "a"]
    assert not reading.directory.stale


async def test_what_changes_while_it_is_read_is_read_again():
    reading = Reading()
    task = asyncio.create_task(reading.refresh("a"))
    await reading.under_way.wait()
    reading.directory._mark("a")
    reading.may_end.set()
    await task
    assert reading.directory.stale
    await reading.refresh("a")
    assert reading.reads == ["a", "a"]


async def test_names_are_listed_no_faster_than_their_number_allows():
    loop, woken, reading = asyncio.get_running_loop(), asyncio.Event(), Reading()
    directory = reading.directory = Directory("/dir", reading._read, woken.set, WatchCounts())
    reading.may_end.set()
    began_s = loop.time()
    await reading.refresh(*(f"name-{number}" for number in range(400)))
    directory._names_noticed(None)
    await woken.wait()
    assert loop.time() - began_s >= 400 / LISTED_NAMES_PER_S
    assert directory.stale
