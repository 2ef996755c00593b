"""Undoes moves that balance does not need, where all queues weigh the same but subscriptions differ.

A balanced allocation keeps most if no cycle of moves keeps more (Klein 1967, for flows of least cost). A step of a
cycle hands a queue from one consumer to another: it costs 1 if the queue leaves its home, -1 if it comes home, else 0.
A cycle may also end at a consumer and go on at one that has one queue more: both numbers are swapped, and the balance
stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
