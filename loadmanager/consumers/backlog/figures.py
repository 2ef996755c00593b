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
"""

from __future__ import annotations

from collections.abc import Iterable

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
