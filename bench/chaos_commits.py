"""What Kafka wrote down about one group: its commits and its generations, as its topic of offsets has them.

So it is the same for every protocol, and as exact as Kafka's clock: a member that was killed need not tell.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, TopicPartition

from bench.group_reads import Commit

TOPIC = "__consumer_offsets"
WAIT_S = 30.0
OFFSET_KEYS, CLASSIC_KEY, CONSUMER_KEY = (0, 1), 2, 3
"""Versions of keys: a committed offset; a group of the classic protocol; one of the consumer protocol."""


class GroupHistory:
    """Of one group that reads one topic. Kafka's topic of offsets has one partition here."""

    def __init__(self, kafka: str, group: str, topic: str) -> None:
        """Reads all that is written by now. Raises KafkaException."""
        self.commits: dict[int, list[Commit]] = {}
        """By partition, oldest first; each counts from the end of the millisecond in which it was written."""
        self.generations: dict[int, float] = {}
        """Each generation of Kafka's own protocols, and when it began."""
        for key, value, at_s in _written(kafka):
            self._take(key, value, at_s, group, topic)

    def _take(self, key: bytes, value: bytes, at_s: float, group: str, topic: str) -> None:
        version, rest = struct.unpack_from(">h", key)[0], key[2:]
        name, rest = _text(rest)
        if name != group:
            return
        if version in OFFSET_KEYS:
            its, rest = _text(rest)
            if its == topic:
                partition = struct.unpack_from(">i", rest)[0]
                self.commits.setdefault(partition, []).append(Commit(at_s, struct.unpack_from(">q", value, 2)[0]))
        elif version == CLASSIC_KEY:
            _, after = _text(value[2:])
            self.generations.setdefault(struct.unpack_from(">i", after)[0], at_s)
        elif version == CONSUMER_KEY:
            self.generations.setdefault(struct.unpack_from(">i", value, 2)[0], at_s)


def _text(data: bytes) -> tuple[str, bytes]:
    size = struct.unpack_from(">h", data)[0]
    return data[2 : 2 + size].decode(), data[2 + size :]


def _written(kafka: str) -> Iterator[tuple[bytes, bytes, float]]:
    """Keys, values and times of all records that are no tombstones."""
    consumer = Consumer({
        "bootstrap.servers": kafka, "broker.address.family": "v4", "group.id": "bench-history",
        "enable.partition.eof": True,
    })  # fmt: skip
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        while True:
            message = consumer.poll(WAIT_S)
            assert message is not None, f"{TOPIC} cannot be read to its end"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error  # noqa: SLF001 (public)
                return  # a transaction's end is the last one, and no message
            key, value = message.key(), message.value()
            if key and value:
                yield bytes(key), bytes(value), (message.timestamp()[1] + 1) / 1000
    finally:
        consumer.close()
