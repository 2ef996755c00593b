"""Reads the entries that one partition has at the moment of the call, then ends.

Kafka lets a reader hang in two places: between the last committed entry and the partition's end it neither answers nor
fails, and behind the last entry it is silent unless told to report the end. So the reader asks for begin and end first.
"""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from confluent_kafka import KafkaException
from confluent_kafka.admin import ResourceType

from statechannel.adapters.kafka.admin import Admin, text_of
from statechannel.adapters.kafka.offsets import Offsets
from statechannel.adapters.kafka.tail import Tail
from statechannel.errors import LogUnavailable, Trimmed
from statechannel.ports import LogEntry

OpenTail = Callable[[str, int, int, int], Tail]
"""Topic, partition, first offset, and the offset before which to stop."""


class Reader:
    """As `Log.read`, by the topics' full names."""

    def __init__(self, admin: Admin, offsets: Offsets, open_tail: OpenTail) -> None:
        self._admin = admin
        self._offsets = offsets
        self._open_tail = open_tail

    async def read(self, topic: str, partition: int, start: int) -> AsyncGenerator[Sequence[LogEntry], None]:
        """As `Log.read`; a start beyond the partition's end gives nothing."""
        span = await self._offsets.span(topic, partition)
        if start < span.begin:
            if not await self._compacted(topic):
                raise Trimmed(
                    f"{topic} partition {partition} has no offset {start} any more, it was trimmed up to "
                    f"{span.begin}: start from a snapshot, never skip"
                )
            start = span.begin
        if start >= span.committed:
            return
        tail = self._open_tail(topic, partition, start, span.committed)
        try:
            while start < span.committed and (batch := await self._next(tail, topic, partition)) is not None:
                yield batch
                start = batch[-1].offset + 1
        finally:
            await tail.aclose()

    async def holds(self, topic: str, partition: int, offset: int) -> bool:
        """Whether readers get an entry at exactly this offset. Raises LogUnavailable."""
        async with aclosing(self.read(topic, partition, offset)) as batches:
            first = await anext(batches, None)
        return first is not None and first[0].offset == offset

    async def _next(self, tail: Tail, topic: str, partition: int) -> Sequence[LogEntry] | None:
        try:
            async with asyncio.timeout(self._admin.timeout_s):
                batch = await anext(tail, None)
        except TimeoutError:
            why = tail.trouble.latest or "no answer"
            raise LogUnavailable(
                f"Kafka at {self._admin.bootstrap}: no record of {topic} partition {partition} "
                f"came for {self._admin.timeout_s:g} s: {why}"
            ) from None
        if batch is None and tail.cut_off:
            raise LogUnavailable(f"the log was closed while {topic} partition {partition} was read")
        return batch

    async def _compacted(self, topic: str) -> bool:
        try:
            settings = await self._admin.settings(ResourceType.TOPIC, topic)
        except (KafkaException, TimeoutError) as error:
            raise LogUnavailable(f"Kafka at {self._admin.bootstrap}: {topic}: {text_of(error)}") from error
        return "compact" in settings["cleanup.policy"]
