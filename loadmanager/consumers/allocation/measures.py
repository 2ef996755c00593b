"""How good an allocation is, in three figures: those of the report on RocketMQ's rebalancing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import sqrt


def balance_degree(allocation: Mapping[str, Collection[object]]) -> float:
    """Population standard deviation of the numbers of queues; 0 if all have the same, or there are no consumers."""
    counts = [len(queues) for queues in allocation.values()]
    if not counts:
        return 0.0
    mean = sum(counts) / len(counts)
    return sqrt(sum((count - mean) ** 2 for count in counts) / len(counts))


def difference(allocation: Mapping[str, Collection[object]]) -> int:
    """The most queues that a consumer has, less the fewest."""
    counts = [len(queues) for queues in allocation.values()]
    return max(counts, default=0) - min(counts, default=0)


def kept(before: Mapping[str, Collection[object]], after: Mapping[str, Collection[object]]) -> int:
    """How many queues have the same consumer as before."""
    return sum(len(set(queues) & set(before.get(consumer, ()))) for consumer, queues in after.items())


def stickiness(before: Mapping[str, Collection[object]], after: Mapping[str, Collection[object]], queues: int) -> float:
    """The share of all `queues` that have the same consumer as before; 0 if there are no queues."""
    return kept(before, after) / queues if queues else 0.0
