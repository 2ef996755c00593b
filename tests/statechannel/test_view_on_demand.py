"""A view that reads its topic only while it is needed: the states in `view_on_demand.py`, on a log that counts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.errors import LogUnavailable
from statechannel.ports import LogEntry
from statechannel.runtime import view_on_demand
from statechannel.runtime.view_on_demand import OnDemandView


class Counted:
    """A log that counts the entries that reach its reader, and can be silent."""

    def __init__(self, log: SqliteLog) -> None:
        self._log = log
        self.entries = 0
        self.tails = 0
        self.answers = asyncio.Event()
        self.answers.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def ends(self, topic: str) -> tuple[int, ...]:
        if not self.answers.is_set():
            raise LogUnavailable("silent")
        return await self._log.ends(topic)

    async def tail(self, topic: str, starts: Sequence[int]) -> AsyncIterator[Sequence[LogEntry]]:
        self.tails += 1
        try:
            async with aclosing(self._log.tail(topic, starts)) as tail:
                async for entries in tail:
                    await self.answers.wait()
                    self.entries += len(entries)
                    yield entries
        finally:
            self.tails -= 1


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[Counted]:
    log = SqliteLog(tmp_path / "log.db")
    await log.start(5)
    yield Counted(log)
    await log.close()


@pytest.fixture
async def view(log: Counted) -> AsyncIterator[OnDemandView[int]]:
    view = OnDemandView[int](
        log, "numbers", decode=int, encode=lambda value: b"%d" % value, ttl_s=3600, partitions=2, followed=True
    )
    await view.start()
    task = asyncio.create_task(view.run())
    yield view
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


NUMBERS = {f"key-{n}": n for n in range(100)}


async def put_all(view: OnDemandView[int]) -> None:
    for key, value in NUMBERS.items():
        await view.put(key, value)


async def test_it_writes_but_reads_nothing_while_nobody_needs_it(log: Counted, view: OnDemandView[int]) -> None:
    await put_all(view)
    await view.delete("key-0")
    assert (dict(view), view.ready) == ({}, False)
    assert (log.tails, log.entries) == (0, 0)


async def test_a_need_reads_everything_follows_and_leaves_nothing_behind(log: Counted, view: OnDemandView[int]) -> None:
    for _term in range(3):
        await put_all(view)
        with view.need():
            assert await view.read(60)
            assert dict(view) == NUMBERS
            await view.put("new", 1)
            await until(lambda: view.get("new") == 1)
            await view.delete("new")
            await until(lambda: "new" not in view)
        await until(lambda: log.tails == 0)
        assert (dict(view), view.ready) == ({}, False)


async def test_it_is_not_ready_before_the_end_of_what_there_was_when_it_was_needed(
    log: Counted, view: OnDemandView[int]
) -> None:
    """Not the end as of the start of the process: a leader would decide on what was there hours ago."""
    await put_all(view)
    log.answers.clear()
    with view.need():
        assert not await view.read(0.3)
        log.answers.set()
        assert await view.read(60)
        assert dict(view) == NUMBERS


async def test_needs_overlap(log: Counted, view: OnDemandView[int]) -> None:
    await put_all(view)
    with view.need():
        with view.need():
            assert await view.read(60)
        await asyncio.sleep(0)
        assert view.ready
        await view.put("new", 1)
        await until(lambda: view.get("new") == 1)
    await until(lambda: log.tails == 0)


async def test_who_asks_is_answered_and_who_asks_again_soon_is_answered_without_another_reading(
    log: Counted, view: OnDemandView[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_on_demand, "LINGER_S", 0.5)
    await put_all(view)
    for _ in range(3):
        assert await view.read(60)
        assert dict(view) == NUMBERS
    assert log.entries == len(NUMBERS)
    await until(lambda: not view.ready)
    assert (dict(view), log.tails) == ({}, 0)


async def test_questions_during_a_need_do_not_outlast_it(log: Counted, view: OnDemandView[int]) -> None:
    await put_all(view)
    with view.need():
        assert await view.read(60)
        assert await view.read(60)
    await until(lambda: not view.ready and log.tails == 0)


async def test_a_sweep_of_a_view_that_is_not_needed_deletes_nothing(view: OnDemandView[int]) -> None:
    await put_all(view)
    assert await view.sweep() == ()
