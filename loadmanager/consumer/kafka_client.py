"""Kafka's client as a group's member uses it: it fetches what we tell it to, and commits nothing by itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import OFFSET_STORED, Consumer, KafkaException, Message, TopicPartition

from loadmanager.consumers.coordinator.records import Partition
from statechannel.adapters.kafka.trouble import STRANDED, Trouble, reached, watched

_log = logging.getLogger(__name__)

READY_S = 3.0
AT_ONCE = 100
"""Records that are taken from Kafka's client in one turn."""


class KafkaClient:
    """The client of one member of the group, a full name of a key. One that is stranded gives way to a new one, which
    goes on at the same places (`statechannel.adapters.kafka.trouble`).

    One thread fetches; any thread calls the rest. Raises KafkaException for settings that the client does not know.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        group: str,
        new_consumer: Callable[[dict[str, Any]], Consumer] = Consumer,
    ) -> None:
        self._trouble = Trouble()
        own = {
            **settings,
            "group.id": group.partition("://")[2],
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
        }
        self._settings = watched(own, self._trouble)
        self._new_consumer = new_consumer
        self._consumer = new_consumer(self._settings)
        self._turn = threading.Lock()
        """Held by whoever changes what is fetched, or the consumer."""

    def get_ready(self, topics: Collection[str]) -> None:
        """Find the partitions' leaders and the group's offsets before it joins. Blocks for some seconds.

        Else what moves to it is silent for a second.
        """
        consumer = self._consumer
        with suppress(KafkaException):
            for topic in topics:
                consumer.list_topics(topic, timeout=READY_S)
                consumer.committed([TopicPartition(topic, 0)], timeout=READY_S)

    def assign(self, partitions: Collection[Partition]) -> None:
        """Fetch these as well, from where the group has committed."""
        with self._turn:
            self._consumer.incremental_assign([TopicPartition(*each, OFFSET_STORED) for each in sorted(partitions)])

    def unassign(self, partitions: Collection[Partition]) -> None:
        """Fetch these no more."""
        with self._turn:
            self._consumer.incremental_unassign([TopicPartition(*each) for each in sorted(partitions)])

    def fetch(self, timeout_s: float) -> list[Message]:
        """What was fetched, at most `AT_ONCE`; waits for the first one, and for no other."""
        first = self._consumer.poll(timeout_s)
        if first is None:
            if self._trouble.stranded:
                self._replace()
            return []
        return [first, *self._consumer.consume(AT_ONCE - 1, 0)]

    def close(self) -> None:
        """End it."""
        self._consumer.close()

    def _replace(self) -> None:
        _log.warning("replacing the Kafka consumer of a group: %s", STRANDED)
        self._trouble.stranded = False
        with self._turn:
            old, self._consumer = self._consumer, self._new_consumer(self._settings)
            assigned = [TopicPartition(each.topic, each.partition, OFFSET_STORED) for each in old.assignment()]
            if assigned:
                self._consumer.incremental_assign(reached(old, assigned))
        old.close()


def partition_of(message: Message) -> Partition:
    """The partition of a record; of an error, whatever it names."""
    number = message.partition()
    return message.topic() or "", -1 if number is None else number


def place_of(message: Message) -> tuple[Partition, int]:
    """Partition and offset of a record without an error."""
    offset = message.offset()
    assert offset is not None
    return partition_of(message), offset
