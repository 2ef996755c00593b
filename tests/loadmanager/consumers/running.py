"""Coordinators for tests: their topics are told, their log is a SQLite file, and they run until the test has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Collection, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from loadmanager.consumers.coordinator.ports import Committed
from loadmanager.consumers.coordinator.records import Partition
from loadmanager.consumers.coordinator.service import Coordinator
from loadmanager.consumers.coordinator.store import GroupStore
from statechannel.adapters.kafka.group_commits import GroupInUse
from statechannel.adapters.sqlite.log import SqliteLog
from tests.loadmanager.consumers.backlog.memory_offsets import MemoryOffsets


class KnownTopics:
    """Two topics, and what was committed."""

    def __init__(self, known: dict[str, int] | None = None) -> None:
        self.known = known or {"orders": 6}
        self.blind = 0
        """So many times nothing is seen."""
        self.committed: dict[Partition, int] = {}
        self.pulled: dict[Partition, int] = {}
        self.retained_s: float | None = 604_800.0
        self.is_fresh = False
        """Whether what was not committed has no offset; else it is at 0."""
        self.in_use = False
        """Whether Kafka has members of the group."""
        self.fenced: set[str] = set()
        self.offsets = MemoryOffsets()

    @property
    def changed(self) -> dict[Partition, int]:
        """What was committed, except at 0."""
        return {each: offset for each, offset in self.committed.items() if offset}

    def writer(self, group: str) -> str:
        return "one"

    async def fence(self, writers: Collection[str]) -> None:
        self.fenced.update(writers)

    async def sizes(self, topics: Iterable[str]) -> Mapping[str, int]:
        if self.blind:
            self.blind -= 1
            return {}
        return {topic: self.known[topic] for topic in topics if topic in self.known}

    async def commits(self, group: str, partitions: Collection[Partition]) -> Mapping[Partition, Committed]:
        if self.is_fresh:
            partitions = self.committed.keys() & set(partitions)
        return {each: Committed(self.committed.get(each, 0), self.pulled.get(each)) for each in partitions}

    async def retention_s(self) -> float | None:
        return self.retained_s

    async def commit(self, group: str, offsets: Mapping[Partition, int], pulled: Mapping[Partition, int]) -> None:
        if self.in_use:
            raise GroupInUse(f"{group} has other members")
        self.committed.update(offsets)
        self.pulled.update(pulled)

    async def delete(self, group: str) -> bool:
        if self.in_use:
            raise GroupInUse(f"{group} has other members")
        had, self.committed, self.pulled = bool(self.committed), {}, {}
        return had


async def running(stack: AsyncExitStack, directory: Path, topics: KnownTopics, **options: float) -> Coordinator:
    log = SqliteLog(directory / "groups.db")
    await log.start(5)
    stack.push_async_callback(log.close)
    coordinator = Coordinator(GroupStore(log), topics, time.monotonic, **{"topics_every_s": 0.1, **options})
    await coordinator.start()
    await stack.enter_async_context(in_background(coordinator.run()))
    return coordinator


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
