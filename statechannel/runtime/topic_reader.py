"""Follows one topic, from its beginning or from a time, and writes to it. Views and documents are built on it.

Hands each batch on, in order, exactly once, and decides nothing about entries. Retries while the log does not answer.
Knows when everything is read that was there at the start, even if compaction left gaps at the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

from statechannel.errors import InvariantError, LogError, LogUnavailable
from statechannel.ports import Log, LogEntry, Payload, TopicSpec

R = TypeVar("R")

_SETTLED_S = 0.5
HANDED_ON_AT_ONCE = 50
"""Entries decoded in one turn of the loop: a load report may be of a hundred bundles."""
_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 5.0
_log = logging.getLogger(__name__)


class TopicReader:
    """Call `start()`, then `run()`; `take` gets the entries on the loop, and must not raise.

    Skips entries that the log took before `since_ms` (its wall clock, asked at the start). `before` is awaited with the
    entries ahead of `take`, for long work in steps; it must not raise either.
    """

    def __init__(
        self,
        log: Log,
        spec: TopicSpec,
        take: Callable[[Sequence[LogEntry]], None],
        timeout_s: float = 10.0,
        since_ms: Callable[[], int] | None = None,
        before: Callable[[Sequence[LogEntry]], Awaitable[None]] | None = None,
    ) -> None:
        self.topic = spec.name
        self.starts: tuple[int, ...] = ()
        """The topic's ends when this reader started: entries below are older."""
        self._log = log
        self._spec = spec
        self._take = take
        self._timeout_s = timeout_s
        self._since_ms = since_ms
        self._before = before
        self._next: list[int] = []
        self._arrived = asyncio.Event()
        self._ready = asyncio.Event()

    # --- reading

    @property
    def started(self) -> bool:
        """Whether `start` has succeeded."""
        return bool(self._next)

    @property
    def partitions(self) -> int:
        """The number of partitions, 0 before the start."""
        return len(self._next)

    @property
    def ready(self) -> bool:
        """Whether everything that was in the topic at the start has been read."""
        return self._ready.is_set()

    async def wait_ready(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until it is ready. Returns True if it is."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            return False
        return True

    async def start(self) -> int:
        """Create or check the topic and note its ends; returns its number of partitions.

        Raises LogUnavailable or TopicMismatch.
        """
        await self.answer(self._log.open_topic(self._spec))
        await self.rewind()
        return self.partitions

    def forget(self) -> None:
        """Nothing counts as read any more, until `rewind` and the next `run`. Not while it runs."""
        self._ready.clear()

    async def rewind(self) -> None:
        """Note the topic's present ends, and where to begin. Not while it runs. Raises LogUnavailable."""
        self.starts = await self.answer(self._log.ends(self.topic))
        self._next = [await self._first(partition) for partition in range(len(self.starts))]

    async def _first(self, partition: int) -> int:
        if self._since_ms is None:
            return 0
        return await self.answer(self._log.offset_at(self.topic, partition, self._since_ms()))

    async def run(self) -> None:
        """Read until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read())
            group.create_task(self._become_ready())

    async def catch_up(self) -> None:
        """Return once everything that is in the topic now has been read. Raises LogUnavailable."""
        await self._catch_up(await self.answer(self._log.ends(self.topic)))

    async def _read(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                tail = self._log.tail(self.topic, tuple(self._next))
                async with aclosing(tail):
                    async for entries in tail:
                        retry_s = _FIRST_RETRY_S
                        for begin in range(0, len(entries), HANDED_ON_AT_ONCE):
                            some = entries[begin : begin + HANDED_ON_AT_ONCE]
                            if self._before is not None:
                                await self._before(some)
                            self._hand_on(some)
                            await asyncio.sleep(0)
            except LogError as error:
                _log.warning("the view of %s keeps its present content: %s", self.topic, error)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _LAST_RETRY_S)

    def _hand_on(self, entries: Sequence[LogEntry]) -> None:
        self._take(entries)
        for entry in entries:
            self._next[entry.partition] = entry.offset + 1
        self._arrived.set()

    async def _become_ready(self) -> None:
        while not self.ready:
            try:
                await self._catch_up(self.starts)
                self._ready.set()
            except LogUnavailable:
                await asyncio.sleep(_SETTLED_S)

    async def _catch_up(self, ends: Sequence[int]) -> None:
        """Return once everything before these offsets has been read.

        The last offsets of a compacted topic may be gaps: if nothing comes for a while, ask the log whether there is
        more. Silence alone proves nothing, since on a busy machine the tail may only be late.
        """
        while any(read < end for read, end in zip(self._next, ends, strict=True)):
            self._arrived.clear()
            try:
                async with asyncio.timeout(_SETTLED_S):
                    await self._arrived.wait()
            except TimeoutError:
                if not await self._holds_more(ends):
                    return

    async def _holds_more(self, ends: Sequence[int]) -> bool:
        """Whether the log has an entry before these offsets that has not come yet."""
        for partition, end in enumerate(ends):
            if self._next[partition] < end and await self.answer(self._holds(partition, end)):
                return True
        return False

    async def _holds(self, partition: int, end: int) -> bool:
        batches = self._log.read(self.topic, partition, self._next[partition])
        async with aclosing(batches):
            async for entries in batches:
                if entries:
                    return entries[0].offset < end
        return False

    # --- writing

    async def append(self, partition: int, payloads: Sequence[Payload]) -> None:
        """As `Log.append`, with a time-out. Raises InvariantError before the start."""
        if not self.started:
            raise InvariantError(f"start() the view of {self.topic} before writing to it")
        await self.answer(self._log.append(self.topic, partition, payloads))

    async def answer(self, question: Awaitable[R]) -> R:
        """Await the log's answer. Raises LogUnavailable after the time-out."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await question
        except TimeoutError:
            raise LogUnavailable(f"topic {self.topic}: no answer from the log within {self._timeout_s} s") from None
