"""`Log` on Kafka. Decides nothing itself: settings, topics, writing and reading are in the modules beside this one."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence

from confluent_kafka import KafkaException

from statechannel.adapters.kafka_clients import (
    LOGGER,
    admin_settings,
    check_client_settings,
    connection_settings,
    consumer_settings,
    producer_settings,
)
from statechannel.adapters.kafka_tail import Tail
from statechannel.adapters.kafka_topics import TopicPolicy, Topics
from statechannel.adapters.kafka_writer import Writer
from statechannel.errors import LogError, LogUnavailable
from statechannel.ports import LogEntry, Payload, TopicSpec

CLOSE_TIMEOUT_S = 1.5


class KafkaLog:
    """A `statechannel.ports.Log` whose topics are Kafka topics of the same name behind `topic_prefix`.

    `bootstrap` is `host:port[,host:port...]`. Unless `development`, topics that could lose acknowledged records
    (replication < 3, min.insync.replicas < 2, unclean elections) are refused with TopicMismatch. `client_settings` are
    librdkafka's (security, compression); those the protocol rests on are refused with LogError.
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
        client_settings: Mapping[str, str] | None = None,
        request_timeout_s: float = 5.0,
    ) -> None:
        check_client_settings(client_settings or {})
        self._bootstrap = bootstrap
        self._prefix = topic_prefix
        self._policy = TopicPolicy(default_partitions, replication, min_insync, development)
        self._timeout_s = request_timeout_s
        self._connection = connection_settings(bootstrap, client_settings or {}, request_timeout_s)
        self._partitions: dict[str, int] = {}
        self._opened: Topics | None = None
        self._writer: Writer | None = None
        self._tails: weakref.WeakSet[Tail] = weakref.WeakSet()

    async def start(self, timeout_s: float) -> None:
        """As `Log.start`; raises LogError too, for client settings that Kafka's client refuses."""
        self._policy.check()
        try:
            self._opened = Topics(admin_settings(self._connection), self._bootstrap, self._policy, self._timeout_s)
            await self._opened.connect(timeout_s)
            self._writer = self._new_writer()
        except KafkaException as error:
            raise LogError(
                f"Kafka's client refuses its settings: {error.args[0].str()}; correct client_settings"
            ) from error

    async def open_topic(self, spec: TopicSpec) -> int:
        """As `Log.open_topic`."""
        topic = self._prefix + spec.name
        self._partitions[topic] = partitions = await self._topics.open(topic, spec)
        return partitions

    async def append(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        """As `Log.append`; a payload's key and value may have `kafka_clients.MAX_ENTRY_BYTES` together."""
        writer = self._writer
        if writer is None:
            raise LogUnavailable(f"the log on Kafka at {self._bootstrap} is closed or was not started")
        if writer.broken:
            LOGGER.warning("replacing the Kafka producer: %s", writer.broken)
            writer.stop(flush=False)
            writer = self._writer = self._new_writer()
        await writer.append(self._prefix + topic, partition, payloads)

    async def ends(self, topic: str) -> tuple[int, ...]:
        """As `Log.ends`."""
        name = self._prefix + topic
        if name not in self._partitions:
            self._partitions[name] = await self._topics.partitions(name)
        return await self._topics.ends(name, self._partitions[name])

    def tail(self, topic: str, starts: Sequence[int]) -> AsyncIterator[Sequence[LogEntry]]:
        """As `Log.tail`."""
        tail = Tail(consumer_settings(self._connection), self._prefix + topic, starts)
        self._tails.add(tail)
        return tail

    async def close(self) -> None:
        """As `Log.close`."""
        writer, self._writer, self._opened = self._writer, None, None
        tails = list(self._tails)
        for tail in tails:
            await tail.aclose()
        if writer is not None:
            writer.stop(flush=True)
            await asyncio.to_thread(_join, [writer, *tails])

    @property
    def _topics(self) -> Topics:
        if self._opened is None:
            raise LogUnavailable(f"the log on Kafka at {self._bootstrap} is closed or was not started")
        return self._opened

    def _new_writer(self) -> Writer:
        settings = producer_settings(self._connection, self._timeout_s)
        return Writer(settings, asyncio.get_running_loop(), self._timeout_s)


def _join(threads: Sequence[Writer | Tail]) -> None:
    deadline = time.monotonic() + CLOSE_TIMEOUT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
