"""What an answer promises is in the log before it is sent, also if another request writes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from loadmanager import Bundle, Claim, Token
from loadmanager.consumer.assignment import Membership
from loadmanager.consumers.coordinator.messages import Answer
from loadmanager.consumers.coordinator.records import Subscription
from loadmanager.consumers.coordinator.service import Coordinator
from loadmanager.consumers.coordinator.store import GroupStore
from loadmanager.testing import NAMESPACE
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.law.bundle import even_boundaries, tile
from statechannel.ports import Log
from tests.loadmanager.consumers.running import KnownTopics, in_background

GROUP = f"persistent://{NAMESPACE}/billing"
CLAIM = Claim(tile(NAMESPACE, even_boundaries(1))[0], Token(1, 0, 7))
LONG_S = 20.0


class HeldLog:
    """A log whose appends wait while `open` is not set; `held` of them do."""

    def __init__(self, log: SqliteLog) -> None:
        self._log = log
        self.open = asyncio.Event()
        self.open.set()
        self.held = 0

    async def append(self, *args: Any, **options: Any) -> Any:
        self.held += 1
        await self.open.wait()
        self.held -= 1
        return await self._log.append(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class Owner:
    """A broker that owns the bundle for ever."""

    @asynccontextmanager
    async def admit(self, topic: str, timeout_s: float = 5.0) -> AsyncGenerator[Claim]:
        yield CLAIM

    def claim(self, topic: str) -> Claim:
        return CLAIM

    async def quiesce(self, bundle: Bundle, timeout_s: float | None = None) -> bool:
        return True


class World:
    """A coordinator, and members that do at once what they are told."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._members: dict[str, Membership] = {}

    async def beat(self, name: str, wait_s: float = 0.0) -> list[int]:
        """A heartbeat; what the member may read by its answer."""
        member = self._members.setdefault(name, Membership(name, Subscription(("orders",))))
        beat = member.beat(time.monotonic() * 1000)
        answer = await self._coordinator.heartbeat(GROUP, name, beat, wait_s)
        assert isinstance(answer, Answer), answer
        member.given_up(member.answered(beat.sequence, answer).revoked)
        return list(answer.partitions.get("orders", ()))


@pytest.mark.parametrize("wait_s", [0.0, LONG_S], ids=["at once", "when there are news"])
async def test_no_answer_overtakes_what_another_request_writes(tmp_path: Path, wait_s: float) -> None:
    async with AsyncExitStack() as stack:
        log = SqliteLog(tmp_path / "groups.db")
        await log.start(5)
        stack.push_async_callback(log.close)
        held = HeldLog(log)
        coordinator = Coordinator(GroupStore(cast("Log", held)), KnownTopics(), time.monotonic, topics_every_s=0.05)
        coordinator.attached(Owner())
        await coordinator.start()
        await stack.enter_async_context(in_background(coordinator.run()))
        await coordinator.acquire(CLAIM.bundle, CLAIM.token, None)
        world = World(coordinator)
        async with asyncio.timeout(LONG_S):
            while len(await world.beat("a", 0.05)) < 6:
                pass
            await world.beat("a")
            await world.beat("b")
            assert len(await world.beat("a")) == 3, "it is told, and gives three up"
            early = asyncio.create_task(world.beat("b", wait_s)) if wait_s else None
            await asyncio.sleep(0)
            held.open.clear()
            giving_up = asyncio.create_task(world.beat("a"))
            while not held.held:
                await asyncio.sleep(0)
            late = early or asyncio.create_task(world.beat("b"))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not giving_up.done()
            assert not late.done(), "it would promise what a crash may still undo"
            held.open.set()
            assert len(await late) == 3
            await giving_up
