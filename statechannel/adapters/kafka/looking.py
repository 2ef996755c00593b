"""Shows records of given places of topics to a function, one place after the other, with one consumer. Blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition

from statechannel.adapters.kafka.clients import LOGGER
from statechannel.adapters.kafka.ownership import own_consumer
from statechannel.adapters.kafka.store_times import looking_settings
from statechannel.adapters.kafka.tail import AT_END

Look = Callable[[bytes | None, bytes | None, Mapping[str, bytes]], bool]
"""Is shown a record's key, value and headers, and says whether to go on."""

AT_ONCE = 500
POLL_S = 0.1
FETCH_BYTES = 256 * 1024


class Looking:
    """One look at records; `stopped` once the function has seen enough."""

    def __init__(self, connection: Mapping[str, Any], look: Look, timeout_s: float) -> None:
        self._connection = {**looking_settings(connection), "fetch.message.max.bytes": FETCH_BYTES}
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
            for message in consumer.consume(AT_ONCE, POLL_S):
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
