"""What the backlog needs to know of the place where topics and the groups' offsets are kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

ByQueue = Mapping[str, Mapping[int, int]]
"""Topic, queue: offset."""

Look = Callable[[bytes | None, bytes | None, Mapping[str, bytes]], bool]
"""Is shown a record's key, value and headers, and says whether to go on."""


class GroupOffsets(Protocol):
    """Consumer groups and their topics, in one store. Reads only.

    No method blocks the loop. Each raises LogUnavailable if the store does not answer in time, and LogError if it will
    not answer at all (lack of rights); the messages say what to do.
    """

    async def committed(self, group: str) -> tuple[ByQueue, ByQueue] | None:
        """All consumer offsets of a group, possibly none, and its known pull offsets. None if the group does not
        exist."""
        ...

    async def groups(self) -> Collection[str]:
        """The names of all groups."""
        ...

    async def queues(self, topics: Collection[str]) -> Mapping[str, int]:
        """How many queues these topics have, which are numbered from 0; topics that do not exist are left out."""
        ...

    async def racks(self, topics: Collection[str]) -> Mapping[str, Mapping[int, str]]:
        """By topic and queue, the rack of its first replica, which leads it while it can. Some may have none."""
        ...

    async def ends(self, queues: Mapping[str, Collection[int]]) -> ByQueue:
        """The offset after the last record of each queue; queues of which it is not known are left out."""
        ...

    async def begins(self, queues: Mapping[str, Collection[int]]) -> ByQueue:
        """The first offset that each queue still has; queues of which it is not known are left out."""
        ...

    async def since(self, queues: Mapping[str, Collection[int]], at_ms: int) -> ByQueue:
        """The offset of the first record of each queue that was stored at this time (milliseconds since 1970) or later;
        queues without such a record are left out."""
        ...

    async def stored_ms(self, places: Sequence[tuple[str, int, int]]) -> Mapping[tuple[str, int], int | None]:
        """When the record at an offset of a queue, or else the next one, was stored: by topic and queue.

        `places` are topic, queue, offset. In milliseconds since 1970; None if there is no such record. What could not
        be read in time is left out.
        """
        ...

    async def look(self, places: Sequence[tuple[str, int, int, int]], look: Look) -> bool:
        """Show the records of these places (topic, queue, first offset, end) to `look`, on another thread.

        Ends when `look` says so, or when all were shown; False if time ran out before, or a place could not be read.
        """
        ...
