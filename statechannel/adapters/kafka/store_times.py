"""Reads when the records at given offsets were stored: one record of each partition. Blocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, TopicPartition

from statechannel.adapters.kafka.clients import LOGGER, reading_settings
from statechannel.adapters.kafka.ownership import Owned, own_consumer
from statechannel.adapters.kafka.tail import AT_END

AT_ONCE = 100
"""Partitions that are read at the same time: each may bring FETCH_BYTES, or one batch if that is larger."""
FETCH_BYTES = 16 * 1024
POLL_S = 0.1

Place = tuple[str, int, int]
"""Topic, partition, offset."""


class StoreTimes:
    """Reads for any thread, one after another, with one consumer that stays open; `connection` as for all clients."""

    def __init__(self, connection: Mapping[str, Any]) -> None:
        self._settings = looking_settings(connection)
        self._consumer: Owned[Consumer] | None = None
        self._turn = threading.Lock()

    def read(self, places: Sequence[Place], timeout_s: float) -> Mapping[tuple[str, int], int | None]:
        """The timestamps by topic and partition of the first records at or after the offsets; None if there is none.

        Partitions that did not answer within `timeout_s`, lost their offset meanwhile, or have no timestamps are left
        out. Records of open and aborted transactions count: the ends that `KafkaGroups` gives count them, too.
        """
        deadline_s = time.monotonic() + timeout_s
        found: dict[tuple[str, int], int | None] = {}
        if not self._turn.acquire(timeout=timeout_s):
            return found
        try:
            owned, self._consumer = self._consumer or self._new(), None
            try:
                with owned.lent() as consumer:
                    for at in range(0, len(places), AT_ONCE):
                        _read(consumer, places[at : at + AT_ONCE], found, deadline_s)
                    consumer.unassign()
            finally:
                if found:
                    self._consumer = owned
                else:  # perhaps it is the client that hangs
                    owned.close()
        finally:
            self._turn.release()
        return found

    def _new(self) -> Owned[Consumer]:
        owned = own_consumer(self._settings, logger=LOGGER)
        owned.close_with(self)
        return owned


def _read(
    consumer: Consumer,
    places: Sequence[Place],
    found: dict[tuple[str, int], int | None],
    deadline_s: float,
) -> None:
    consumer.assign([TopicPartition(topic, number, offset) for topic, number, offset in places])
    waiting = {(topic, number) for topic, number, _ in places}
    while waiting and time.monotonic() < deadline_s:
        done: list[TopicPartition] = []
        for message in consumer.consume(AT_ONCE, POLL_S):
            topic, number = message.topic(), message.partition()
            if topic is None or number is None or (topic, number) not in waiting:
                continue  # an error of the whole client, which tries again, or one more record
            waiting.discard((topic, number))
            done.append(TopicPartition(topic, number))
            error = message.error()
            if error is None:
                kind, stored_ms = message.timestamp()
                if kind != TIMESTAMP_NOT_AVAILABLE:
                    found[topic, number] = stored_ms
            elif error.code() == AT_END:
                found[topic, number] = None
        if done and waiting:
            consumer.pause(done)  # what was fetched of them is thrown away, and no more is fetched
    consumer.resume([TopicPartition(topic, number) for topic, number, _ in places])


def looking_settings(connection: Mapping[str, Any]) -> dict[str, Any]:
    """A consumer that fetches as little as Kafka allows, and sees what is written, committed or not."""
    return {
        **reading_settings(connection),
        "isolation.level": "read_uncommitted",
        "queued.min.messages": 1,
        "fetch.message.max.bytes": FETCH_BYTES,
        "log_level": 2,
    }
