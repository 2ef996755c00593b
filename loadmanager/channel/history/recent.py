"""The last changes of this broker's replica, in its order. Bounded, and shared by all watches.

A watch that reads too slowly finds that its next event was dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice

import msgspec

from statechannel.law.record import Action
from statechannel.law.verdict import Change
from statechannel.runtime.replica import Replica

CHANGES_KEPT = 10_000
BYTES_KEPT = 32 << 20
CHANGE_BYTES, BUNDLE_BYTES = 1_000, 500
"""About how many bytes a change and each of its bundles take: one change may create 65,536 bundles."""


class Reloaded(msgspec.Struct, frozen=True):
    """The replica fell behind the trimmed log: a snapshot up to `next_offset` replaced this partition's table."""

    partition: int
    next_offset: int


Event = Change | Reloaded


class RecentChanges:
    """Listens from its construction until `close()`. Positions count events since then, and only grow."""

    def __init__(self, replica: Replica, changes_kept: int, bytes_kept: int = BYTES_KEPT) -> None:
        self._replica = replica
        self._changes_kept = changes_kept
        self._bytes_kept = bytes_kept
        self._events: deque[Event] = deque()
        self._bytes = 0
        self._first = 0
        self._known_from: dict[int, int] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        replica.listen(self._changed)
        replica.on_reload(self._reloaded)

    def close(self) -> None:
        """Stop listening."""
        self._replica.unlisten(self._changed)
        self._replica.off_reload(self._reloaded)

    @property
    def end(self) -> int:
        """The position of the next event."""
        return self._first + len(self._events)

    def after(self, position: int, most: int) -> list[Event] | None:
        """Up to `most` events from a position on; None if the first of them was dropped already."""
        if position < self._first:
            return None
        skipped = position - self._first
        return list(islice(self._events, skipped, skipped + most))

    def known_from(self, partition: int) -> int:
        """The offset from which on all changes of a partition are kept."""
        return self._known_from.get(partition, self._replica.table.next_offset(partition))

    def of_partition(self, partition: int, start: int) -> list[Change]:
        """The partition's changes from an offset on, which must not be below `known_from`."""
        return [e for e in self._events if isinstance(e, Change) and e.partition == partition and e.offset >= start]

    async def more(self, timeout_s: float) -> None:
        """Return at the next event, or after `timeout_s`."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(woken)
        try:
            await asyncio.wait((woken,), timeout=timeout_s)
        finally:
            self._waiting.discard(woken)

    def _changed(self, change: Change) -> None:
        self._known_from.setdefault(change.partition, change.offset)
        if change.record.action is not Action.NOOP:  # a no-op only moves the offset
            self._keep(change)

    def _reloaded(self, partition: int) -> None:
        next_offset = self._known_from[partition] = self._replica.table.next_offset(partition)
        self._keep(Reloaded(partition, next_offset))

    def _keep(self, event: Event) -> None:
        self._events.append(event)
        self._bytes += _size(event)
        while len(self._events) > self._changes_kept or (self._bytes > self._bytes_kept and len(self._events) > 1):
            dropped = self._events.popleft()
            self._first += 1
            self._bytes -= _size(dropped)
            if isinstance(dropped, Change):
                least = max(self._known_from[dropped.partition], dropped.offset + 1)
                self._known_from[dropped.partition] = least
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(None)


def _size(event: Event) -> int:
    if isinstance(event, Reloaded):
        return CHANGE_BYTES
    hand_offs = sum(len(subject.hand_off) for subject in event.record.subjects if subject.hand_off is not None)
    return CHANGE_BYTES + BUNDLE_BYTES * len(event.transitions) + hand_offs
