"""`WEIGHTED_STICKY`: queues weigh by their rate or lag; each consumer has a capacity, a rack and subscriptions.

A consumer's level is the weight of its queues per capacity. First everything stays that may stay; then free queues go,
heaviest first, to the lowest consumer that subscribes to their topic; then the highest consumers give queues up, and
the lowest get some, along paths over consumers that share topics, until nobody is beyond the tolerance or no path
helps. Each path lowers the sum of squared loads per capacity, so it ends.

Where all queues weigh the same and all capacities are equal the tolerance is nothing: among consumers that share topics
no two then differ by more than one queue, if that can be reached. Where they all have one subscription it is `sticky`.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf

import msgspec

from loadmanager.consumers.allocation.bringing_home import unneeded
from loadmanager.consumers.allocation.sticky import Sticky
from loadmanager.consumers.allocation.strategy import InvalidArgument, MessageQueue

IDLE_SHARE = 0.1
"""What a queue weighs at least, as a share of the mean: idle queues are divided too."""
TARGETS = 8
"""So many of the lowest consumers are tried for each one that is too high."""
PASSES = 10


class Consumer(msgspec.Struct, frozen=True):
    """A consumer of a group. It reads all topics of the group if `topics` is None. `capacity` counts beside others'."""

    id: str
    topics: frozenset[str] | None = None
    capacity: float = 1.0
    rack: str = ""


class Weighing(msgspec.Struct, frozen=True):
    """What queues weigh (per second, messages, bytes: any unit), and on which racks they have replicas.

    A queue without a weight is idle. `tolerance`: how far from the mean level a consumer may be, as a fraction.
    """

    weights: Mapping[MessageQueue, float] | None = None
    racks: Mapping[MessageQueue, Collection[str]] = {}
    tolerance: float = 0.05


def allocate_weighted(
    previous: Mapping[str, Iterable[MessageQueue]],
    queues: Sequence[MessageQueue],
    consumers: Sequence[Consumer],
    weighing: Weighing | None = None,
) -> dict[str, list[MessageQueue]]:
    """The queues of each consumer; a queue that nobody subscribes to is nobody's.

    Raises InvalidArgument for a consumer that is named twice, a capacity that is not above 0, a weight below 0, or a
    number that is none.
    """
    weighing = weighing or Weighing()
    _check(consumers, weighing)
    alike = len({(each.topics, each.capacity) for each in consumers}) <= 1 and not weighing.racks
    if weighing.weights is None and alike:
        topics = consumers[0].topics if consumers else None
        readable = [queue for queue in queues if topics is None or queue.topic in topics]
        return Sticky.of(previous, readable, [each.id for each in consumers]).allocation()
    draft = _Draft(queues, consumers, weighing)
    draft.keep(previous)
    draft.place()
    draft.relieve()
    draft.bring_home()
    return draft.allocation()


def _check(consumers: Sequence[Consumer], weighing: Weighing) -> None:
    if len({each.id for each in consumers}) < len(consumers):
        raise InvalidArgument("a consumer is named twice: every consumer of a group has an id of its own")
    for each in consumers:
        if not 0 < each.capacity < inf:
            raise InvalidArgument(f"the capacity of {each.id} is {each.capacity}: give a number above 0")
    for queue, weight in (weighing.weights or {}).items():
        if not 0 <= weight < inf:
            raise InvalidArgument(f"the weight of {queue} is {weight}: give a number, at least 0")
    if not 0 <= weighing.tolerance < inf:
        raise InvalidArgument(f"the tolerance is {weighing.tolerance}: give a fraction, at least 0")


def _weights(queues: Sequence[MessageQueue], given: Mapping[MessageQueue, float] | None) -> dict[MessageQueue, float]:
    weights = dict.fromkeys(queues, 1.0) if given is None else {queue: given.get(queue, 0.0) for queue in queues}
    mean = sum(weights.values()) / len(weights) if weights else 0.0
    least = mean * IDLE_SHARE if mean else 1.0
    return {queue: max(weight, least) for queue, weight in weights.items()}


def _mean_level(weights: list[float], capacities: list[float]) -> float:
    """The level if it came out even, without queues that alone are above it: each is alone at a largest consumer.

    `weights` in ascending order; those of such queues are taken away.
    """
    total, capacity, most = sum(weights), sum(capacities), max(capacities, default=1.0)
    while weights and capacity > most and weights[-1] * capacity > total * most:
        total -= weights.pop()
        capacity -= most
    return total / capacity if capacity else 0.0


class _Draft:
    """An allocation that is being made."""

    def __init__(self, queues: Sequence[MessageQueue], consumers: Sequence[Consumer], weighing: Weighing) -> None:
        self._weights = _weights(queues, weighing.weights)
        self._racks = weighing.racks
        self._consumers = {each.id: each for each in sorted(consumers, key=lambda each: each.id)}
        topics = {queue.topic for queue in self._weights}
        self._readers = {
            topic: [each.id for each in self._consumers.values() if each.topics is None or topic in each.topics]
            for topic in sorted(topics)
        }
        self._largest = {
            topic: max((self._consumers[each].capacity for each in readers), default=0.0)
            for topic, readers in self._readers.items()
        }
        self._load = dict.fromkeys(self._consumers, 0.0)
        self._held: dict[str, dict[str, list[tuple[float, MessageQueue]]]] = {each: {} for each in self._consumers}
        """By consumer and topic, by weight."""
        self._free = dict.fromkeys(self._weights)
        self._home: dict[MessageQueue, str] = {}
        self._one_subscription = len({each.topics for each in consumers}) <= 1
        self._exact = len(set(self._weights.values())) <= 1 and len({each.capacity for each in consumers}) <= 1
        read = sorted(weight for queue, weight in self._weights.items() if self._readers[queue.topic])
        mean = _mean_level(read, [each.capacity for each in consumers])
        self._low, self._high = mean * (1 - weighing.tolerance), mean * (1 + weighing.tolerance)

    def allocation(self) -> dict[str, list[MessageQueue]]:
        return {
            consumer: sorted(queue for held in by_topic.values() for _, queue in held)
            for consumer, by_topic in self._held.items()
        }

    def keep(self, previous: Mapping[str, Iterable[MessageQueue]]) -> None:
        """Everything that may stay stays. Of a queue that several had, the first of them by id keeps it.

        A queue that is too heavy for its consumer does not stay, unless that is one of its largest readers.
        """
        for consumer in sorted(previous.keys() & self._consumers.keys()):
            for queue in previous[consumer]:
                if queue in self._free and self._may_stay(queue, consumer):
                    del self._free[queue]
                    self._home[queue] = consumer
                    self._give(queue, consumer)

    def place(self) -> None:
        """The free queues, heaviest first; within a queue's weight of the lowest, a consumer in one of its racks."""
        lowest = {topic: _Lowest(self, readers) for topic, readers in self._readers.items()}
        near: dict[tuple[str, str], _Lowest] = {}
        for queue in sorted(self._free, key=lambda each: (-self._weights[each], each)):
            weight = self._weights[queue]
            level, best = lowest[queue.topic].find(weight)
            for rack in sorted(self._racks.get(queue, ())):
                key = queue.topic, rack
                if key not in near:
                    readers = [each for each in self._readers[queue.topic] if self._consumers[each].rack == rack]
                    near[key] = _Lowest(self, readers)
                near_level, found = near[key].find(weight)
                if near_level <= level + weight / self.capacity(found or best) / 2:
                    best = found
                    break
            if best:
                self._give(queue, best)
        self._free = {}

    def relieve(self) -> None:
        """Take from the highest, then give to the lowest, as long as that helps."""
        for _ in range(PASSES):
            helped = False
            for consumer in sorted(self._consumers, key=lambda each: (-self.level(each), each)):
                while self._too_high(consumer) and self._lower(consumer):
                    helped = True
            for consumer in sorted(self._consumers, key=lambda each: (self.level(each), each)):
                while self._too_low(consumer) and self._lift(consumer):
                    helped = True
            if not helped:
                break

    def bring_home(self) -> None:
        """Where all queues weigh the same: undo every move that is not needed for this balance."""
        while self._exact and (moves := unneeded(self._held, self._home, self._readers)):
            for queue, giver, taker in moves:
                self._take(queue, giver)
                self._give(queue, taker)

    # --- one step

    def _too_high(self, consumer: str) -> bool:
        return self._exact or self.level(consumer) > self._high

    def _too_low(self, consumer: str) -> bool:
        return not self._exact and self.level(consumer) < self._low

    def _lower(self, high: str) -> bool:
        """Move one queue away from here, or one along each step of a path, or exchange two; whether that helped."""
        came_from = self._reachable_from(high)
        lower = [each for each in came_from if self.level(each) < self.level(high)]
        targets = heapq.nsmallest(1 if self._exact else TARGETS, lower, key=lambda each: (self.level(each), each))
        return any(self._shift(_path(came_from, low)) or self._exchange(high, low) for low in targets)

    def _lift(self, low: str) -> bool:
        """The same towards here."""
        higher = [each for each in self._consumers if self.level(each) > self.level(low)]
        higher.sort(key=lambda each: (-self.level(each), each))
        if any(self._shift([high, low]) for high in higher) or any(
            self._exchange(high, low) for high in higher[:TARGETS]
        ):
            return True
        if self._one_subscription:
            return False
        ways = map(self._reachable_from, higher[:TARGETS])
        return any(low in came_from and self._shift(_path(came_from, low)) for came_from in ways)

    def _reachable_from(self, high: str) -> dict[str, str | None]:
        """Who may get a queue if `high` gives one up, directly or by handing on another; and from whom."""
        if self._one_subscription:
            return {each: None if each == high else high for each in self._consumers}
        came_from: dict[str, str | None] = {high: None}
        seen, waiting = set[str](), [high]
        for consumer in waiting:
            for topic, held in self._held[consumer].items():
                if held and topic not in seen:
                    seen.add(topic)
                    for other in self._readers[topic]:
                        if other not in came_from:
                            came_from[other] = consumer
                            waiting.append(other)
        return came_from

    def _shift(self, path: list[str]) -> bool:
        """Move one queue along each step of the path, of about the weight that makes its ends level."""
        wanted = self._wanted(path[0], path[-1])
        moves = [(self._nearest(giver, taker, wanted), giver, taker) for giver, taker in pairwise(path)]
        return self._try([(queue, giver, taker) for queue, giver, taker in moves if queue is not None], len(path) - 1)

    def _exchange(self, high: str, low: str) -> bool:
        """Swap two queues of a topic that both read."""
        if self._exact:
            return False
        wanted = self._wanted(high, low)
        best: tuple[float, MessageQueue, MessageQueue] | None = None
        for topic, its in self._held[high].items():
            others = self._held[low].get(topic, []) if self._may_read(low, topic) else []
            for weight, queue in its if others else ():
                for other_weight, other in _around(others, weight - wanted):
                    off = abs(weight - other_weight - wanted)
                    if weight > other_weight and (best is None or off < best[0]):
                        best = off, queue, other
        return best is not None and self._try([(best[1], high, low), (best[2], low, high)], 2)

    def _try(self, moves: list[tuple[MessageQueue, str, str]], count: int) -> bool:
        """Do these moves if that lowers the sum of squared levels."""
        if len(moves) < count:
            return False
        change: dict[str, float] = {}
        for queue, giver, taker in moves:
            change[giver] = change.get(giver, 0.0) - self._weights[queue]
            change[taker] = change.get(taker, 0.0) + self._weights[queue]
        before = sum(self._load[each] ** 2 / self.capacity(each) for each in change)
        after = sum((self._load[each] + more) ** 2 / self.capacity(each) for each, more in change.items())
        if after >= before * (1 - 1e-9):
            return False
        for queue, giver, taker in moves:
            self._take(queue, giver)
            self._give(queue, taker)
        return True

    def _wanted(self, high: str, low: str) -> float:
        """The weight that makes both level."""
        return (self.level(high) - self.level(low)) / (1 / self.capacity(high) + 1 / self.capacity(low))

    def _nearest(self, giver: str, taker: str, wanted: float) -> MessageQueue | None:
        """The giver's queue of about this weight that the taker may read; among equals one that gets nearer."""
        found: list[tuple[float, int, bool, MessageQueue]] = []
        for topic, held in self._held[giver].items():
            if self._may_read(taker, topic):
                found += [
                    (
                        abs(weight - wanted),
                        self._cost(queue, giver, taker),
                        not self._gets_nearer(queue, giver, taker),
                        queue,
                    )
                    for weight, queue in held
                ]
        return min(found)[3] if found else None

    def _cost(self, queue: MessageQueue, giver: str, taker: str) -> int:
        home = self._home.get(queue)
        return (home == giver) - (home == taker)

    def _gets_nearer(self, queue: MessageQueue, giver: str, taker: str) -> bool:
        racks = self._racks.get(queue, ())
        return (self._consumers[taker].rack in racks) > (self._consumers[giver].rack in racks)

    # --- what is where

    def level(self, consumer: str) -> float:
        """The weight of its queues per capacity."""
        return self._load[consumer] / self.capacity(consumer)

    def capacity(self, consumer: str) -> float:
        """As it was given."""
        return self._consumers[consumer].capacity

    def _may_stay(self, queue: MessageQueue, consumer: str) -> bool:
        if not self._may_read(consumer, queue.topic):
            return False
        fits = self._weights[queue] / self.capacity(consumer) <= self._high
        return self._exact or fits or self.capacity(consumer) == self._largest[queue.topic]

    def _may_read(self, consumer: str, topic: str) -> bool:
        topics = self._consumers[consumer].topics
        return topics is None or topic in topics

    def _give(self, queue: MessageQueue, consumer: str) -> None:
        self._load[consumer] += self._weights[queue]
        insort(self._held[consumer].setdefault(queue.topic, []), (self._weights[queue], queue))

    def _take(self, queue: MessageQueue, consumer: str) -> None:
        held = self._held[consumer][queue.topic]
        del held[bisect_left(held, (self._weights[queue], queue))]
        self._load[consumer] = sum(weight for its in self._held[consumer].values() for weight, _ in its)


class _Lowest:
    """Who of some consumers is lowest with one queue more, while levels only rise. A heap for each capacity."""

    def __init__(self, draft: _Draft, consumers: Iterable[str]) -> None:
        self._draft = draft
        self._heaps: dict[float, list[tuple[float, str]]] = {}
        for each in consumers:
            self._heaps.setdefault(draft.capacity(each), []).append((draft.level(each), each))
        for heap in self._heaps.values():
            heapq.heapify(heap)

    def find(self, weight: float) -> tuple[float, str]:
        """The level that it would have, and the consumer; infinity if there is none."""
        tops = (self._top(heap, weight / capacity) for capacity, heap in self._heaps.items())
        return min(tops, default=(inf, ""))

    def _top(self, heap: list[tuple[float, str]], more: float) -> tuple[float, str]:
        while heap[0][0] != (level := self._draft.level(heap[0][1])):
            heapq.heapreplace(heap, (level, heap[0][1]))
        return level + more, heap[0][1]


def _path(came_from: Mapping[str, str | None], end: str) -> list[str]:
    """From the start to `end`."""
    path = [end]
    while (before := came_from[path[-1]]) is not None:
        path.append(before)
    return path[::-1]


def _around(held: Sequence[tuple[float, MessageQueue]], wanted: float) -> Sequence[tuple[float, MessageQueue]]:
    """The queues whose weights are next to this one, below and above."""
    at = bisect_left(held, wanted, key=lambda each: each[0])
    return held[max(at - 1, 0) : at + 1]
