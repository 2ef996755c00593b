"""Reads the committed offsets of a group with a consumer that never joins it. Blocks.

An admin client must not ask for them. librdkafka (2.0 to 2.16, its issue 5040) ends the process with SIGSEGV when a
server answers that it is not the group's coordinator, as one does that starts or stops: it looks for the right one in
the client's own group, and an admin client has none. A consumer's group does that, and the answer is an error.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from statechannel.adapters.kafka.clients import LOGGER, consumer_settings
from statechannel.adapters.kafka.ownership import own_consumer

AT_ONCE = 1_000
"""Partitions in one request: the client searches its list of them for each one of the answer."""
LOOK_S = 1.0
"""How often a request without an answer is interrupted to see whether the group's coordinator refuses this user."""


def committed_offsets(
    connection: Mapping[str, Any], group: str, places: Sequence[tuple[str, int]], timeout_s: float
) -> list[TopicPartition]:
    """The places (topic, partition) with their offsets and metadata, or an error each; below 0: nothing committed.

    Raises KafkaException, also if there is no answer in time.
    """
    settings = {
        **consumer_settings(connection),
        "group.id": group,
        "isolation.level": "read_uncommitted",
        "log_level": 2,
    }
    deadline_s = time.monotonic() + timeout_s
    found: list[TopicPartition] = []
    with closing(own_consumer(settings, logger=LOGGER)) as owned, owned.lent() as consumer:
        for at in range(0, len(places), AT_ONCE):
            wanted = [TopicPartition(topic, number) for topic, number in places[at : at + AT_ONCE]]
            found += _answered(consumer, wanted, deadline_s)
    return found


def _answered(consumer: Consumer, wanted: list[TopicPartition], deadline_s: float) -> list[TopicPartition]:
    while True:
        left_s = max(0.0, deadline_s - time.monotonic())
        try:
            return consumer.committed(wanted, timeout=min(left_s, LOOK_S))
        except KafkaException as error:
            refusal = consumer.poll(0)  # the client itself goes on asking
            if refusal is not None and (why := refusal.error()) is not None and why.code() > 0 and not why.retriable():
                raise KafkaException(why) from error
            if error.args[0].code() != KafkaError._TIMED_OUT or left_s <= LOOK_S:  # noqa: SLF001 (a public constant)
                raise
