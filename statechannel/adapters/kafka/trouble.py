"""What a Kafka client reports of its connections, and how a new client continues for a stranded one.

A stranded client knows no server's address any more, and never asks one again. librdkafka (2.10 to 2.16, issue 5301)
forgets all of them, those of `bootstrap.servers` too, when one answers that the cluster has none. A cluster says
so while its only server, or all of them, start or stop. Only a new client helps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, TopicPartition

STATISTICS_S = 2.0
"""How often a client counts the servers that it knows."""
STRANDED = "it knows no server any more, and does not look for one"
ALL_DOWN: int = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001 (so the client names its own, local errors)
CLOSED = (
    "Kafka closed every connection: its servers are stopping, or expect another security.protocol or sasl.mechanism"
)


class _Server(msgspec.Struct):
    source: str


class _Statistics(msgspec.Struct):
    brokers: dict[str, _Server]


_statistics = msgspec.json.Decoder(_Statistics)
_REACHABLE = frozenset({"configured", "learned"})
"""The others are roles (a group's coordinator) that one of these has."""


class Trouble:
    """A client's last reason for having no connection, since its requests themselves only time out; and whether it is
    `stranded`. Both are updated while the client is polled."""

    def __init__(self) -> None:
        self.latest = ""
        self.stranded = False

    def note(self, error: KafkaError) -> None:
        """For `error_cb`."""
        if error.code() != ALL_DOWN:
            self.latest = error.str()
        elif not self.latest:  # comes beside a reason, and alone only if the server gives none
            self.latest = CLOSED

    def count(self, statistics: str) -> None:
        """For `stats_cb`."""
        servers = _statistics.decode(statistics).brokers.values()
        self.stranded = not any(each.source in _REACHABLE for each in servers)


def watched(settings: Mapping[str, Any], trouble: Trouble) -> dict[str, Any]:
    """The settings of a client that tells `trouble` whether it is stranded, as long as it is polled.

    Statistics that its user has asked for go to them as well.
    """
    theirs = settings.get("stats_cb")

    def count(statistics: str) -> None:
        trouble.count(statistics)
        if theirs is not None:
            theirs(statistics)

    return {"statistics.interval.ms": int(STATISTICS_S * 1_000), **settings, "stats_cb": count}


def reached(consumer: Consumer, positions: Sequence[TopicPartition]) -> list[TopicPartition]:
    """The next offset of each partition; the epoch of its last entry shows whether the log was replaced meanwhile.

    `positions`, in the same order, hold for those of which nothing was read yet.
    """
    now = consumer.position([TopicPartition(each.topic, each.partition) for each in positions])
    return [new if new.offset >= 0 else old for new, old in zip(now, positions, strict=True)]
