"""Single records at given places, with one consumer: when they were stored, or shown to a function. Blocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, Message, TopicPartition

from statechannel.adapters.kafka.clients import LOGGER, reading_settings
from statechannel.adapters.kafka.ownership import Owned, own_consumer
from statechannel.adapters.kafka.reader import AT_END

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


Look = Callable[[bytes | None, bytes | None, Mapping[str, bytes]], bool]
"""Is shown a record's key, value and headers, and says whether to go on."""

LOOKED_AT_ONCE = 500
LOOKED_BYTES = 256 * 1024


class Looking:
    """One look at records; `stopped` once the function has seen enough."""

    def __init__(self, connection: Mapping[str, Any], look: Look, timeout_s: float) -> None:
        self._connection = {**looking_settings(connection), "fetch.message.max.bytes": LOOKED_BYTES}
        self._look = look
        self._deadline_s = time.monotonic() + timeout_s
        self.stopped = False

    def at(self, places: Sequence[tuple[str, int, int, int]]) -> bool:
        """Look at the places (topic, partition, first offset, end); False if one was not read to its end in time."""
        with closing(own_consumer(self._connection, logger=LOGGER)) as owned, owned.lent() as consumer:
            complete = True
            for topic, number, first, end in places:
                consumer.assign([TopicPartition(topic, number, first)])
                complete = self._place(consumer, topic, number, end) and complete
                if self.stopped:
                    return True
            return complete

    def _place(self, consumer: Consumer, topic: str, number: int, end: int) -> bool:
        while time.monotonic() < self._deadline_s:
            for message in consumer.consume(LOOKED_AT_ONCE, POLL_S):
                if (message.topic(), message.partition()) != (topic, number):
                    continue  # an error of the whole client, which tries again
                error, offset = message.error(), message.offset()
                if error is not None:
                    return error.code() == AT_END
                if offset is not None and offset >= end:
                    return True
                if not self._look(message.key(), message.value(), _headers(message)):
                    self.stopped = True
                    return True
                if offset is not None and offset + 1 >= end:
                    return True
        return False


def _headers(message: Message) -> Mapping[str, bytes]:
    return {name: value.encode() if isinstance(value, str) else value or b"" for name, value in message.headers() or []}
