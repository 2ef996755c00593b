"""`STICKY`: as balanced as possible, and within that, every queue stays where it is if it can.

The rule comes from the report on RocketMQ's rebalancing (Alibaba Summer of Code 2020). Keep all, drop what became
invalid, give each free queue to the consumer that has fewest, ties by id. Its code was not always balanced. Here counts
differ by one at most after every change, and no allocation of that kind keeps more. A change costs work for each
consumer and for each queue that it frees, not for those that stay.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Generic, NamedTuple, TypeVar

Q = TypeVar("Q", bound=Any)


class Rebalance(NamedTuple, Generic[Q]):
    """What one change moved: by consumer, the queues that it lost and those that it got.

    A consumer that left, and a queue that was removed, are in `revoked` too.
    """

    revoked: Mapping[str, Sequence[Q]]
    assigned: Mapping[str, Sequence[Q]]


class Sticky(Generic[Q]):
    """The allocation of one group, changed step by step. Queues are values that can be hashed and ordered."""

    name = "STICKY"

    def __init__(self) -> None:
        self._owners: dict[Q, str] = {}
        self._queues: dict[str, dict[Q, None]] = {}
        """By consumer. The queue that came last is given up first."""
        self._free: dict[Q, None] = {}

    @classmethod
    def of(cls, previous: Mapping[str, Iterable[Q]], queues: Iterable[Q], consumers: Iterable[str]) -> Sticky[Q]:
        """Continue from an allocation that may be of other queues and consumers.

        Of a queue that several consumers had, the first of them by id keeps it.
        """
        found = cls()
        found._free = dict.fromkeys(queues)
        found._queues = {consumer: {} for consumer in consumers}
        for consumer in sorted(previous.keys() & found._queues.keys()):
            for queue in previous[consumer]:
                if queue in found._free:
                    del found._free[queue]
                    found._owners[queue] = consumer
                    found._queues[consumer][queue] = None
        found._balance({}, {})
        return found

    def change(
        self,
        *,
        joined: Iterable[str] = (),
        left: Iterable[str] = (),
        added: Iterable[Q] = (),
        removed: Iterable[Q] = (),
    ) -> Rebalance[Q]:
        """Reallocate after these consumers and queues came and went, all at once.

        Known consumers and queues are not added again, and unknown ones are not removed. What is named both as gone and
        as new is removed first: a consumer that left and joined has lost its queues.
        """
        revoked, assigned = dict[str, list[Q]](), dict[str, list[Q]]()
        for queue in removed:
            owner = self._owners.pop(queue, None)
            if owner is not None:
                del self._queues[owner][queue]
                revoked.setdefault(owner, []).append(queue)
            self._free.pop(queue, None)
        for consumer in left:
            for queue in self._queues.pop(consumer, {}):
                del self._owners[queue]
                self._free[queue] = None
                revoked.setdefault(consumer, []).append(queue)
        for consumer in joined:
            self._queues.setdefault(consumer, {})
        for queue in added:
            if queue not in self._owners:
                self._free[queue] = None
        self._balance(revoked, assigned)
        return Rebalance(revoked, assigned)

    def queues_of(self, consumer: str) -> Sequence[Q]:
        """The queues of a consumer, in the order in which it got them; none if it is not there."""
        return tuple(self._queues.get(consumer, ()))

    def owner_of(self, queue: Q) -> str | None:
        """The consumer of a queue; None if the queue is unknown, or there is no consumer."""
        return self._owners.get(queue)

    def allocation(self) -> dict[str, list[Q]]:
        """The queues of every consumer."""
        return {consumer: list(queues) for consumer, queues in self._queues.items()}

    def _balance(self, revoked: dict[str, list[Q]], assigned: dict[str, list[Q]]) -> None:
        if self._queues:
            self._level(revoked)
            self._fill(assigned)

    def _level(self, revoked: dict[str, list[Q]]) -> None:
        """Take queues from those that have too many: as many consumers as the remainder may have one more."""
        least, more = divmod(len(self._owners) + len(self._free), len(self._queues))
        for consumer in sorted(each for each, queues in self._queues.items() if len(queues) > least):
            allowed = least + (more > 0)
            more -= 1
            queues = self._queues[consumer]
            while len(queues) > allowed:
                queue, _ = queues.popitem()
                del self._owners[queue]
                self._free[queue] = None
                revoked.setdefault(consumer, []).append(queue)

    def _fill(self, assigned: dict[str, list[Q]]) -> None:
        """Give each free queue, in order, to the consumer with the fewest: whole rounds at once."""
        free = sorted(self._free)
        order = sorted((len(queues), consumer) for consumer, queues in self._queues.items()) if free else []
        lowest, height, next_one, at = list[str](), 0, 0, 0
        while at < len(free):
            while next_one < len(order) and (not lowest or order[next_one][0] == height):
                height = order[next_one][0]
                insort(lowest, order[next_one][1])
                next_one += 1
            rounds = -(-(len(free) - at) // len(lowest))
            if next_one < len(order):
                rounds = min(rounds, order[next_one][0] - height)
            dealt = free[at : at + rounds * len(lowest)]
            for first, consumer in enumerate(lowest[: len(dealt)]):
                its = dealt[first :: len(lowest)]
                if self._queues[consumer]:
                    self._queues[consumer].update(dict.fromkeys(its))
                else:
                    self._queues[consumer] = dict.fromkeys(its)
                self._owners.update(zip(its, repeat(consumer), strict=False))
                assigned.setdefault(consumer, []).extend(its)
            at += len(dealt)
            height += rounds
        self._free = {}
