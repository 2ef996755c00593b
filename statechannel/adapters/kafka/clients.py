"""How this system's Kafka clients are set up, and what a user may change about them. Opens no connection.

Users pass settings through for security, compression and the like. What the protocol rests on is not theirs to set.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError

from statechannel.errors import LogError

REPEAT_S = 10.0
CLIENTS_FORM = "%s [%s] %s"
"""How the client words what it says: its own word for it, its name, the text."""
NOT_THIS_KIND = "property and will be ignored by this"
CLOSED = "every connection was closed, by servers that stop, or that expect another security.protocol or sasl.mechanism"


class Sparing(logging.Filter):
    """Lets one message of a kind pass in ten seconds: in an outage the client says the same 20 times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[int, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """A kind is the client's own first word (FAIL, REQTMOUT …), or our text without its arguments."""
        if NOT_THIS_KIND in record.getMessage():  # a setting for producers or consumers goes to every client
            return False
        words = record.args if record.msg == CLIENTS_FORM and isinstance(record.args, tuple) else (record.msg,)
        kind = (record.levelno, str(words[0]))
        if record.created - self._last.get(kind, 0.0) < REPEAT_S:
            return False
        self._last[kind] = record.created
        return True


ALL_DOWN: int = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001 (so the client names its own, local errors)


class Trouble:
    """Why a client has no connection, as it last said to its `error_cb`: its requests themselves only time out."""

    def __init__(self) -> None:
        self.latest = ""

    def note(self, error: KafkaError) -> None:
        """For `error_cb`; called while the client is polled."""
        if error.code() != ALL_DOWN:
            self.latest = error.str()
        elif not self.latest:  # comes beside the reason, and is alone only where a server says none
            self.latest = CLOSED


LOGGER = logging.getLogger("statechannel.kafka")
LOGGER.addFilter(Sparing())

MAX_MESSAGE_BYTES = 1024 * 1024
"""The largest batch a topic of ours must take; Kafka's own default is 12 bytes more."""
MAX_ENTRY_BYTES = MAX_MESSAGE_BYTES - 1024
"""The largest key and value together: a batch of one, with its headers, then fits."""

TRANSACTION_TIMEOUT_S = 120
"""After which Kafka aborts what a dead writer left open, unless its successor did; until then it hides what follows."""

PROTECTED = frozenset(
    {
        "acks",
        "auto.offset.reset",
        "batch.size",
        "bootstrap.servers",
        "default.topic.config",
        "delivery.report.only.error",
        "delivery.timeout.ms",
        "dr_cb",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "enable.partition.eof",
        "error_cb",
        "group.id",
        "group.protocol",
        "isolation.level",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "message.max.bytes",
        "message.send.max.retries",
        "message.timeout.ms",
        "metadata.broker.list",
        "on_delivery",
        "request.required.acks",
        "request.timeout.ms",
        "retries",
        "transaction.timeout.ms",
        "transactional.id",
    }
)


def check_client_settings(settings: Mapping[str, str]) -> None:
    """Raises LogError if a setting would change what the protocol rests on."""
    refused = sorted(PROTECTED.intersection(settings))
    if refused:
        raise LogError(
            f"Kafka client settings must not contain {', '.join(refused)}: the channel's guarantees rest on them; "
            "remove them (addresses and time-outs have settings of their own)"
        )


def connection_settings(bootstrap: str, client_settings: Mapping[str, str], request_timeout_s: float) -> dict[str, Any]:
    """What every client has: quick to notice a dead broker, quick to come back."""
    timeout_ms = max(2_000, int(request_timeout_s * 1_000))
    return {
        "client.id": "loadmanager",
        # `localhost` often resolves to ::1 first, where nobody listens
        "broker.address.family": "v4",
        "socket.keepalive.enable": True,
        "socket.nagle.disable": True,
        # a connection that is cut without a word counts as dead after this, instead of a minute
        "socket.timeout.ms": timeout_ms,
        "socket.connection.setup.timeout.ms": timeout_ms,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "retry.backoff.ms": 50,
        "retry.backoff.max.ms": 500,
        "topic.metadata.refresh.interval.ms": 30_000,
        "topic.metadata.refresh.fast.interval.ms": 50,
        **client_settings,
        "bootstrap.servers": bootstrap,
    }


def producer_settings(connection: Mapping[str, Any], request_timeout_s: float) -> dict[str, Any]:
    """Idempotent, all replicas, in order, and given up after `request_timeout_s`."""
    return {
        # 0: what gathers while one request is under way is the next batch; waiting on purpose only adds latency
        "linger.ms": 0,
        "queue.buffering.max.messages": 100_000,
        "queue.buffering.max.kbytes": 64 * 1024,
        **connection,
        "enable.idempotence": True,
        "acks": "all",
        "message.max.bytes": MAX_MESSAGE_BYTES,
        "batch.size": MAX_MESSAGE_BYTES // 2,
        "message.timeout.ms": int(request_timeout_s * 1_000),
    }


def consumer_settings(connection: Mapping[str, Any]) -> dict[str, Any]:
    """No group, no commits: positions are ours. An offset that is gone is an error, never a jump."""
    return {
        "fetch.wait.max.ms": 500,
        "fetch.error.backoff.ms": 50,
        # the default stops fetching for a second each time the local queue is full
        "fetch.queue.backoff.ms": 2,
        "queued.max.messages.kbytes": 16 * 1024,
        **connection,
        "group.id": "loadmanager-unused",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
    }


def reading_settings(connection: Mapping[str, Any]) -> dict[str, Any]:
    """A consumer that is told when it is at the end, and soon: Kafka keeps an empty answer back for `fetch.wait`."""
    return {**consumer_settings(connection), "fetch.wait.max.ms": 10, "enable.partition.eof": True}


def exclusive_settings(connection: Mapping[str, Any], request_timeout_s: float, writer_id: str) -> dict[str, Any]:
    """A transactional producer. What is handed to it waits for room: a large group is sent in pieces of the queue."""
    return {
        **producer_settings(connection, request_timeout_s),
        "queue.buffering.max.kbytes": 8 * 1024,
        "transactional.id": writer_id,
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_S * 1_000,
        "message.timeout.ms": int(min(request_timeout_s, TRANSACTION_TIMEOUT_S) * 1_000),
    }


def admin_settings(connection: Mapping[str, Any]) -> dict[str, Any]:
    """Its failures reach us as results, so it need not print them."""
    return {**connection, "log_level": 2}
