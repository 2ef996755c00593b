"""Kafka's client as a group's member uses it: it fetches what we tell it to, and commits nothing by itself."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_STORED,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from loadmanager.consumers.coordinator.records import Partition
from loadmanager.errors import Invalid
from statechannel.adapters.kafka.ownership import ClientClosed, Owned
from statechannel.adapters.kafka.trouble import ALL_DOWN, STRANDED, Trouble, reached, watched

_log = logging.getLogger(__name__)

_STARTS = {
    **dict.fromkeys(("earliest", "beginning", "smallest"), "earliest"),
    **dict.fromkeys(("latest", "end", "largest"), "latest"),
}
"""What Kafka's client calls them."""

_NO_RECORD: int = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001 - the client names its own errors so
READY_S = 3.0
WARN_EVERY_S = 60.0
AT_ONCE = 100
"""Records that are taken from Kafka's client in one turn."""


class KafkaClient:
    """The client of one member of the group, a full name of a key. One that is stranded gives way to a new one, which
    goes on at the same places (`statechannel.adapters.kafka.trouble`).

    One thread fetches; any thread calls the rest. Raises KafkaException for settings that the client does not know, and
    Invalid for an isolation level with which a member would begin before what the group has committed last.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        group: str,
        new_consumer: Callable[[dict[str, Any]], Consumer] = Consumer,
    ) -> None:
        self._trouble = Trouble()
        if settings.get("isolation.level", "read_committed") != "read_committed":
            raise Invalid(
                "isolation.level must be read_committed: the offsets of a group are committed in transactions"
            )
        self._group = group
        self._theirs = settings.get("error_cb")
        self._warned_s: dict[int, float] = {}
        """By code of an error: when it is told again."""
        self._starts_at = starts_at(settings)
        own = {
            **settings,
            "group.id": group.partition("://")[2],
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # where Kafka has a record no more, `latest` would lose the others: see `restart`
            **({"auto.offset.reset": "error"} if self._starts_at == "latest" else {}),
            "enable.partition.eof": True,
            "error_cb": self._note,
        }
        self._settings = watched(own, self._trouble)
        self._new_consumer = new_consumer
        self._owned = self._new()
        self._turn = threading.Lock()
        """Held by the thread that changes what is fetched, or the consumer."""

    def get_ready(self, topics: Collection[str]) -> None:
        """Find the partitions' leaders and the group's offsets before it joins. Blocks for some seconds.

        Else what moves to it is silent for a second.
        """
        owned = self._owned
        with suppress(KafkaException, ClientClosed):
            for topic in topics:
                with owned.lent() as consumer:
                    consumer.list_topics(topic, timeout=READY_S)
                with owned.lent() as consumer:
                    consumer.committed([TopicPartition(topic, 0)], timeout=READY_S)

    def assign(self, partitions: Collection[Partition]) -> None:
        """Fetch these as well, from where the group has committed."""
        wanted = [TopicPartition(*each, OFFSET_STORED) for each in sorted(partitions)]
        with self._turn, suppress(ClientClosed), self._owned.lent() as consumer:
            consumer.incremental_assign(wanted)

    def unassign(self, partitions: Collection[Partition]) -> None:
        """Fetch these no more."""
        wanted = [TopicPartition(*each) for each in sorted(partitions)]
        with self._turn, suppress(ClientClosed), self._owned.lent() as consumer:
            consumer.incremental_unassign(wanted)

    def restart(self, message: Message) -> bool:
        """After an error that says that a partition has no record to go on at: fetch from its begin if Kafka has the
        record no more, else from where the group starts. Returns False if that is left to Kafka's client.

        The group has an offset in every partition, unless Kafka takes no commits of it.
        """
        error = message.error()
        if self._starts_at != "latest" or error is None or error.code() != _NO_RECORD:
            return False
        start = OFFSET_END if message.offset() is None else OFFSET_BEGINNING
        partition = partition_of(message)
        with self._turn, suppress(ClientClosed), self._owned.lent() as consumer:
            consumer.incremental_unassign([TopicPartition(*partition)])
            consumer.incremental_assign([TopicPartition(*partition, start)])
        return True

    def fetch(self, timeout_s: float) -> list[Message]:
        """What was fetched, at most `AT_ONCE`; waits for the first one, and for no other. Nothing after `close`."""
        with suppress(ClientClosed):
            with self._owned.lent() as consumer:
                first = consumer.poll(timeout_s)
                if first is not None:
                    return [first, *consumer.consume(AT_ONCE - 1, 0)]
            if self._trouble.stranded:
                self._replace()
        return []

    def close(self) -> None:
        """End it, after the calls that are in it."""
        with self._turn:
            owned = self._owned
        owned.close()

    def warn(self, error: KafkaError) -> None:
        """Say what Kafka told, each kind of it once a minute."""
        now_s, code = time.monotonic(), error.code()
        if now_s >= self._warned_s.get(code, now_s):
            self._warned_s[code] = now_s + WARN_EVERY_S
            why = f"no server answers: {self._trouble.latest}" if code == ALL_DOWN else error.str()
            _log.warning("%s waits for Kafka: %s", self._group, why)

    def _note(self, error: KafkaError) -> None:
        self._trouble.note(error)
        if error.code() == ALL_DOWN:
            self.warn(error)
        if self._theirs is not None:
            self._theirs(error)

    def _new(self) -> Owned[Consumer]:
        owned = Owned(self._new_consumer(self._settings), lambda client: client.close())
        owned.close_with(self)
        return owned

    def _replace(self) -> None:
        _log.warning("replacing the Kafka consumer of a group: %s", STRANDED)
        self._trouble.stranded = False
        with self._turn, self._owned.lent() as consumer:
            old, new = self._owned, self._new()
            assigned = [TopicPartition(each.topic, each.partition, OFFSET_STORED) for each in consumer.assignment()]
            if assigned:
                with new.lent() as successor:
                    successor.incremental_assign(reached(consumer, assigned))
            self._owned = new
        old.close()


def starts_at(settings: Mapping[str, Any]) -> str:
    """Where a group with these settings starts in a partition without a committed offset, as `Subscription` has it."""
    return _STARTS.get(str(settings.get("auto.offset.reset", "latest")), "none")


def partition_of(message: Message) -> Partition:
    """The partition of a record; of an error, whatever it names."""
    number = message.partition()
    return message.topic() or "", -1 if number is None else number


def place_of(message: Message) -> tuple[Partition, int]:
    """Partition and offset of a record without an error."""
    offset = message.offset()
    assert offset is not None
    return partition_of(message), offset
