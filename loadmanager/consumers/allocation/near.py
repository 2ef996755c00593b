"""Consumers exchange queues, one for one, so that more queues are read in their racks; no consumer gets more or fewer.

Without weights as many are near as the numbers allow: in each rack, all its queues are read there, or all that its
consumers read is of it. With weights no exchange takes a consumer beyond the tolerance, or further beyond. Each
exchange brings one queue more into its rack, so it ends, and what was exchanged stays.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

CANDIDATES = 8
"""So many queues of about the same weight are tried for each one."""
TOLERANCE = 0.05

Q = TypeVar("Q", bound=Any)
"""A queue: a tuple that begins with its topic."""


class Reader(NamedTuple):
    """A consumer, as far as it matters here."""

    rack: str
    topics: frozenset[str]
    capacity: float = 1.0


def exchanges(
    owners: Mapping[Q, str], racks: Mapping[Q, str], readers: Mapping[str, Reader], weights: Mapping[Q, float] | None
) -> dict[Q, str]:
    """The queues that get another owner, each with that one. `racks`: of queues, as far as known."""
    return _Exchange(owners, racks, readers, weights).all()


class _Exchange(Generic[Q]):
    def __init__(
        self,
        owners: Mapping[Q, str],
        racks: Mapping[Q, str],
        readers: Mapping[str, Reader],
        weights: Mapping[Q, float] | None,
    ) -> None:
        self._owners, self._racks, self._readers, self._weights = dict(owners), racks, readers, weights or {}
        self._was = owners
        self._load = dict.fromkeys(readers, 0.0)
        for queue, weight in self._weights.items():
            if queue in owners:
                self._load[owners[queue]] += weight
        mean = sum(self._load.values()) / sum(each.capacity for each in readers.values())
        self._low, self._high = mean * (1 - TOLERANCE), mean * (1 + TOLERANCE)
        self._foreign: dict[str, dict[str, list[tuple[float, Q]]]] = {
            each.rack: {} for each in readers.values() if each.rack
        }
        """By rack, and by the rack where they are: what consumers in the one read of the other, by weight."""
        self._far: list[Q] = []
        self._touched: set[Q] = set()
        rack_of = {name: each.rack for name, each in readers.items()}
        for queue, owner in owners.items():
            here, home = rack_of[owner], racks.get(queue, "")
            if here != home:
                if here:
                    self._foreign[here].setdefault(home, []).append((self._weights.get(queue, 0.0), queue))
                if home in self._foreign:
                    self._far.append(queue)
        for pools in self._foreign.values():
            for pool in pools.values():
                pool.sort()

    def all(self) -> dict[Q, str]:
        far = sorted(self._far)
        while len(left := [queue for queue in far if not self._bring(queue)]) < len(far):
            far = left
        return {each: owner for each in self._touched if (owner := self._owners[each]) != self._was[each]}

    def _is_far(self, queue: Q) -> bool:
        """Returns True if another reader is nearer."""
        home = self._racks.get(queue, "")
        return home in self._foreign and self._readers[self._owners[queue]].rack != home

    def _bring(self, queue: Q) -> bool:
        """Exchange it for one that its new owner is not near to, if possible one that its present owner is. Returns
        whether it is near then."""
        if not self._is_far(queue):
            return True
        giver, rack, weight = self._owners[queue], self._racks[queue], self._weights.get(queue, 0.0)
        here = self._readers[giver].rack
        pools = self._foreign[rack]
        for home in sorted(pools, key=lambda each: (each != here, each)):
            pool = pools[home]
            at = max(0, bisect_left(pool, (weight, queue)) - CANDIDATES // 2)
            for candidate in pool[at : at + CANDIDATES]:
                other = candidate[1]
                taker = self._owners[other]
                if self._may(queue, taker) and self._may(other, giver) and self._fits(giver, taker, weight, candidate):
                    pool.remove(candidate)
                    self._touched.update((queue, other))
                    self._forget(queue, here, weight)
                    self._owners[queue], self._owners[other] = taker, giver
                    self._load[giver] += candidate[0] - weight
                    self._load[taker] += weight - candidate[0]
                    if here and here != home:
                        insort(self._foreign[here].setdefault(home, []), candidate)
                    return True
        return False

    def _forget(self, queue: Q, here: str, weight: float) -> None:
        if here:
            self._foreign[here][self._racks[queue]].remove((weight, queue))

    def _may(self, queue: Q, consumer: str) -> bool:
        return queue[0] in self._readers[consumer].topics

    def _fits(self, giver: str, taker: str, weight: float, other: tuple[float, Q]) -> bool:
        """Whether neither gets beyond the tolerance, or further beyond."""
        more = weight - other[0]
        if not more:
            return True
        if more < 0:
            giver, taker, more = taker, giver, -more
        giver_capacity, taker_capacity = self._readers[giver].capacity, self._readers[taker].capacity
        before = self._load[giver] / giver_capacity, self._load[taker] / taker_capacity
        lower, higher = before[0] - more / giver_capacity, before[1] + more / taker_capacity
        return higher <= max(self._high, before[0]) and lower >= min(self._low, before[1])
