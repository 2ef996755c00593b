"""`Log` on Kafka. Settings, topics, writing and reading are in the other modules of this package."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

import msgspec
from confluent_kafka import KafkaException

from statechannel.adapters.kafka.admin import Admin
from statechannel.adapters.kafka.clients import (
    LOGGER,
    admin_settings,
    check_client_settings,
    check_delay,
    connection_settings,
    consumer_settings,
    exclusive_settings,
    producer_settings,
    reading_settings,
)
from statechannel.adapters.kafka.exclusive import Exclusive
from statechannel.adapters.kafka.offsets import Offsets
from statechannel.adapters.kafka.reader import Reader, Tail
from statechannel.adapters.kafka.topics import TopicPolicy, Topics
from statechannel.adapters.kafka.writer import Writer
from statechannel.errors import LogError, LogUnavailable
from statechannel.ports import ExclusiveWriter, LogEntry, Payload, TopicSpec
from statechannel.runtime.batching import BatchSettings

CLOSE_TIMEOUT_S = 1.5


class _Opened(msgspec.Struct, frozen=True):
    """The parts that need a cluster that has answered."""

    admin: Admin
    topics: Topics
    offsets: Offsets
    reader: Reader


class KafkaLog:
    """A `statechannel.ports.Log`; its topics are Kafka topics of the same name with `topic_prefix` before it.

    `bootstrap` is `host:port[,host:port...]`. Unless `development`, topics that could lose acknowledged records
    (replication < 3, min.insync.replicas < 2, unclean elections) are refused with TopicMismatch. `client_settings` are
    librdkafka's (security, compression); those in `clients.PROTECTED` are refused with LogError. In new compacted
    topics tombstones stay readable for `tombstone_s`, and each entry of a followed topic for `compaction_lag_s`.
    With `batching` appends wait for others that they share a batch with; `client_settings` go before it.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        topic_prefix: str = "loadmanager.",
        default_partitions: int = 16,
        replication: int = 3,
        min_insync: int = 2,
        development: bool = False,
        tombstone_s: float = 86_400.0,
        compaction_lag_s: float = 86_400.0,
        client_settings: Mapping[str, str] | None = None,
        request_timeout_s: float = 5.0,
        batching: BatchSettings | None = None,
    ) -> None:
        check_client_settings(client_settings or {})
        if batching is not None:
            check_delay(batching, client_settings or {}, request_timeout_s)
        self._bootstrap = bootstrap
        self._prefix = topic_prefix
        self._policy = TopicPolicy(
            default_partitions, replication, min_insync, development, tombstone_s, compaction_lag_s
        )
        self._timeout_s = request_timeout_s
        self._batching = batching
        self._connection = connection_settings(bootstrap, client_settings or {}, request_timeout_s)
        self._opened: _Opened | None = None
        self._writer: Writer | None = None
        self._tails: weakref.WeakSet[Tail] = weakref.WeakSet()
        self._exclusives: weakref.WeakSet[Exclusive] = weakref.WeakSet()

    async def start(self, timeout_s: float) -> None:
        """As `Log.start`; raises LogError too, for client settings that Kafka's client refuses."""
        self._policy.check()
        try:
            admin = Admin(admin_settings(self._connection), self._bootstrap, self._timeout_s)
            offsets = Offsets(admin)
            await admin.connect(timeout_s)
            reader = Reader(admin, offsets, self._reading_tail)
            self._opened = _Opened(admin, Topics(admin, self._policy, offsets), offsets, reader)
            self._writer = self._new_writer()
        except KafkaException as error:
            raise LogError(
                f"Kafka's client refuses its settings: {error.args[0].str()}; correct client_settings"
            ) from error

    async def open_topic(self, spec: TopicSpec) -> int:
        """As `Log.open_topic`."""
        topic = self._prefix + spec.name
        opened = self._asked
        partitions = await opened.topics.open(topic, spec)
        opened.offsets.learn(topic, partitions)
        return partitions

    async def has_topic(self, topic: str) -> bool:
        """As `Log.has_topic`."""
        return await self._asked.topics.exists(self._prefix + topic)

    async def append(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        """As `Log.append`; a payload's key and value may have `clients.MAX_ENTRY_BYTES` together."""
        writer = self._writer
        if writer is None:
            raise LogUnavailable(f"the log on Kafka at {self._bootstrap} is closed or was not started")
        if writer.broken:
            LOGGER.warning("replacing the Kafka producer: %s", writer.broken)
            writer.stop(flush=False)
            writer = self._writer = self._new_writer()
        await writer.append(self._prefix + topic, partition, payloads)

    async def ends(self, topic: str) -> tuple[int, ...]:
        """As `Log.ends`. After an exclusive writer's entries they count its transaction markers, which no reader gets.

        So do not wait on a tail for such an end: use `read`, which ends by itself.
        """
        return await self._asked.offsets.ends(self._prefix + topic)

    async def begins(self, topic: str) -> tuple[int, ...]:
        """As `Log.begins`."""
        return await self._asked.offsets.begins(self._prefix + topic)

    async def offset_at(self, topic: str, partition: int, at_ms: int) -> int:
        """As `Log.offset_at`."""
        return await self._asked.offsets.at(self._prefix + topic, partition, at_ms)

    async def trim(self, topic: str, partition: int, before: int) -> None:
        """As `Log.trim`; raises TopicMismatch for a compacted topic, which Kafka does not trim."""
        await self._asked.offsets.trim(self._prefix + topic, partition, before)

    def tail(self, topic: str, starts: Sequence[int]) -> Tail:
        """As `Log.tail`; an offset beyond the end is a LogError: the log was damaged or replaced."""
        tail = Tail(consumer_settings(self._connection), self._prefix + topic, dict(enumerate(starts)))
        self._tails.add(tail)
        return tail

    async def read(self, topic: str, partition: int, start: int) -> AsyncGenerator[Sequence[LogEntry], None]:
        """As `Log.read`; a start beyond the partition's end gives nothing."""
        async with aclosing(self._asked.reader.read(self._prefix + topic, partition, start)) as batches:
            async for batch in batches:
                yield batch

    async def exclusive(self, writer_id: str) -> ExclusiveWriter:
        """As `Log.exclusive`: the transactional id is the topic prefix and `writer_id`.

        Raises LogError if no retry helps (lack of rights, or the cluster's settings); the message says what to do.
        """
        opened = self._asked
        settings = exclusive_settings(self._connection, self._timeout_s, self._prefix + writer_id)
        writer = Exclusive(settings, self._prefix, opened.offsets, opened.reader, self._timeout_s)
        self._exclusives.add(writer)
        try:
            await writer.take_over()
        except BaseException:
            await writer.close()
            raise
        return writer

    async def close(self) -> None:
        """As `Log.close`."""
        writer, opened, self._writer, self._opened = self._writer, self._opened, None, None
        tails = list(self._tails)
        for tail in tails:
            await tail.aclose()
        if writer is not None:
            writer.stop(flush=True)
        await asyncio.gather(*(exclusive.close() for exclusive in list(self._exclusives)))
        if writer is not None:
            await asyncio.to_thread(_join, [writer, *tails])
        if opened is not None:
            await asyncio.to_thread(opened.admin.close)

    @property
    def _asked(self) -> _Opened:
        if self._opened is None:
            raise LogUnavailable(f"the log on Kafka at {self._bootstrap} is closed or was not started")
        return self._opened

    def _reading_tail(self, topic: str, partition: int, start: int, until: int) -> Tail:
        tail = Tail(reading_settings(self._connection), topic, {partition: start}, until)
        self._tails.add(tail)
        return tail

    def _new_writer(self) -> Writer:
        settings = producer_settings(self._connection, self._timeout_s, self._batching)
        return Writer(settings, asyncio.get_running_loop(), self._timeout_s)


def _join(threads: Sequence[Writer | Tail]) -> None:
    deadline = time.monotonic() + CLOSE_TIMEOUT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
