"""Reads backlogs for the endpoints: each at most once a second, however many ask, with a forecast from earlier ones.

Belongs to the endpoints' loop. A broker that coordinates groups has a client of Kafka already; others open one with the
first request.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from prometheus_client.metrics_core import Metric

from loadmanager.broker.node import Node
from loadmanager.broker.wiring import open_group_offsets
from loadmanager.consumers.backlog.figures import GroupBacklog
from loadmanager.consumers.backlog.filtering import Filter, FilteredBacklog
from loadmanager.consumers.backlog.forecast import Forecast, Window
from loadmanager.consumers.backlog.metrics import backlog_metrics
from loadmanager.consumers.backlog.port import GroupOffsets
from loadmanager.consumers.backlog.reading import BacklogReader
from loadmanager.consumers.backlog.sampling import Estimate, Limits
from loadmanager.errors import Unavailable
from loadmanager_api.groups.calling import ask, coordinator_of
from statechannel.errors import LogError

K = TypeVar("K")
T = TypeVar("T")

FRESH_S = 1.0
"""A backlog that was read so long ago is given again: pages of one list come from one reading."""
KEPT = 64
WINDOW_S = 300.0


class Read(msgspec.Struct, frozen=True):
    """A backlog, when it was read (milliseconds since 1970), and what will become of it."""

    backlog: GroupBacklog
    at_ms: int
    forecast: Forecast


Wanted = tuple[str, str | None, int]
"""A group, a topic (None: all of the group), and of how many queues the ages are read."""


class Backlogs:
    """The backlogs that one broker's endpoints give out."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._own: GroupOffsets | None = None
        self._looks = False
        """Whether records of a backlog are being looked at."""
        self._reads: OrderedDict[Wanted, tuple[float, asyncio.Task[Read]]] = OrderedDict()
        self._windows: OrderedDict[tuple[str, str | None], Window] = OrderedDict()

    async def groups(self) -> Sequence[str]:
        """The names of all groups in Kafka, in order. Raises Unavailable; Invalid if the log is not on Kafka."""
        return await self._asked(lambda reader: reader.groups())

    async def read(self, group: str, topic: str | None = None, ages: int = 0) -> Read:
        """As `BacklogReader.read`, at most `FRESH_S` old. Raises as it does; Invalid if the log is not on Kafka."""
        wanted = (group, topic, ages)
        until_s, task = self._reads.get(wanted, (0.0, None))
        if task is None or time.monotonic() >= until_s:
            task = asyncio.create_task(self._read(wanted))
            _keep(self._reads, wanted, (float("inf"), task))
            task.add_done_callback(lambda done: self._settle(wanted, done))
        return await asyncio.shield(task)

    async def filtered(self, group: str, topic: str, which: Filter, limits: Limits) -> Estimate:
        """How much of the group's backlog in a topic passes. One at a time: each reads up to `limits` records of Kafka.
        Raises as `read`; Unavailable while another one is under way."""
        if self._looks:
            raise Unavailable("this broker looks at the records of another backlog: try again", 1.0)
        self._looks = True
        try:
            known = (await self.read(group, topic)).backlog
            return await self._with_offsets(
                lambda offsets: FilteredBacklog(offsets, asyncio.to_thread).estimate(
                    known, topic, which.passes, limits=limits
                )
            )
        finally:
            self._looks = False

    def metrics(self) -> Iterator[Metric]:
        """Of the groups that this broker coordinates, as it read them last; no request to Kafka."""
        coordinator = coordinator_of(self._node)
        if coordinator is not None:
            yield from backlog_metrics(coordinator.lag.backlogs, self._node.world.wall_ms())

    async def _read(self, wanted: Wanted) -> Read:
        group, topic, ages = wanted
        topics = () if topic is None else (topic,)
        backlog = await self._asked(lambda reader: reader.read(group, topics, ages=ages))
        at_ms = self._node.world.wall_ms()
        window = self._windows.get((group, topic)) or Window(WINDOW_S)
        _keep(self._windows, (group, topic), window)
        window.add(time.monotonic(), backlog.sum(at_ms))
        return Read(backlog, at_ms, window.forecast())

    def _settle(self, wanted: Wanted, task: asyncio.Task[Read]) -> None:
        """The read is done and fresh from now on. Only those who waited for it hear of a failure."""
        failed = task.cancelled() or task.exception() is not None
        if self._reads.get(wanted, (0.0, None))[1] is task:
            if failed:
                del self._reads[wanted]
            else:
                self._reads[wanted] = (time.monotonic() + FRESH_S, task)

    async def _asked(self, work: Callable[[BacklogReader], Coroutine[Any, Any, T]]) -> T:
        return await self._with_offsets(lambda offsets: work(BacklogReader(offsets, asyncio.to_thread)))

    async def _with_offsets(self, work: Callable[[GroupOffsets], Coroutine[Any, Any, T]]) -> T:
        coordinator = coordinator_of(self._node)
        if coordinator is not None:
            return await ask(coordinator, lambda it: work(it.offsets))
        if self._own is None:
            try:
                self._own = open_group_offsets(self._node.settings)
            except LogError as error:
                raise Unavailable(str(error)) from error
        return await work(self._own)


def _keep(kept: OrderedDict[K, T], key: K, value: T) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > KEPT:
        kept.popitem(last=False)
