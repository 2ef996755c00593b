"""Reads the backlog of a consumer group from a store of offsets. `figures.py` says what the figures mean.

The groups' offsets are read before the ends, so that a record consumed meanwhile does not make a lag negative; what was
produced in between counts as lag.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from heapq import nlargest
from typing import NamedTuple

import msgspec

from loadmanager.consumers.backlog.figures import ABSENT, GroupBacklog, Offsets, Ordered, in_order
from loadmanager.consumers.backlog.port import ByQueue, GroupOffsets
from loadmanager.errors import Invalid, NotFound, Unavailable
from statechannel.errors import LogError
from statechannel.runtime.tasks import Blocking

MOST_READS = 1_000
"""Records that one request may read to learn ages."""


class BacklogReader:
    """Reads backlogs of groups that keep their offsets in one store. `run_blocking` runs slow work off the loop."""

    def __init__(self, offsets: GroupOffsets, run_blocking: Blocking) -> None:
        self._offsets = offsets
        self._run_blocking = run_blocking

    async def groups(self) -> Sequence[str]:
        """The names of all groups, in order. Raises Unavailable."""
        with translated():
            return sorted(await self._offsets.groups())

    async def read(self, group: str, topics: Sequence[str] = (), *, ages: int = 0) -> GroupBacklog:
        """The backlog of a group in these topics, by default in those in which it has committed an offset. Queues in
        which it has committed nothing wait from their begin on, also those of a group that is not there yet.

        Reads the ages of at most `ages` queues (0 to MOST_READS), those with the largest lags; the others stay undated.
        Raises Invalid, NotFound (no such group, no such topic) and Unavailable (the store does not answer).
        """
        if not group or not 0 <= ages <= MOST_READS:
            raise Invalid(f"name a consumer group, and ask for the ages of 0 to {MOST_READS} queues, not {ages}")
        with translated():
            found = await self._offsets.committed(group)
            if found is None and not topics:
                raise NotFound(
                    f"there is no consumer group {group!r}: it has no member and no committed offset. Check its name, "
                    "and that this user may describe it; a group appears with its first consumer, and ends when its "
                    "offsets expire. Name a topic to see what would wait for it"
                )
            committed, pulled = found or ({}, {})
            wanted = await self._wanted(committed, topics)
            ends = await self._offsets.ends(wanted)
            late = await self._run_blocking(lambda: _lagging(committed, ends))
            begins: ByQueue = await self._offsets.begins(late) if late else {}
            known: GroupBacklog = await self._run_blocking(
                lambda: _gather(group, wanted, Known(committed, pulled, ends, begins))
            )
            if ages:
                await self._date(known, ages)
        return known

    async def _wanted(self, committed: ByQueue, topics: Sequence[str]) -> Mapping[str, range]:
        """The queues to look at. A topic that was deleted since the group's commit is left out."""
        counts = await self._offsets.queues(topics or list(committed))
        if missing := sorted(set(topics) - set(counts)):
            raise NotFound(
                f"there is no topic {', '.join(map(repr, missing))}: check the name, and that this user may describe it"
            )
        return {topic: range(count) for topic, count in counts.items()}

    async def _date(self, known: GroupBacklog, ages: int) -> None:
        """Read when the records at the consumer offsets were stored, and those at the pull offsets."""
        rows: Sequence[Row] = await self._run_blocking(lambda: _largest(known, ages))
        at_consumer = [(topic, number, queue.consumer) for topic, number, queue in rows]
        at_pull = [
            (topic, number, queue.pull) for topic, number, queue in rows if queue.pull is not None and queue.available
        ]
        for name, places in (("consumer_stored_ms", at_consumer), ("pull_stored_ms", at_pull)):
            if places:
                stored = await self._offsets.stored_ms(places)
                await self._run_blocking(lambda name=name, stored=stored: _put(known, name, stored))


def _lagging(committed: ByQueue, ends: ByQueue) -> Mapping[str, Sequence[int]]:
    """Where the consumer offset is below the end, or not known: only there it matters where the queue begins."""
    late: dict[str, list[int]] = {}
    for topic, offsets in ends.items():
        consumed = committed.get(topic, {})
        queues = [queue for queue, end in offsets.items() if consumed.get(queue, -1) < end]
        if queues:
            late[topic] = queues
    return late


class Known(NamedTuple):
    """Offsets of one group and its queues."""

    committed: ByQueue
    pulled: ByQueue
    ends: ByQueue
    begins: ByQueue


Row = tuple[str, int, Ordered]


def _gather(group: str, wanted: Mapping[str, range], known: Known) -> GroupBacklog:
    backlog = GroupBacklog(group)
    for topic, queues in wanted.items():
        consumed, pulled, ends, begins = (offsets.get(topic, {}) for offsets in known)
        for queue in queues:
            begin = begins.get(queue, 0)
            offsets = Offsets(ends.get(queue), consumed.get(queue), pulled.get(queue), begin, start=begin)
            backlog.put(topic, queue, offsets)
    return backlog


def _largest(known: GroupBacklog, count: int) -> Sequence[Row]:
    """The queues with the largest lags."""
    rows = (
        (topic, number, queue)
        for topic in known.topics
        for number, offsets in known.offsets_of(topic)
        if (queue := in_order(offsets)) is not None and queue.lag
    )
    return nlargest(count, rows, key=lambda row: row[2].lag)


def _put(known: GroupBacklog, name: str, stored: Mapping[tuple[str, int], int | None]) -> None:
    rows = {(topic, queue): offsets for topic in known.topics for queue, offsets in known.offsets_of(topic)}
    for (topic, queue), at_ms in stored.items():
        time_ms = {name: ABSENT if at_ms is None else at_ms}
        known.put(topic, queue, msgspec.structs.replace(rows[topic, queue], **time_ms))


@contextmanager
def translated() -> Generator[None]:
    """A context for questions to the store: what it could not answer is Unavailable to the caller."""
    try:
        yield
    except LogError as error:
        raise Unavailable(str(error)) from error
