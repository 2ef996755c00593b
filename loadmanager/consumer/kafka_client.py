"""Kafka's client as a group's member uses it: it fetches what we tell it to, and commits nothing by itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from loadmanager.consumers.coordinator.records import Partition

READY_S = 3.0
AT_ONCE = 100
"""Records that are taken from Kafka's client in one turn."""


def open_consumer(settings: Mapping[str, Any], group: str) -> Consumer:
    """A client for the group, a full name of a key. Raises KafkaException for settings that it does not know."""
    return Consumer({
        **settings,
        "group.id": group.partition("://")[2],
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
    })  # fmt: skip


def get_ready(kafka: Consumer, topics: Collection[str]) -> None:
    """Have the client find the partitions' leaders and the group's offsets before it joins. Blocks for some seconds.

    Else what moves to it is silent for a second.
    """
    with suppress(KafkaException):
        for topic in topics:
            kafka.list_topics(topic, timeout=READY_S)
            kafka.committed([TopicPartition(topic, 0)], timeout=READY_S)


def fetch(kafka: Consumer, timeout_s: float) -> list[Message]:
    """What Kafka's client has fetched, at most `AT_ONCE`; waits for the first one, and for no other."""
    first = kafka.poll(timeout_s)
    return [] if first is None else [first, *kafka.consume(AT_ONCE - 1, 0)]


def partition_of(message: Message) -> Partition:
    """The partition of a record; of an error, whatever it names."""
    number = message.partition()
    return message.topic() or "", -1 if number is None else number


def place_of(message: Message) -> tuple[Partition, int]:
    """Partition and offset of a record without an error."""
    offset = message.offset()
    assert offset is not None
    return partition_of(message), offset
