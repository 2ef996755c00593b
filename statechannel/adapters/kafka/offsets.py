"""Asks Kafka for the offsets of partitions (begin, end, at a time), and trims them.

A partition has two ends: the last entry written, and the last that readers get (`committed`), which is below the first
open transaction. A transaction's marker also takes an offset, which no reader gets.
"""

# pyright: reportPrivateImportUsage=false
# (the client documents these names under `confluent_kafka.admin` and does not declare them exported)
from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import msgspec
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from statechannel.adapters.kafka.admin import Admin, text_of
from statechannel.errors import LogUnavailable, TopicMismatch

MOVED = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)
LATEST, EARLIEST = cast(OffsetSpec, OffsetSpec.latest()), cast(OffsetSpec, OffsetSpec.earliest())
COMMITTED = cast(IsolationLevel, IsolationLevel.READ_COMMITTED)
WRITTEN = cast(IsolationLevel, IsolationLevel.READ_UNCOMMITTED)
NONE_YET = -1
"""Kafka's answer for a time after the last entry."""
FIRST_LOOK_S, LAST_LOOK_S = 0.002, 0.1


class Span(msgspec.Struct, frozen=True):
    """The offsets of one partition at one moment: readers get those in `[begin, committed)`; it ends at `end`."""

    begin: int
    committed: int
    end: int


class Offsets:
    """Asks for offsets by the topics' full names. Every method raises LogUnavailable after the request time-out."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._partitions: dict[str, int] = {}

    def learn(self, topic: str, partitions: int) -> None:
        """Remember how many partitions a topic has, which saves a request."""
        self._partitions[topic] = partitions

    async def ends(self, topic: str) -> tuple[int, ...]:
        """The high watermarks: they include transaction markers and uncommitted entries."""
        return await self._everywhere(topic, LATEST)

    async def begins(self, topic: str) -> tuple[int, ...]:
        """The log start offsets."""
        return await self._everywhere(topic, EARLIEST)

    async def are_none(self, topic: str, partitions: int) -> bool:
        """Whether nothing was ever written to the first so many partitions. Raises KafkaException or TimeoutError."""
        wanted = {TopicPartition(topic, partition): LATEST for partition in range(partitions)}
        return not any((await self._list(topic, wanted, WRITTEN)).values())

    async def span(self, topic: str, partition: int) -> Span:
        """Begin and both ends of one partition; `committed` is above all entries committed before the call."""

        async def ask() -> Span:
            committed = await self._one(topic, partition, LATEST, COMMITTED)
            end = await self._one(topic, partition, LATEST)
            return Span(await self._one(topic, partition, EARLIEST), committed, end)

        return await self._admin.until_answered(ask, self._admin.timeout_s)

    async def at(self, topic: str, partition: int, at_ms: int) -> int:
        """As `Log.offset_at`."""
        moment = cast(OffsetSpec, OffsetSpec.for_timestamp(max(0, at_ms)))

        async def ask() -> int:
            end = await self._one(topic, partition, LATEST)  # first: later entries may be of that time or later
            found = await self._one(topic, partition, moment)
            return end if found == NONE_YET else found

        return await self._admin.until_answered(ask, self._admin.timeout_s)

    async def trim(self, topic: str, partition: int, before: int) -> None:
        """As `Log.trim`. Raises TopicMismatch for a topic that Kafka does not trim."""
        span = await self.span(topic, partition)
        where = TopicPartition(topic, partition, min(before, span.end))
        if where.offset <= span.begin:
            return
        await self._admin.until_answered(lambda: self._delete(where), self._admin.timeout_s)

    async def until_readable(self, topic: str, partition: int, offset: int) -> None:
        """Wait until readers get this offset: Kafka answers a commit some milliseconds earlier."""
        deadline = asyncio.get_running_loop().time() + self._admin.timeout_s
        pause_s = FIRST_LOOK_S

        async def ask() -> int:
            return await self._one(topic, partition, LATEST, COMMITTED)

        while await self._admin.until_answered(ask, self._admin.timeout_s) <= offset:
            if asyncio.get_running_loop().time() > deadline:
                raise LogUnavailable(
                    f"{topic} partition {partition} cannot be read up to offset {offset} yet: a transaction is open "
                    "there; try again once its writer or the next writer has ended it, or it has timed out"
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_LOOK_S)

    async def _everywhere(self, topic: str, spec: OffsetSpec) -> tuple[int, ...]:
        partitions = range(await self._count(topic))
        wanted = {TopicPartition(topic, partition): spec for partition in partitions}

        async def ask() -> tuple[int, ...]:
            found = await self._list(topic, wanted, WRITTEN)
            return tuple(found[partition] for partition in partitions)

        return await self._admin.until_answered(ask, self._admin.timeout_s)

    async def _one(
        self,
        topic: str,
        partition: int,
        spec: OffsetSpec,
        isolation: IsolationLevel = WRITTEN,
    ) -> int:
        return (await self._list(topic, {TopicPartition(topic, partition): spec}, isolation))[partition]

    async def _list(
        self, topic: str, wanted: Mapping[TopicPartition, OffsetSpec], isolation: IsolationLevel
    ) -> Mapping[int, int]:
        timeout_s = self._admin.timeout_s
        with self._admin.lent() as client:
            answers = client.list_offsets(dict(wanted), isolation_level=isolation, request_timeout=timeout_s)
        try:
            found = await asyncio.gather(*(self._admin.answer(future) for future in answers.values()))
        except KafkaException as error:
            if error.args[0].code() in MOVED:  # the client keeps the old leader epoch until it asks for metadata
                await asyncio.to_thread(self._learn_leaders, topic)
            raise
        offsets = {where.partition: result.offset for where, result in zip(answers, found, strict=True)}
        if min(offsets.values()) < NONE_YET:  # the client returns this, without an error, when it got no answer
            raise LogUnavailable(f"Kafka did not answer with the offsets of {topic}; try again")
        return offsets

    def _learn_leaders(self, topic: str) -> None:
        with self._admin.lent() as client:
            client.list_topics(topic, timeout=self._admin.timeout_s)

    async def _delete(self, where: TopicPartition) -> None:
        with self._admin.lent() as client:
            answers = client.delete_records([where], request_timeout=self._admin.timeout_s)
        try:
            await self._admin.answer(answers[where])
        except KafkaException as error:
            if error.args[0].code() == KafkaError.POLICY_VIOLATION:
                raise TopicMismatch(
                    f"topic {where.topic} is only compacted, and Kafka does not trim such a topic: "
                    "write tombstones for its keys instead"
                ) from error
            raise

    async def _count(self, topic: str) -> int:
        """How many partitions an existing topic has. Raises LogUnavailable."""
        if topic not in self._partitions:
            try:
                description = await self._admin.describe(topic)
            except (KafkaException, TimeoutError) as error:
                raise LogUnavailable(f"Kafka at {self._admin.bootstrap}: {topic}: {text_of(error)}") from error
            if description is None:
                raise LogUnavailable(f"topic {topic} does not exist on Kafka at {self._admin.bootstrap}; open it first")
            self.learn(topic, len(description.partitions))
        return self._partitions[topic]
