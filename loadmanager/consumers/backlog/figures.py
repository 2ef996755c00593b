"""The three figures of one queue: lag, in flight, available; and their sums. Pure.

    begin ............ consumer ............ pull ............ end
     |     consumed       |     in flight      |    available   |
                          |<------------- lag --------------->|

The formulas are RocketMQ's (its `ConsumerLagCalculator`). Offsets that are missing or out of order are first put in
order (`in_order`), so that always lag = in flight + available. RocketMQ has two views of a queue without a consumer
offset: its metrics count no lag, its admin command counts everything. There is one view here:

* no consumer offset: the group starts at its pull offset, else at `start`, else at the end, as in RocketMQ's metrics;
  `uncommitted` counts such queues. `reading.py` gives the begin as `start`: there our groups begin in a queue that was
  added to a topic, and groups that never read with `auto.offset.reset=earliest`;
* no pull offset: in flight and available are None; RocketMQ says 0, which reads as "nothing waits". In a sum a queue
  with neither offset counts as nothing;
* a pull offset below the consumer offset counts as the consumer offset (as in RocketMQ's admin command);
* no end (the queue has no leader): no figure at all, and `unknown` counts the queue. RocketMQ says 0;
* records that were deleted unread are not lag, because they can't be consumed: `deleted` counts them. RocketMQ and
  Kafka's tools count them as lag until the group commits again.

The backlog of a group is kept as sums: a changed queue costs O(log n), without summing all queues again. Sums keep
offsets and store times, never ages, so that they stay right while time passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

import msgspec

ABSENT = -1
"""A store time: the queue has no record at this offset or after it."""


class Offsets(msgspec.Struct, frozen=True):
    """What a store says of one queue and one group; None: it does not know.

    `begin` is the first offset that the queue still has, `end` the one after its last record; `consumer` is the first
    offset that the group has not consumed (its commit), `pull` the first that it has not pulled. `start` is where it
    begins without a commit, None: at the end. The two times are when the records at `consumer` and `pull` were stored,
    in milliseconds since 1970: None if not asked for, ABSENT if there is no such record.
    """

    end: int | None
    consumer: int | None
    pull: int | None = None
    begin: int = 0
    consumer_stored_ms: int | None = None
    pull_stored_ms: int | None = None
    start: int | None = None


class Ordered(msgspec.Struct, frozen=True):
    """Offsets of a queue with a known end, put in order: begin <= consumer <= pull <= end, unless pull is None."""

    consumer: int
    pull: int | None
    end: int
    deleted: int

    @property
    def lag(self) -> int:
        """Records that are not consumed."""
        return self.end - self.consumer

    @property
    def in_flight(self) -> int | None:
        """Records that were pulled and are not consumed."""
        return None if self.pull is None else self.pull - self.consumer

    @property
    def available(self) -> int | None:
        """Records that were not pulled."""
        return None if self.pull is None else self.end - self.pull


class Figure(msgspec.Struct, frozen=True):
    """A number of records, and the age of the oldest in seconds: 0 if there is none, None if it was not read."""

    messages: int
    latency_s: float | None


class Backlog(msgspec.Struct, frozen=True):
    """What a group has before it in one queue, or in `queues` of them; None: not known, see the module.

    `undated` counts queues with a lag whose age was not read: the true age may exceed that of `lag`. `unpulled`
    counts queues with an end and a consumer offset, but no pull offset. `ends` and `consumed` are sums of offsets, for
    rates.
    """

    lag: Figure | None
    in_flight: Figure | None
    available: Figure | None
    deleted: int = 0
    queues: int = 0
    uncommitted: int = 0
    unknown: int = 0
    undated: int = 0
    unpulled: int = 0
    ends: int = 0
    consumed: int = 0


NOTHING = Backlog(Figure(0, 0.0), None, None)
"""The backlog of no queues."""


def in_order(offsets: Offsets) -> Ordered | None:
    """The offsets by the rules above; None if the queue has no known end."""
    end = offsets.end
    if end is None or end < 0:
        return None
    pull = None if offsets.pull is None or offsets.pull < 0 else min(offsets.pull, end)
    if pull is None and offsets.start is not None and uncommitted(offsets):
        pull = min(offsets.start, end)  # the group has not read it
    wanted = end if pull is None else pull
    if offsets.consumer is not None and offsets.consumer >= 0:
        wanted = min(offsets.consumer, end)
    consumer = min(max(wanted, offsets.begin), end)
    return Ordered(consumer, None if pull is None else max(pull, consumer), end, consumer - wanted)


def uncommitted(offsets: Offsets) -> bool:
    """Whether the group has no consumer offset in the queue."""
    return offsets.consumer is None or offsets.consumer < 0


def backlog_of(offsets: Offsets, now_ms: int) -> Backlog:
    """The figures of one queue. `now_ms` is the wall clock, in milliseconds since 1970."""
    queue = in_order(offsets)
    if queue is None:
        return Backlog(None, None, None, queues=1, uncommitted=uncommitted(offsets), unknown=1)
    lag = _figure(queue.lag, offsets.consumer_stored_ms, now_ms)
    return Backlog(
        lag=lag,
        in_flight=None if queue.in_flight is None else _figure(queue.in_flight, offsets.consumer_stored_ms, now_ms),
        available=None if queue.available is None else _figure(queue.available, offsets.pull_stored_ms, now_ms),
        deleted=queue.deleted,
        queues=1,
        uncommitted=int(uncommitted(offsets)),
        undated=int(lag.latency_s is None),
        unpulled=int(queue.pull is None and not uncommitted(offsets)),
        ends=queue.end,
        consumed=queue.consumer,
    )


def total(backlogs: Iterable[Backlog]) -> Backlog:
    """The sum of counts, with the age of the oldest record; in any grouping of queues the same.

    Queues without an end are left out of the counts (`unknown` says how many). In flight and available are None unless
    all that have a consumer offset have a pull offset too: half a sum would read as a whole one.
    """
    each = [one for one in backlogs if one.queues]
    if not each:
        return NOTHING
    pulled = each if not any(one.unpulled for one in each) else []
    return Backlog(
        lag=_sum(one.lag for one in each),
        in_flight=_sum(one.in_flight for one in pulled),
        available=_sum(one.available for one in pulled),
        deleted=sum(one.deleted for one in each),
        queues=sum(one.queues for one in each),
        uncommitted=sum(one.uncommitted for one in each),
        unknown=sum(one.unknown for one in each),
        undated=sum(one.undated for one in each),
        unpulled=sum(one.unpulled for one in each),
        ends=sum(one.ends for one in each),
        consumed=sum(one.consumed for one in each),
    )


def age_s(stored_ms: int, now_ms: int) -> float:
    """Seconds since a record was stored; 0 if it bears a time of the future."""
    return max(0, now_ms - stored_ms) / 1000


def _figure(messages: int, stored_ms: int | None, now_ms: int) -> Figure:
    if messages == 0 or stored_ms == ABSENT:
        return Figure(messages, 0.0)
    return Figure(messages, None if stored_ms is None else age_s(stored_ms, now_ms))


def _sum(figures: Iterable[Figure | None]) -> Figure | None:
    there = [figure for figure in figures if figure is not None]
    if not there:
        return None
    return Figure(sum(figure.messages for figure in there), oldest(figure.latency_s for figure in there))


def oldest(latencies_s: Iterable[float | None]) -> float | None:
    """The largest; None instead of 0 if one of them is not known."""
    each = list(latencies_s)
    known = max((latency for latency in each if latency is not None), default=0.0)
    return known if known > 0 or None not in each else None


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
