"""`WEIGHTED_STICKY`: queues weigh by their rate or lag; each consumer has a capacity and subscriptions.

A consumer's level is the weight of its queues per capacity. The allocation has three steps:

1. Every queue that may stay stays.
2. Free queues go, heaviest first, to the lowest consumer that subscribes to their topic.
3. The highest consumers give queues up, and the lowest get some, along paths over consumers that share topics. This
   ends when no consumer is beyond the tolerance, or no path helps. Each path lowers the sum of squared loads per
   capacity, so it ends.

If all queues weigh the same and all capacities are equal, the tolerance is zero. Then no two consumers that share
topics differ by more than one queue, if that can be reached. If they all have one subscription, it is `sticky`.

At the end moves are undone that balance does not need, where all queues weigh the same but subscriptions differ.
A balanced allocation keeps most if no cycle of moves keeps more (Klein 1967, for flows of least cost). A step of a
cycle hands a queue from one consumer to another: it costs 1 if the queue leaves its home, -1 if it comes home, else 0.
A cycle may also end at a consumer and go on at one that has one queue more: both numbers are swapped, and the balance
stays.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadmanager.consumers.allocation.rocketmq import InvalidArgument, MessageQueue
from loadmanager.consumers.allocation.sticky import Sticky

IDLE_SHARE = 0.1
"""Minimum weight of a queue, as a share of the mean, so that idle queues are distributed too."""
TARGETS = 8
"""How many of the lowest consumers are tried for each one that is too high."""
PASSES = 10
LAST = chr(0x10FFFF)
"""Behind every id."""


Q = TypeVar("Q", bound=Any)
"""A queue: a tuple that begins with its topic."""


class Consumer(msgspec.Struct, frozen=True):
    """A consumer of a group. It reads all topics of the group if `topics` is None. `capacity` counts beside others'."""

    id: str
    topics: frozenset[str] | None = None
    capacity: float = 1.0


class Weighing(msgspec.Struct, Generic[Q], frozen=True):
    """What queues weigh: per second, messages, bytes, any unit.

    A queue without a weight is idle. `tolerance`: how far from the mean level a consumer may be, as a fraction.
    """

    weights: Mapping[Q, float] | None = None
    tolerance: float = 0.05


def allocate_weighted(
    previous: Mapping[str, Iterable[MessageQueue]],
    queues: Sequence[MessageQueue],
    consumers: Sequence[Consumer],
    weighing: Weighing[MessageQueue] | None = None,
) -> dict[str, list[MessageQueue]]:
    """The queues of each consumer. A queue without subscribers is left out.

    Raises InvalidArgument for a consumer that is named twice, a capacity that is not above 0, a weight below 0, or a
    number that is not finite.
    """
    weighing = weighing or Weighing[MessageQueue]()
    _check(consumers, weighing)
    alike = len({(each.topics, each.capacity) for each in consumers}) <= 1
    if weighing.weights is None and alike:
        topics = consumers[0].topics if consumers else None
        readable = [queue for queue in queues if topics is None or queue.topic in topics]
        return Sticky.of(previous, readable, [each.id for each in consumers]).allocation()
    return Weighted(previous, queues, consumers, weighing).allocation()


def _check(consumers: Iterable[Consumer], weighing: Weighing[Q]) -> None:
    consumers = list(consumers)
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


def _weights(queues: Sequence[Q], given: Mapping[Q, float] | None) -> dict[Q, float]:
    weights = dict.fromkeys(queues, 1.0) if given is None else {queue: given.get(queue, 0.0) for queue in queues}
    mean = sum(weights.values()) / len(weights) if weights else 0.0
    least = mean * IDLE_SHARE if mean else 1.0
    return {queue: max(weight, least) for queue, weight in weights.items()}


def _mean_level(weights: Sequence[float], capacities: Sequence[float]) -> float:
    """The level if it came out even, without queues that alone are above it: each is alone at a largest consumer.

    `weights` in ascending order.
    """
    total, capacity, most = sum(weights), sum(capacities), max(capacities, default=1.0)
    for weight in reversed(weights):
        if capacity <= most or weight * capacity <= total * most:
            break
        total -= weight
        capacity -= most
    return total / capacity if capacity else 0.0


class Weighted(Generic[Q]):
    """The allocation of one group, changed step by step while weights and queues stay as they are."""

    def __init__(
        self,
        previous: Mapping[str, Iterable[Q]],
        queues: Sequence[Q],
        consumers: Sequence[Consumer],
        weighing: Weighing[Q],
    ) -> None:
        """As `allocate_weighted`."""
        _check(consumers, weighing)
        self._weighing = weighing
        self._weights = _weights(queues, weighing.weights)
        self._topics = sorted({queue[0] for queue in self._weights})
        self._sorted: tuple[frozenset[str], list[float]] | None = None
        self._consumers: dict[str, Consumer] = {}
        self._load: dict[str, float] = {}
        self._held: dict[str, dict[str, list[tuple[float, Q]]]] = {}
        """By consumer and topic, by weight."""
        self._free = dict.fromkeys(self._weights)
        self._owner: dict[Q, str] = {}
        self._was: dict[Q, str | None] = {}
        """Who had the queues that were moved in this change, before it."""
        self._levels: list[tuple[float, str]] = []
        """All levels, lowest first, while some consumers are relieved."""
        self._populate(consumers)
        self._keep(previous)
        self._balance()

    def change(self, joined: Collection[Consumer], left: Collection[str]) -> dict[Q, str | None]:
        """These came and went, at once; the queues that changed hands, each with its new consumer."""
        _check(joined, Weighing[Q]())
        self._was, self._levels = {}, []
        for consumer in left:
            for held in self._held.pop(consumer).values():
                for _, queue in held:
                    self._was[queue] = self._owner.pop(queue)
                    self._free[queue] = None
            del self._load[consumer], self._consumers[consumer]
        self._populate([*self._consumers.values(), *joined])
        for consumer in self._consumers:
            for topic, held in self._held[consumer].items():
                while held and not self._may_stay(held[-1][1], consumer):
                    queue = held[-1][1]
                    self._take(queue, consumer)
                    self._free[queue] = None
                    assert topic
        self._balance()
        return {queue: now for queue, before in self._was.items() if (now := self._owner.get(queue)) != before}

    def owners(self) -> Mapping[Q, str]:
        """The consumer of each queue that has a subscriber."""
        return self._owner

    def allocation(self) -> dict[str, list[Q]]:
        """The queues of each consumer."""
        return {
            consumer: sorted(queue for held in by_topic.values() for _, queue in held)
            for consumer, by_topic in self._held.items()
        }

    def _populate(self, consumers: Iterable[Consumer]) -> None:
        """Take these consumers, and find out between which levels they should be."""
        self._consumers = {each.id: each for each in sorted(consumers, key=lambda each: each.id)}
        for consumer in self._consumers:
            self._load.setdefault(consumer, 0.0)
            self._held.setdefault(consumer, {})
        self._load = {each: self._load[each] for each in self._consumers}
        self._held = {each: self._held[each] for each in self._consumers}
        by_topics = {each.topics for each in self._consumers.values()}
        self._one_subscription = len(by_topics) <= 1
        everybody = list(self._consumers)
        self._readers: dict[str, list[str]] = {
            topic: everybody
            if self._one_subscription and all(topics is None or topic in topics for topics in by_topics)
            else [each.id for each in self._consumers.values() if each.topics is None or topic in each.topics]
            for topic in self._topics
        }
        self._largest = {
            topic: max((self._consumers[each].capacity for each in readers), default=0.0)
            for topic, readers in self._readers.items()
        }
        capacities = [each.capacity for each in self._consumers.values()]
        self._one_capacity = len(set(capacities)) <= 1
        read = frozenset(topic for topic, readers in self._readers.items() if readers)
        if self._sorted is None or self._sorted[0] != read:
            self._sorted = read, sorted(weight for queue, weight in self._weights.items() if queue[0] in read)
        weights = self._sorted[1]
        self._exact = self._one_capacity and (not self._weights or _is_one(self._weights))
        mean, tolerance = _mean_level(weights, capacities), self._weighing.tolerance
        self._low, self._high = mean * (1 - tolerance), mean * (1 + tolerance)

    def _keep(self, previous: Mapping[str, Iterable[Q]]) -> None:
        """Everything that may stay stays. Of a queue that several had, the first of them by id keeps it.

        A queue that is too heavy for its consumer does not stay, unless that is one of its largest readers.
        """
        for consumer in sorted(previous.keys() & self._consumers.keys()):
            kept: dict[str, list[tuple[float, Q]]] = {}
            for queue in previous[consumer]:
                if queue in self._free and self._may_stay(queue, consumer):
                    del self._free[queue]
                    self._owner[queue] = consumer
                    kept.setdefault(queue[0], []).append((self._weights[queue], queue))
            self._held[consumer] = {topic: sorted(its) for topic, its in kept.items()}
            self._load[consumer] = sum(weight for its in kept.values() for weight, _ in its)

    def _balance(self) -> None:
        self._place()
        self._relieve()
        self._bring_home()

    def _place(self) -> None:
        """The free queues, heaviest first, to the lowest."""
        if self._one_subscription and self._one_capacity:
            self._deal()
            return
        lowest = {topic: _Lowest(self, readers) for topic, readers in self._readers.items()}
        for weight, queue in self._heaviest_first():
            _, best = lowest[queue[0]].find(weight)
            if best:
                self._give(queue, best)
        self._free = {}

    def _heaviest_first(self) -> list[tuple[float, Q]]:
        weights = self._weights
        unread = {topic for topic, readers in self._readers.items() if not readers}
        by_name = sorted(queue for queue in self._free if queue[0] not in unread) if unread else sorted(self._free)
        by_name.sort(key=weights.__getitem__, reverse=True)
        return [(weights[queue], queue) for queue in by_name]

    def _deal(self) -> None:
        """The same where all consumers are alike."""
        heap: list[tuple[float, str, list[tuple[float, Q]]]] = [(load, each, []) for each, load in self._load.items()]
        heapq.heapify(heap)
        if heap:
            for each in self._heaviest_first():
                load, consumer, its = heap[0]
                its.append(each)
                heapq.heapreplace(heap, (load + each[0], consumer, its))
        self._was = {**dict.fromkeys(self._free), **self._was}
        self._free = {}
        for load, consumer, its in heap:
            self._load[consumer] = load
            self._owner.update(dict.fromkeys((queue for _, queue in its), consumer))
            held = self._held[consumer]
            for each in its:
                held.setdefault(each[1][0], []).append(each)
            for topic in {queue[0] for _, queue in its}:
                held[topic].sort()

    def _relieve(self) -> None:
        """Take from the highest, then give to the lowest, as long as that helps."""
        self._levels = sorted((self.level(each), each) for each in self._consumers)
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

    def _bring_home(self) -> None:
        """Where all queues weigh the same: undo every move that is not needed for this balance."""
        if not self._exact:
            return
        homes = {queue: home for queue, home in {**self._owner, **self._was}.items() if home in self._consumers}
        while moves := unneeded(self._held, homes, self._readers):
            for queue, giver, taker in moves:
                self._take(queue, giver)
                self._give(queue, taker)

    # --- one step

    def _too_high(self, consumer: str) -> bool:
        return self._exact or self.level(consumer) > self._high

    def _too_low(self, consumer: str) -> bool:
        return not self._exact and self.level(consumer) < self._low

    def _lower(self, high: str) -> bool:
        """Move one queue away from here, or one along each step of a path, or exchange two.

        Returns True if it helped.
        """
        level, count = self.level(high), 1 if self._exact else TARGETS
        if self._one_subscription:
            if self._one_capacity and sum(map(len, self._held[high].values())) <= 1:
                return False
            came_from: Mapping[str, str | None] = {}
            targets = [each for its, each in self._levels[:count] if its < level]
        else:
            came_from = self._reachable_from(high)
            lower = [each for each in came_from if self.level(each) < level]
            targets = heapq.nsmallest(count, lower, key=lambda each: (self.level(each), each))
        return any(
            self._shift(_path(came_from, low) if came_from else [high, low]) or self._exchange(high, low)
            for low in targets
        )

    def _lift(self, low: str) -> bool:
        """The same towards here."""
        higher = [each for _, each in self._levels[bisect_right(self._levels, (self.level(low), LAST)) :]]
        higher.reverse()
        if any(self._has_light(high, low) and self._shift([high, low]) for high in higher) or any(
            self._exchange(high, low) for high in higher[:TARGETS]
        ):
            return True
        if self._one_subscription:
            return False
        ways = map(self._reachable_from, higher[:TARGETS])
        return any(low in came_from and self._shift(_path(came_from, low)) for came_from in ways)

    def _reachable_from(self, high: str) -> dict[str, str | None]:
        """Consumers that may get a queue if `high` gives one up, directly or along a path; each with its giver."""
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
        best: tuple[float, Q, Q] | None = None
        for topic, its in self._held[high].items():
            others = self._held[low].get(topic, []) if self._may_read(low, topic) else []
            for weight, queue in its if others else ():
                for other_weight, other in _around(others, weight - wanted):
                    off = abs(weight - other_weight - wanted)
                    if weight > other_weight and (best is None or off < best[0]):
                        best = off, queue, other
        return best is not None and self._try([(best[1], high, low), (best[2], low, high)], 2)

    def _try(self, moves: list[tuple[Q, str, str]], count: int) -> bool:
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

    def _nearest(self, giver: str, taker: str, wanted: float) -> Q | None:
        """The giver's queue of about this weight that the taker may read."""
        found: list[tuple[float, int, Q]] = []
        for topic, held in self._held[giver].items():
            if self._may_read(taker, topic):
                found += [
                    (abs(weight - wanted), self._cost(queue, giver, taker), queue)
                    for weight, queue in _nearest(held, wanted)
                ]
        return min(found)[2] if found else None

    def _cost(self, queue: Q, giver: str, taker: str) -> int:
        home = self._was[queue] if queue in self._was else self._owner.get(queue)
        return (home == giver) - (home == taker)

    # --- what is where

    def level(self, consumer: str) -> float:
        """The weight of its queues per capacity."""
        return self._load[consumer] / self.capacity(consumer)

    def capacity(self, consumer: str) -> float:
        """As it was given."""
        return self._consumers[consumer].capacity

    def _may_stay(self, queue: Q, consumer: str) -> bool:
        if not self._may_read(consumer, queue[0]):
            return False
        fits = self._weights[queue] / self.capacity(consumer) <= self._high
        return self._exact or fits or self.capacity(consumer) == self._largest[queue[0]]

    def _may_read(self, consumer: str, topic: str) -> bool:
        topics = self._consumers[consumer].topics
        return topics is None or topic in topics

    def _has_light(self, giver: str, taker: str) -> bool:
        """Whether the giver has a queue that is light enough to lower the sum of squares at the taker."""
        most = 2 * self._wanted(giver, taker)
        topics = self._held[giver].items()
        return any(held and held[0][0] < most and self._may_read(taker, topic) for topic, held in topics)

    def _give(self, queue: Q, consumer: str) -> None:
        self._owner[queue] = consumer
        self._was.setdefault(queue, None)
        self._set_load(consumer, self._load[consumer] + self._weights[queue])
        insort(self._held[consumer].setdefault(queue[0], []), (self._weights[queue], queue))

    def _take(self, queue: Q, consumer: str) -> None:
        self._was.setdefault(queue, self._owner.pop(queue, None))
        held = self._held[consumer][queue[0]]
        del held[bisect_left(held, (self._weights[queue], queue))]
        self._set_load(consumer, sum(weight for its in self._held[consumer].values() for weight, _ in its))

    def _set_load(self, consumer: str, load: float) -> None:
        is_followed = bool(self._levels)
        if is_followed:
            del self._levels[bisect_left(self._levels, (self.level(consumer), consumer))]
        self._load[consumer] = load
        if is_followed:
            insort(self._levels, (self.level(consumer), consumer))


class _Lowest:
    """Finds the consumer that is lowest with one queue more, while levels only rise. A heap for each capacity."""

    def __init__(self, draft: Weighted[Any], consumers: Iterable[str]) -> None:
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


def _is_one(weights: Mapping[Any, float]) -> bool:
    """Whether all are the same."""
    first = next(iter(weights.values()))
    return all(weight == first for weight in weights.values())


def _nearest(held: Sequence[tuple[float, Q]], wanted: float) -> list[tuple[float, Q]]:
    """The queues whose weight is the next one below this, and the next one above or this."""
    at = bisect_left(held, wanted, key=lambda each: each[0])
    found: list[tuple[float, Q]] = []
    below = at - 1
    while below >= 0 and held[below][0] == held[at - 1][0]:
        found.append(held[below])
        below -= 1
    above = at
    while above < len(held) and held[above][0] == held[at][0]:
        found.append(held[above])
        above += 1
    return found


def _around(held: Sequence[tuple[float, Q]], wanted: float) -> Sequence[tuple[float, Q]]:
    """The queues whose weights are next to this one, below and above."""
    at = bisect_left(held, wanted, key=lambda each: each[0])
    return held[max(at - 1, 0) : at + 1]


Held = Mapping[str, Mapping[str, Sequence[tuple[float, Any]]]]
Move = tuple[Any, str, str]
"""A queue, who gives it, who takes it."""

NEVER = 1 << 20
"""The cost of a step that cannot be made."""


def unneeded(held: Held, home: Mapping[Any, str], readers: Mapping[str, Sequence[str]]) -> list[Move]:
    """Moves that leave every number of queues as it is, or swapped between two consumers, and bring more queues home
    than they take away; none if there are no such moves.

    `held`: the queues of each consumer, by topic. `home`: who had a queue before and may have it. `readers`: by topic.
    """
    consumers = list(held)
    if all(home.get(queue, one) == one for one in consumers for its in held[one].values() for _, queue in its):
        return []
    costs = _with_ends(_steps(held, home, readers, consumers), [_count(held[each]) for each in consumers])
    cycle = _negative_cycle(costs)
    names = dict(enumerate(consumers))
    steps = [(names[giver], names[taker]) for giver, taker in cycle if giver in names and taker in names]
    return [(_cheapest(held[giver], home, readers, giver, taker), giver, taker) for giver, taker in steps]


def _count(by_topic: Mapping[str, Sequence[tuple[float, Any]]]) -> int:
    return sum(map(len, by_topic.values()))


def _steps(
    held: Held, home: Mapping[Any, str], readers: Mapping[str, Sequence[str]], consumers: Sequence[str]
) -> NDArray[np.int64]:
    """The cost of handing a queue from each consumer (row) to each other (column)."""
    place = {consumer: index for index, consumer in enumerate(consumers)}
    columns = {topic: np.array([place[each] for each in names], np.int64) for topic, names in readers.items()}
    costs = np.full((len(consumers), len(consumers)), NEVER, np.int64)
    for giver, by_topic in held.items():
        row = costs[place[giver]]
        for topic, its in by_topic.items():
            homes = {home.get(queue) for _, queue in its}
            if homes:
                row[columns[topic]] = np.minimum(row[columns[topic]], int(homes == {giver}))
                row[[place[each] for each in homes if each not in (None, giver)]] = -1
        row[place[giver]] = NEVER
    return costs


def _with_ends(costs: NDArray[np.int64], counts: Sequence[int]) -> NDArray[np.int64]:
    """Adds a node for each number of queues: from consumers with that many to those with one more, at no cost."""
    numbers = sorted(set(counts))
    size = len(counts) + len(numbers)
    whole = np.full((size, size), NEVER, np.int64)
    whole[: len(counts), : len(counts)] = costs
    for index, count in enumerate(counts):
        whole[index, len(counts) + numbers.index(count)] = 0
        if count - 1 in numbers:
            whole[len(counts) + numbers.index(count - 1), index] = 0
    return whole


def _negative_cycle(costs: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The steps of one cycle whose cost is below 0; none if there is none (Bellman and Ford, a round at once)."""
    size = len(costs)
    reached = np.zeros(size, np.int64)
    came_from = np.full(size, -1, np.int64)
    for _ in range(size + 1):
        through = reached[:, None] + costs
        best = through.argmin(axis=0)
        least = through[best, np.arange(size)]
        nearer = least < reached
        if not nearer.any():
            return []
        reached, came_from = np.where(nearer, least, reached), np.where(nearer, best, came_from)
        if found := _cycle(came_from.tolist()):
            return found
    raise AssertionError("Bellman and Ford end, or their predecessors have a cycle")


def _cycle(came_from: Sequence[int]) -> list[tuple[int, int]]:
    """The steps of a cycle among predecessors; each such cycle has a cost below 0."""
    seen: dict[int, int] = {}
    for start in range(len(came_from)):
        at = start
        while at >= 0 and at not in seen:
            seen[at] = start
            at = came_from[at]
        if at >= 0 and seen[at] == start:
            nodes = [at]
            while came_from[nodes[-1]] != at:
                nodes.append(came_from[nodes[-1]])
            return [(came_from[node], node) for node in nodes]
    return []


def _cheapest(
    by_topic: Mapping[str, Sequence[tuple[float, Any]]],
    home: Mapping[Any, str],
    readers: Mapping[str, Sequence[str]],
    giver: str,
    taker: str,
) -> Any:
    """The queue that such a step hands over."""
    movable = [queue for topic, its in by_topic.items() if taker in readers[topic] for _, queue in its]
    return min(movable, key=lambda queue: ((home.get(queue) == giver) - (home.get(queue) == taker), queue))
