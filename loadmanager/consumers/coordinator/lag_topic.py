"""The topic `group-lag`: how far groups are behind, partition by partition, once a minute. The load history reads it.

Each coordinator writes what it has read of its own groups that have members. A record's key is group, topic and queue,
and the topic is compacted, so it stays as small as the groups are. A group's record (`GroupRecord.reported`) names the
topics with reports before they are written. A coordinator that forgets the group, or sees that it no longer reads a
topic, deletes these keys.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from loadmanager.consumers.coordinator.records import Partition
from statechannel.errors import LogError, LogUnavailable
from statechannel.ports import Log, Payload, TopicSpec

GROUP_LAG_TOPIC = "group-lag"
GROUP_LAG = TopicSpec(GROUP_LAG_TOPIC, 1, compacted=True, followed=True)
EVERY_S = 60.0
MOST = 10_000
"""So many partitions one coordinator reports at a time; where there are more, they take turns."""
APPENDED_AT_ONCE = 1_000
DELETED_WITHIN_S = 5.0

_log = logging.getLogger("loadmanager.consumers")


class GroupLagRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many messages of a queue of a topic a consumer group has not read, and which consumer has the queue.

    `generation` grows with every change of who should read what.
    """

    at_ms: int
    group: str
    topic: str
    queue: int
    lag: int
    consumer: str = ""
    generation: int = 0


class GroupLags(msgspec.Struct, frozen=True):
    """The lags of one group, as they were read at `at_ms` (since 1970), and who held its partitions then."""

    group: str
    at_ms: int
    lags: Mapping[Partition, int]
    holders: Mapping[Partition, str]
    generation: int

    def record(self, partition: Partition) -> GroupLagRecord:
        """What is written of one partition."""
        lag, consumer = self.lags[partition], self.holders.get(partition, "")
        return GroupLagRecord(self.at_ms, self.group, *partition, lag, consumer, self.generation)

    def sizes(self) -> dict[str, int]:
        """By topic, one more than the highest of its queues here."""
        found: dict[str, int] = {}
        for topic, number in self.lags:
            found[topic] = max(number + 1, found.get(topic, 0))
        return found


def key_of(group: str, partition: Partition) -> bytes:
    """A record's key. A group's name may have line breaks, a topic's has none."""
    return f"{group}\n{partition[0]}\n{partition[1]}".encode()


def deletions(group: str, sizes: Mapping[str, int]) -> list[Payload]:
    """What deletes all reports of a group for these topics."""
    return [Payload(key_of(group, (topic, each)), None) for topic, size in sizes.items() for each in range(size)]


class LagTopic:
    """Writes the topic, which it creates with its first report. All methods run on the log's loop."""

    def __init__(self, log: Log, most: int = MOST) -> None:
        self._log = log
        self._most = most
        self._is_open = False
        self._last: tuple[str, Partition] = ("", ("", 0))
        """Where the last turn ended."""

    async def report(self, groups: Sequence[GroupLags]) -> None:
        """Write what was read. Raises LogUnavailable, and LogError for lack of rights or another kind of topic."""
        await self._append(await asyncio.to_thread(self._reports, groups))

    async def delete(self, group: str, sizes: Mapping[str, int]) -> None:
        """Delete a group's reports for these topics; does not wait if there are none. Raises LogUnavailable, after
        `DELETED_WITHIN_S` at the latest. Reports stay where the log refuses it."""
        if not sizes:
            return
        try:
            async with asyncio.timeout(DELETED_WITHIN_S):
                await self._append(await asyncio.to_thread(deletions, group, sizes))
        except TimeoutError:
            raise LogUnavailable(
                f"the lag of {group} could not be deleted from {GROUP_LAG_TOPIC} within {DELETED_WITHIN_S:g} s"
            ) from None
        except LogUnavailable:
            raise
        except LogError as error:
            _log.warning("the lag of %s stays in %s: %s", group, GROUP_LAG_TOPIC, error)

    def _reports(self, groups: Sequence[GroupLags]) -> list[Payload]:
        by_name = {each.group: each for each in groups}
        places = [(name, partition) for name, its in by_name.items() for partition in its.lags]
        return [
            Payload(key_of(name, partition), msgspec.json.encode(by_name[name].record(partition)))
            for name, partition in self._turn(places)
        ]

    def _turn(self, places: Iterable[tuple[str, Partition]]) -> Sequence[tuple[str, Partition]]:
        ordered = sorted(places)
        if len(ordered) > self._most:
            at = bisect_right(ordered, self._last)
            ordered = [*ordered[at:], *ordered[:at]][: self._most]
            self._last = ordered[-1]
        return ordered

    async def _append(self, payloads: Sequence[Payload]) -> None:
        if payloads and not self._is_open:
            await self._log.open_topic(GROUP_LAG)
            self._is_open = True
        for at in range(0, len(payloads), APPENDED_AT_ONCE):
            await self._log.append(GROUP_LAG_TOPIC, 0, payloads[at : at + APPENDED_AT_ONCE])
