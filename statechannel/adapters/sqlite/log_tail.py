"""The state of one `tail` or `read` call of `SqliteLog`, between the reader's thread and the loop.

The thread reads ahead up to a bound, then waits for room; the loop takes batches and says when there is room again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from statechannel.adapters.sqlite.log_queries import Extent
from statechannel.adapters.sqlite.topics import OFFSETS, StoredTopic
from statechannel.errors import LogError, LogUnavailable
from statechannel.ports import LogEntry

READ_AHEAD_BATCHES = 16
_READ_AHEAD_LOW = 8


class Tail:
    """Positions and batches of one reader. The thread owns the first group of attributes, the loop the second."""

    def __init__(self, topic: StoredTopic, starts: Mapping[int, int], *, only_what_is_there: bool = False) -> None:
        self.topic = topic
        self.positions = dict(starts)
        self.aligned: set[int] = set()
        """Partitions in which no chunk reaches across the position."""
        self.only_what_is_there = only_what_is_there
        """True for a `read`: it ends, and has one partition."""
        self._before: int | None = None
        self.is_over = False
        self.delivered = 0

        self.taken = 0
        self.batches: deque[Sequence[LogEntry]] = deque()
        self.failure: LogError | None = None
        self.ended = False
        self.arrived = asyncio.Event()

    # --- the thread
    @property
    def has_room(self) -> bool:
        return self.delivered - self.taken < READ_AHEAD_BATCHES

    def end_of(self, extent: Extent) -> int:
        """The offset before which to read at present.

        A `read` of a plain topic keeps the end that it saw first. A `read` of a compacted topic goes on until it finds
        no more: a key that is replaced meanwhile must not be missed.
        """
        if not self.only_what_is_there:
            return extent.end
        if self._before is None:
            self._before = OFFSETS if self.topic.compacted else extent.end
        return self._before

    # --- the loop
    def deliver(self, batch: Sequence[LogEntry]) -> None:
        self.batches.append(batch)
        self.arrived.set()

    def end(self) -> None:
        """The `read` is complete: no batch comes after those delivered."""
        self.ended = True
        self.arrived.set()

    def fail(self, error: LogError) -> None:
        if not self.ended and self.failure is None:
            self.failure = error
            self.arrived.set()

    async def take(self, nudge: Callable[[], None], timeout_s: float | None) -> Sequence[LogEntry] | None:
        """The next batch, None at the end of a `read`; LogUnavailable if it does not come within `timeout_s`."""
        while not self.batches:
            if self.ended:
                return None
            if self.failure is not None:
                raise self.failure
            self.arrived.clear()
            await self._arrival(timeout_s)
        self.taken += 1
        if self.delivered - self.taken == _READ_AHEAD_LOW:
            nudge()
        return self.batches.popleft()

    async def _arrival(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self.arrived.wait()
        except TimeoutError:
            text = f"{self.topic.name!r} could not be read for {timeout_s:g} s; check the disk and the file"
            raise LogUnavailable(text) from None
