"""Reads the offsets of consumer groups, and of the topics that they read. These are not ours, so names are full names.

Changes nothing, and creates no topic. What blocks runs on threads: with 100,000 partitions even looking at the client's
answer takes a while.
"""

# pyright: reportPrivateImportUsage=false
# (the client documents these names under `confluent_kafka.admin` and does not declare them exported)
from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar, cast

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ListConsumerGroupsResult, OffsetSpec, TopicMetadata

from statechannel.adapters.kafka.admin import FORBIDDEN, Admin, is_forbidden, text_of
from statechannel.adapters.kafka.clients import admin_settings, check_client_settings, connection_settings
from statechannel.adapters.kafka.group_commits import pulled_of
from statechannel.adapters.kafka.group_offsets import GroupOffsets
from statechannel.adapters.kafka.offsets import EARLIEST, LATEST, WRITTEN
from statechannel.adapters.kafka.records import Look, Looking, StoreTimes
from statechannel.errors import LogError, LogUnavailable

BATCH = 10_000
"""Partitions in one request to the client, which sends one request to each leader for them."""
OFFSETS_TOPIC = "__consumer_offsets"
REFUSED = FORBIDDEN | {KafkaError.GROUP_AUTHORIZATION_FAILED}

ByPartition = Mapping[str, Mapping[int, int]]
"""Topic, partition: offset."""

T = TypeVar("T")


class KafkaGroups:
    """Consumer groups of one Kafka cluster; `bootstrap` and `client_settings` as for `KafkaLog`.

    Every method raises LogUnavailable if Kafka does not answer within `request_timeout_s`, and LogError for lack of
    rights. The constructor raises LogError for client settings that Kafka's client refuses.
    """

    def __init__(
        self, bootstrap: str, client_settings: Mapping[str, str] | None = None, request_timeout_s: float = 10.0
    ) -> None:
        check_client_settings(client_settings or {})
        self._connection = connection_settings(bootstrap, client_settings or {}, request_timeout_s)
        self._timeout_s = request_timeout_s
        try:
            self._admin = Admin(admin_settings(self._connection), bootstrap, request_timeout_s)
        except KafkaException as error:
            raise LogError(f"Kafka's client refuses its settings: {text_of(error)}; correct client_settings") from error
        self._offsets = GroupOffsets(self._connection)
        self._times = StoreTimes(self._connection)
        self._leaderless = frozenset[tuple[str, int]]()

    async def committed(self, group: str) -> tuple[ByPartition, ByPartition] | None:
        """The committed offsets of a group, maybe none, and the pull offsets stored with them. None if the group does
        not exist."""

        async def ask() -> tuple[ByPartition, ByPartition]:
            return await asyncio.to_thread(self._committed, group)

        if group in await self.groups():
            return await self._asked(ask)
        # A server that takes the group over lists it only later. A new Kafka that is asked for a group's offsets would
        # create their topic, and wait for it.
        found = await self._asked(ask) if await self._asked(self._keeps_offsets) else None
        return found if found is not None and found[0] else None

    async def groups(self) -> frozenset[str]:
        """The names of all groups, of every protocol: with members, or with committed offsets."""

        async def ask() -> frozenset[str]:
            with self._admin.lent() as client:
                future = client.list_consumer_groups(request_timeout=self._timeout_s)
            answer = cast(ListConsumerGroupsResult, await self._admin.answer(future))
            if answer.errors and not answer.valid:
                raise KafkaException(answer.errors[0])  # the client gives a KafkaError, which is not an Exception
            return frozenset(str(listing.group_id) for listing in answer.valid or [])

        return await self._asked(ask)

    async def queues(self, topics: Collection[str]) -> Mapping[str, int]:
        """How many partitions these topics have; those that do not exist are left out."""
        wanted = frozenset(topics)
        if not wanted:
            return {}

        async def ask() -> tuple[Mapping[str, int], frozenset[tuple[str, int]]]:
            return await asyncio.to_thread(self._describe, wanted)

        counts, self._leaderless = await self._asked(ask)
        return counts

    async def racks(self, topics: Collection[str]) -> Mapping[str, Mapping[int, str]]:
        """By topic, the rack (`broker.rack`) of the first replica of each partition, which leads it while it can: a
        server that starts again changes nothing. Partitions without one are left out."""
        wanted = frozenset(topics)

        async def ask() -> Mapping[str, Mapping[int, str]]:
            servers = (await self._admin.cluster()).nodes
            racks = {each.id: str(each.rack) for each in servers if each.rack}
            return await asyncio.to_thread(self._racks, wanted, racks) if racks else {}

        return await self._asked(ask)

    async def ends(self, queues: Mapping[str, Collection[int]]) -> ByPartition:
        """The high watermarks, which count transaction markers; partitions of which it is not known are left out."""
        return await self._asked(lambda: asyncio.to_thread(self._list, queues, LATEST))

    async def begins(self, queues: Mapping[str, Collection[int]]) -> ByPartition:
        """The log start offsets; partitions of which it is not known are left out."""
        return await self._asked(lambda: asyncio.to_thread(self._list, queues, EARLIEST))

    async def since(self, queues: Mapping[str, Collection[int]], at_ms: int) -> ByPartition:
        """The first offsets with this timestamp, in milliseconds, or a later one; partitions without are left out."""
        spec = OffsetSpec.for_timestamp(at_ms)
        return await self._asked(lambda: asyncio.to_thread(self._list, queues, spec, some_are_missing=True))

    async def stored_ms(self, places: Sequence[tuple[str, int, int]]) -> Mapping[tuple[str, int], int | None]:
        """The timestamps of the first records at or after these offsets (topic, partition, offset), in milliseconds.

        None where there is no such record; unanswered ones are left out. The topic's `message.timestamp.type`
        decides whether it is the time of the append, or one that the producer gave.
        """
        return await asyncio.to_thread(self._times.read, places, self._timeout_s)

    async def look(self, places: Sequence[tuple[str, int, int, int]], look: Look) -> bool:
        """Show the records of these places (topic, partition, first offset, end) to `look`, on a thread.

        Ends when `look` says so, or when all were shown; False if time ran out before, or a place could not be read.
        """
        return await asyncio.to_thread(lambda: Looking(self._connection, look, self._timeout_s).at(places))

    async def _keeps_offsets(self) -> bool:
        """Whether groups have committed offsets before; False if this user may not see that."""
        try:
            return await self._admin.describe(OFFSETS_TOPIC) is not None
        except KafkaException as error:
            if is_forbidden(error):
                return False
            raise

    async def _asked(self, ask: Callable[[], Awaitable[T]]) -> T:
        async def asking() -> T:
            try:
                return await ask()
            except KafkaException as error:
                if error.args[0].code() in REFUSED:
                    raise LogError(
                        f"Kafka at {self._admin.bootstrap}: {text_of(error)} Allow this user Describe on the consumer "
                        "group and on its topics, and Read on the topics to see how old records are"
                    ) from error
                raise

        return await self._admin.until_answered(asking, self._timeout_s)

    def _topics(self, timeout_s: float) -> Mapping[str, TopicMetadata]:
        with self._admin.lent() as client:
            return client.list_topics(timeout=timeout_s).topics

    def _committed(self, group: str) -> tuple[ByPartition, ByPartition]:
        """As `committed`, of a group that exists. Asks about all partitions that this user may see."""
        deadline_s = time.monotonic() + self._timeout_s
        topics = self._topics(self._timeout_s)
        places = [
            (name, number) for name, topic in topics.items() if topic.error is None for number in topic.partitions
        ]
        left_s = max(0.1, deadline_s - time.monotonic())
        return _by_topic(self._offsets.committed(group, places, left_s))

    def _describe(self, wanted: frozenset[str]) -> tuple[Mapping[str, int], frozenset[tuple[str, int]]]:
        """Partition counts, and the partitions without a leader. All topics at once: asking for one may create it."""
        there = self._topics(self._timeout_s)
        known = {name: topic.partitions for name, topic in there.items() if name in wanted and topic.error is None}
        leaderless = {
            (name, number)
            for name, partitions in known.items()
            for number, partition in partitions.items()
            if partition.leader < 0
        }
        return {name: len(partitions) for name, partitions in known.items()}, frozenset(leaderless)

    def _racks(self, wanted: frozenset[str], racks: Mapping[int, str]) -> Mapping[str, Mapping[int, str]]:
        """`racks` of servers."""
        there = self._topics(self._timeout_s)
        return {
            name: {
                number: racks[partition.replicas[0]]
                for number, partition in topic.partitions.items()
                if partition.replicas and partition.replicas[0] in racks
            }
            for name, topic in there.items()
            if name in wanted and topic.error is None
        }

    def _list(
        self, queues: Mapping[str, Collection[int]], spec: OffsetSpec, *, some_are_missing: bool = False
    ) -> ByPartition:
        """One kind of offset of many partitions; raises KafkaException if not even one has an answer.

        With `some_are_missing` no partition needs to have such an offset, and each must answer.
        """
        led = [(topic, number) for topic, numbers in queues.items() for number in numbers]
        if self._leaderless:
            led = [place for place in led if place not in self._leaderless]
        found: dict[str, dict[int, int]] = {}
        failed: KafkaException | None = None
        deadline_s = time.monotonic() + self._timeout_s
        for batch in [led[at : at + BATCH] for at in range(0, len(led), BATCH)]:
            left_s = max(0.1, deadline_s - time.monotonic())
            wanted = {TopicPartition(topic, number): spec for topic, number in batch}
            with self._admin.lent() as client:
                answers = client.list_offsets(wanted, isolation_level=WRITTEN, request_timeout=left_s)
            for (topic, number), future in zip(batch, answers.values(), strict=True):
                error = future.exception(left_s + 1)
                if error is None and (offset := int(future.result().offset)) >= 0:
                    found.setdefault(topic, {})[number] = offset
                elif isinstance(error, KafkaException):
                    failed = error
        if failed is not None and (not found or some_are_missing or failed.args[0].code() in REFUSED):
            raise failed
        if led and not found and not some_are_missing:
            raise LogUnavailable("Kafka did not answer with the offsets of any partition; try again")
        return found


def _by_topic(places: Sequence[TopicPartition]) -> tuple[ByPartition, ByPartition]:
    offsets: dict[str, dict[int, int]] = {}
    pulled: dict[str, dict[int, int]] = {}
    for place in places:
        if place.error is not None:
            raise KafkaException(place.error)
        if place.offset < 0:
            continue
        offsets.setdefault(place.topic, {})[place.partition] = place.offset
        pull = pulled_of(place.metadata)
        if pull is not None:
            pulled.setdefault(place.topic, {})[place.partition] = pull
    return offsets, pulled
