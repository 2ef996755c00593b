"""The backlog of one group, kept as sums: a changed queue costs O(log n), without summing all queues again. Pure.

It keeps offsets and store times, never ages, so that sums stay right while time passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from loadmanager.consumers.backlog.figures import (
    ABSENT,
    NOTHING,
    Backlog,
    Figure,
    Offsets,
    age_s,
    backlog_of,
    in_order,
    total,
    uncommitted,
)


class GroupBacklog:
    """The backlog of one consumer group, by topic and queue."""

    def __init__(self, group: str) -> None:
        self.group = group
        self._topics: dict[str, TopicBacklog] = {}

    @property
    def topics(self) -> list[str]:
        """The names of the topics of which a queue is known, in order."""
        return sorted(self._topics)

    def put(self, topic: str, queue: int, offsets: Offsets) -> None:
        """Take in what is now known of a queue."""
        kept = self._topics.get(topic)
        if kept is None:
            kept = self._topics[topic] = TopicBacklog()
        kept.put(queue, offsets)

    def drop(self, topic: str, queue: int) -> None:
        """Forget a queue; nothing happens if it is not known."""
        kept = self._topics.get(topic)
        if kept is not None:
            kept.drop(queue)
            if not len(kept):
                del self._topics[topic]

    def of_topic(self, topic: str, now_ms: int) -> Backlog:
        """The sum over the topic's queues; nothing at all for a topic that is not known."""
        kept = self._topics.get(topic)
        return NOTHING if kept is None else kept.sum(now_ms)

    def offsets_of(self, topic: str) -> list[tuple[int, Offsets]]:
        """The queues of a topic in order, with their offsets."""
        kept = self._topics.get(topic)
        return [] if kept is None else kept.queues()

    def of_queues(self, topic: str, now_ms: int) -> Iterator[tuple[int, Backlog]]:
        """The backlog of each queue of a topic, in order."""
        for queue, offsets in self.offsets_of(topic):
            yield queue, backlog_of(offsets, now_ms)

    def sum(self, now_ms: int) -> Backlog:
        """The sum over all topics."""
        return total(kept.sum(now_ms) for kept in self._topics.values())


class TopicBacklog:
    """Running sums over the queues of one topic."""

    def __init__(self) -> None:
        self._queues: dict[int, Offsets] = {}
        self._lag = self._in_flight = self._available = self._deleted = self._ends = self._consumed = 0
        self._pulled = self._unpulled = self._uncommitted = self._unknown = 0
        self._undated = [0, 0, 0]
        self._oldest = (Oldest(), Oldest(), Oldest())

    def __len__(self) -> int:
        return len(self._queues)

    def queues(self) -> list[tuple[int, Offsets]]:
        """The queues in order, with their offsets."""
        return sorted(self._queues.items(), key=lambda item: item[0])

    def put(self, queue: int, offsets: Offsets) -> None:
        """Replace what is known of a queue."""
        former = self._queues.get(queue)
        if former == offsets:
            return
        if former is not None:
            self._count(former, -1)
        self._queues[queue] = offsets
        self._count(offsets, 1)
        self._date(queue, offsets)

    def drop(self, queue: int) -> None:
        """Forget a queue; nothing happens if it is not known."""
        former = self._queues.pop(queue, None)
        if former is not None:
            self._count(former, -1)
            for each in self._oldest:
                each.put(queue, None)

    def sum(self, now_ms: int) -> Backlog:
        """The sum; equal to `figures.total` of the queues."""
        known = len(self._queues) - self._unknown
        pulled = self._pulled > 0 and self._unpulled == 0
        return Backlog(
            self._figure(0, self._lag, now_ms) if known or not self._queues else None,
            self._figure(1, self._in_flight, now_ms) if pulled else None,
            self._figure(2, self._available, now_ms) if pulled else None,
            deleted=self._deleted,
            queues=len(self._queues),
            uncommitted=self._uncommitted,
            unknown=self._unknown,
            undated=self._undated[0],
            unpulled=self._unpulled,
            ends=self._ends,
            consumed=self._consumed,
        )

    def _figure(self, row: int, messages: int, now_ms: int) -> Figure:
        first_ms = self._oldest[row].first()
        latency_s = 0.0 if first_ms is None else age_s(first_ms, now_ms)
        return Figure(messages, latency_s if latency_s > 0 or not self._undated[row] else None)

    def _count(self, offsets: Offsets, sign: int) -> None:
        self._uncommitted += sign * uncommitted(offsets)
        queue = in_order(offsets)
        if queue is None:
            self._unknown += sign
            return
        self._lag += sign * queue.lag
        self._deleted += sign * queue.deleted
        self._ends += sign * queue.end
        self._consumed += sign * queue.consumer
        if queue.pull is None:
            self._unpulled += sign * (not uncommitted(offsets))
        else:
            self._pulled += sign
            self._in_flight += sign * (queue.in_flight or 0)
            self._available += sign * (queue.available or 0)
        for row, (messages, stored_ms) in enumerate(_dates(offsets)):
            self._undated[row] += sign * (messages > 0 and stored_ms is None)

    def _date(self, queue: int, offsets: Offsets) -> None:
        for each, (messages, stored_ms) in zip(self._oldest, _dates(offsets), strict=True):
            each.put(queue, stored_ms if messages and stored_ms != ABSENT else None)


def _dates(offsets: Offsets) -> tuple[tuple[int, int | None], tuple[int, int | None], tuple[int, int | None]]:
    """Of lag, in flight, available: how many records, and when the oldest was stored."""
    queue = in_order(offsets)
    if queue is None:
        return (0, None), (0, None), (0, None)
    at_consumer, at_pull = offsets.consumer_stored_ms, offsets.pull_stored_ms
    return (queue.lag, at_consumer), (queue.in_flight or 0, at_consumer), (queue.available or 0, at_pull)


class Oldest:
    """The smallest time of many keys, each with at most one: O(log n) a change.

    Replaced times stay in the heap until they come to its top, or are more than half of it.
    """

    def __init__(self) -> None:
        self._at: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def put(self, key: int, at_ms: int | None) -> None:
        """Set the time of a key, or take it out with None."""
        if self._at.get(key) == at_ms:
            return
        if at_ms is None:
            del self._at[key]
        else:
            self._at[key] = at_ms
            heappush(self._heap, (at_ms, key))
        if len(self._heap) > 2 * len(self._at) + 16:
            self._heap = [(kept_ms, kept) for kept, kept_ms in self._at.items()]
            heapify(self._heap)

    def first(self) -> int | None:
        """The smallest time, None without any."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None
