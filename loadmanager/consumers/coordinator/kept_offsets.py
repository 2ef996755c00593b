"""Keeps the committed offsets of a group: gives each partition one before it is read, and commits all again in time.

Kafka sees no members of our groups, so it deletes each offset some time after its commit (`offsets.retention.minutes`),
also while a member reads the partition and nothing new comes. And where a group without a commit begins would depend on
when its first record is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from loadmanager.consumers.coordinator.messages import STARTS
from loadmanager.consumers.coordinator.ports import Committed, Topics
from loadmanager.consumers.coordinator.records import Partition, Subscription, listed

LONGEST_S = 3_600.0
UNKNOWN_S = 15.0
"""A quarter of the least retention that Kafka allows."""


def period_s(retention_s: float | None) -> float:
    """How often to commit again: four times within Kafka's retention, so that three attempts may fail."""
    return UNKNOWN_S if retention_s is None else min(retention_s / 4, LONGEST_S)


def start_of(members: Iterable[Subscription]) -> str:
    """Where the group starts: at the begin if one of its members says so, since that loses nothing."""
    return min((each.starts_at for each in members), key=STARTS.index, default=STARTS[-1])


Commit = Callable[[Mapping[Partition, int], Mapping[Partition, int]], Awaitable[None]]
"""Stores offsets, and the first ones that were not pulled."""


async def keep(topics: Topics, group: str, partitions: Collection[Partition], start: str, commit: Commit) -> set[str]:
    """Commit for all of these partitions: what is committed, or else where the group starts. Returns the topics that
    wait for a leader.

    All partitions of a topic get their commits at once. So one without, beside others, came later: the group has read
    nothing of it, and starts at its begin. Raises as `commit` and `GroupOffsets`.
    """
    kept = dict(await topics.commits(group, partitions))
    old = {topic for topic, _ in kept}
    missing = [each for each in partitions if each not in kept and (start != "none" or each[0] in old)]
    waiting = set[str]()
    if missing:
        queues = listed(missing)
        begins, ends = await topics.offsets.begins(queues), await topics.offsets.ends(queues)
        new: dict[Partition, Committed] = {}
        for topic, number in missing:
            known = begins if topic in old or start == "earliest" else ends
            offset = known.get(topic, {}).get(number)
            if offset is None:
                waiting.add(topic)
            else:
                new[topic, number] = Committed(offset, offset)
        kept |= {each: its for each, its in new.items() if each[0] not in waiting}
    if kept:
        offsets = {each: its.offset for each, its in kept.items()}
        pulled = {each: its.pulled for each, its in kept.items() if its.pulled is not None}
        await commit(offsets, pulled)
    return waiting
