"""Follows the backlog of groups: what partitions weigh, and how much each group reads.

A partition's weight is its produce rate per second plus a sixtieth of its lag: the rate at which its reader catches up
within a minute. A group is rebalanced for that only if one member has much more to do than the mean, because each move
costs a pause, and lag goes up and down all the time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import msgspec

from loadmanager.consumers.backlog.figures import GroupBacklog, in_order
from loadmanager.consumers.backlog.port import GroupOffsets
from loadmanager.consumers.backlog.reading import BacklogReader
from loadmanager.consumers.coordinator.records import Partition, Subscription
from loadmanager.errors import NotFound

DRAINED_WITHIN_S = 60.0
AGES = 100
"""Number of partitions of a group, those with the largest lags, for which the age of their records is read."""
UNEVEN = 1.2
"""How much one member may have to do, as a multiple of the mean, before the group is rebalanced."""

_log = logging.getLogger("loadmanager.consumers")


class Reading(msgspec.Struct, frozen=True):
    """A group's backlog, when it was read (steady seconds), and the ends of its queues."""

    at_s: float
    backlog: GroupBacklog
    ends: Mapping[Partition, int]
    lags: Mapping[Partition, int]
    consumed: int

    @classmethod
    def of(cls, at_s: float, backlog: GroupBacklog) -> Reading:
        """A reading of queues whose end is known."""
        ends: dict[Partition, int] = {}
        lags: dict[Partition, int] = {}
        consumed = 0
        for topic in backlog.topics:
            for number, offsets in backlog.offsets_of(topic):
                queue = in_order(offsets)
                if queue is not None:
                    ends[topic, number], lags[topic, number] = queue.end, queue.lag
                    consumed += queue.consumer
        return cls(at_s, backlog, ends, lags, consumed)


class LagWatch:
    """The last two readings of each group. Pure."""

    def __init__(self) -> None:
        self._readings: dict[str, tuple[Reading, Reading | None]] = {}

    def add(self, group: str, reading: Reading) -> None:
        """Take in a reading."""
        last, _ = self._readings.get(group, (None, None))
        self._readings[group] = reading, last

    def keep(self, groups: set[str]) -> None:
        """Forget all others."""
        self._readings = {group: its for group, its in self._readings.items() if group in groups}

    def newest(self, group: str) -> Reading | None:
        """The last reading of a group."""
        return self._readings.get(group, (None, None))[0]

    def backlogs(self) -> list[GroupBacklog]:
        """The newest of each group."""
        return [newest.backlog for newest, _ in self._readings.values()]

    def consumed_per_s(self, group: str) -> float:
        """Records a second between the last two readings; 0 if there are none, or if offsets went back."""
        newest, before = self._readings.get(group, (None, None))
        if newest is None or before is None or newest.at_s <= before.at_s or newest.ends.keys() != before.ends.keys():
            return 0.0
        return max(0.0, (newest.consumed - before.consumed) / (newest.at_s - before.at_s))

    def weights(self, group: str) -> dict[Partition, float] | None:
        """What the partitions weigh, in records a second; None before there were two readings."""
        newest, before = self._readings.get(group, (None, None))
        if newest is None or before is None or newest.at_s <= before.at_s:
            return None
        window_s = newest.at_s - before.at_s
        return {
            each: max(0, end - before.ends.get(each, end)) / window_s + newest.lags[each] / DRAINED_WITHIN_S
            for each, end in newest.ends.items()
        }


def is_uneven(
    weights: Mapping[Partition, float], holders: Mapping[Partition, str], members: Mapping[str, Subscription]
) -> bool:
    """Returns True if one member has to read more than `UNEVEN` times the mean, for its capacity, and could give
    something up.

    A member with one partition cannot: some member has to read the heaviest partition.
    """
    loads = dict.fromkeys(members, 0.0)
    heaviest = dict.fromkeys(members, 0.0)
    for partition, holder in holders.items():
        weight = weights.get(partition, 0.0)
        if holder in loads:
            loads[holder] += weight
            heaviest[holder] = max(heaviest[holder], weight)
    capacity = sum(each.capacity for each in members.values())
    mean = sum(loads.values()) / capacity if members else 0.0
    return any(
        load / members[name].capacity > UNEVEN * mean and load > heaviest[name] * 1.000_001
        for name, load in loads.items()
    )


class LagFollower:
    """Reads the backlogs of one coordinator's groups again and again. Belongs to its loop; sums are made on threads."""

    def __init__(self, offsets: GroupOffsets, clock_s: Callable[[], float], every_s: float) -> None:
        self.backlogs: Sequence[GroupBacklog] = ()
        """As they were read last."""
        self._reader = BacklogReader(offsets, asyncio.to_thread)
        self._clock_s = clock_s
        self._every_s = every_s
        self._watch = LagWatch()

    async def read(self, group: str, ages: int = 0) -> Reading:
        """The group's backlog now, with the ages of so many partitions. Raises NotFound (it has no offsets),
        Unavailable."""
        backlog = await self._reader.read(group.partition("://")[2], ages=ages)
        now_s = self._clock_s()
        return await asyncio.to_thread(Reading.of, now_s, backlog)

    def newest(self, group: str) -> Reading | None:
        """The last reading of a group, if it was read in its last turn."""
        return self._watch.newest(group)

    def consumed_per_s(self, group: str) -> float:
        """As `LagWatch` says."""
        return self._watch.consumed_per_s(group)

    async def run(
        self,
        groups: Callable[[], Collection[str]],
        weigh: Callable[[str, Mapping[Partition, float]], Awaitable[None]],
    ) -> None:
        """Read these groups, and tell what their partitions weigh, until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            for group in tuple(groups()):
                await self._see(group, weigh)
            self._watch.keep(set(groups()))
            self.backlogs = self._watch.backlogs()

    async def _see(self, group: str, weigh: Callable[[str, Mapping[Partition, float]], Awaitable[None]]) -> None:
        try:
            self._watch.add(group, await self.read(group, AGES))
        except NotFound:
            return  # it has committed nothing yet
        except Exception as error:  # noqa: BLE001 - whatever Kafka's client says, the coordinator goes on
            _log.warning("%s: its backlog cannot be read: %s", group, error)
            return
        weights = self._watch.weights(group)
        if weights is not None:
            await weigh(group, weights)
