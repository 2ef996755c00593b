"""Whoever waits for several works leaves none behind, and hears of the first failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from statechannel.runtime.tasks import all_or_first_failure, first_of


class Boom(Exception):
    """What one of them raises."""


class Works:
    """Works that wait to be let go; `ended` tells how each one ended."""

    def __init__(self) -> None:
        self.ended: dict[str, str] = {}
        self.begun = asyncio.Event()

    async def waits(self, name: str) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.ended[name] = "cancelled"
            raise

    async def ends(self, name: str) -> None:
        await asyncio.sleep(0)
        self.ended[name] = "done"

    async def fails(self, name: str) -> None:
        await asyncio.sleep(0)
        self.ended[name] = "failed"
        raise Boom(name)


@pytest.fixture
async def works() -> Works:
    return Works()


async def test_the_first_one_that_ends_ends_the_others(works: Works):
    await first_of(works.waits("a"), works.ends("b"), works.waits("c"))
    assert works.ended == {"a": "cancelled", "b": "done", "c": "cancelled"}


async def test_what_the_first_one_raised_is_raised(works: Works):
    with pytest.raises(Boom, match="b"):
        await first_of(works.waits("a"), works.fails("b"))
    assert works.ended == {"a": "cancelled", "b": "failed"}


async def test_all_are_waited_for(works: Works):
    await all_or_first_failure([works.ends("a"), works.ends("b")])
    assert works.ended == {"a": "done", "b": "done"}


async def test_there_may_be_none():
    await all_or_first_failure([])


async def test_the_first_failure_ends_the_others(works: Works):
    with pytest.raises(Boom, match="b"):
        await all_or_first_failure([works.waits("a"), works.fails("b"), works.ends("c")])
    assert works.ended == {"a": "cancelled", "b": "failed", "c": "done"}


Together = Callable[[Works], Coroutine[Any, Any, None]]


@pytest.mark.parametrize(
    "together",
    [lambda w: first_of(w.waits("a"), w.waits("b")), lambda w: all_or_first_failure([w.waits("a"), w.waits("b")])],
)
async def test_who_is_cancelled_leaves_nothing_behind(works: Works, together: Together):
    task = asyncio.ensure_future(together(works))
    await works.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert works.ended == {"a": "cancelled", "b": "cancelled"}
    assert asyncio.all_tasks() == {asyncio.current_task()}
