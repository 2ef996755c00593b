"""The settings of our Kafka clients, and which of them a user may change. Opens no connection.

Users may pass settings for security, compression and the like, but none on which our guarantees depend (PROTECTED).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from statechannel.errors import LogError
from statechannel.runtime.batching import BatchSettings

REPEAT_S = 10.0
CLIENTS_FORM = "%s [%s] %s"
"""The client's log format: kind of message, client's name, text."""
NOT_THIS_KIND = "property and will be ignored by this"


class Sparing(logging.Filter):
    """Lets one message of a kind pass in ten seconds: in an outage the client repeats itself 20 times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[int, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log it. A kind is the client's own first word (FAIL, REQTMOUT …), or our bare text."""
        if NOT_THIS_KIND in record.getMessage():  # a setting for producers or consumers goes to every client
            return False
        words = record.args if record.msg == CLIENTS_FORM and isinstance(record.args, tuple) else (record.msg,)
        kind = (record.levelno, str(words[0]))
        if record.created - self._last.get(kind, 0.0) < REPEAT_S:
            return False
        self._last[kind] = record.created
        return True


LOGGER = logging.getLogger("statechannel.kafka")
LOGGER.addFilter(Sparing())

MAX_MESSAGE_BYTES = 1024 * 1024
"""The largest batch that our topics must accept; Kafka's own default is 12 bytes more."""
MAX_BATCH_BYTES = MAX_MESSAGE_BYTES // 2
"""The largest batch of several entries that our producers make."""
MAX_ENTRY_BYTES = MAX_MESSAGE_BYTES - 1024
"""The largest key and value together, so that a batch of one fits with its headers."""

TRANSACTION_TIMEOUT_S = 120
"""When Kafka aborts a dead writer's open transaction, unless its successor does; it hides later entries until then."""

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
        "statistics.interval.ms",
        "stats_cb",
        "transaction.timeout.ms",
        "transactional.id",
    }
)


def check_client_settings(settings: Mapping[str, str]) -> None:
    """Raises LogError if a setting is PROTECTED."""
    refused = sorted(PROTECTED.intersection(settings))
    if refused:
        raise LogError(
            f"Kafka client settings must not contain {', '.join(refused)}: the channel needs its own values; "
            "remove them (addresses and time-outs have settings of their own)"
        )


def connection_settings(bootstrap: str, client_settings: Mapping[str, str], request_timeout_s: float) -> dict[str, Any]:
    """The settings of every client: quick to notice a dead broker, quick to reconnect."""
    timeout_ms = max(2_000, int(request_timeout_s * 1_000))
    return {
        "client.id": "loadmanager",
        # `localhost` often resolves to ::1 first, where no server listens
        "broker.address.family": "v4",
        "socket.keepalive.enable": True,
        "socket.nagle.disable": True,
        # a silently cut connection counts as dead after this, instead of a minute
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


def producer_settings(
    connection: Mapping[str, Any], request_timeout_s: float, batching: BatchSettings | None = None
) -> dict[str, Any]:
    """Idempotent, all replicas, in order, and given up after `request_timeout_s`.

    Without `batching` nothing waits for other entries.
    """
    return {
        **(gathering_at_once() if batching is None else gathering(batching)),
        **connection,
        "enable.idempotence": True,
        "acks": "all",
        "message.max.bytes": MAX_MESSAGE_BYTES,
        "batch.size": MAX_BATCH_BYTES if batching is None else min(batching.batch_max_bytes, MAX_BATCH_BYTES),
        "message.timeout.ms": int(request_timeout_s * 1_000),
    }


def gathering_at_once() -> dict[str, Any]:
    """Entries gather into the next batch while a request is under way; a linger would only add latency."""
    return {
        "linger.ms": 0,
        "queue.buffering.max.messages": 100_000,
        "queue.buffering.max.kbytes": 64 * 1024,
    }


def check_delay(batching: BatchSettings, client_settings: Mapping[str, str], request_timeout_s: float) -> None:
    """Raises LogError if entries would be given up before their batch is sent."""
    if "linger.ms" not in client_settings and batching.batch_max_delay_ms >= request_timeout_s * 1_000:
        raise LogError(
            f"batch_max_delay_ms is {batching.batch_max_delay_ms:,}, and an append is given up after "
            f"{request_timeout_s:g} s (request_timeout_s): make the delay shorter"
        )


def gathering(batching: BatchSettings) -> dict[str, Any]:
    """The client's own words for our settings. Its queue has whole KiB, and so holds at most 1,023 bytes more.

    All topics and partitions share the queue, and appends wait while it is full. A batch is at most MAX_BATCH_BYTES.
    """
    return {
        "linger.ms": batching.batch_max_delay_ms,
        "queue.buffering.max.messages": 100_000,
        "queue.buffering.max.kbytes": -(-batching.total_batch_max_bytes // 1024),
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
    """A consumer that soon learns that it is at the end: Kafka holds an empty answer back for `fetch.wait.max.ms`."""
    return {**consumer_settings(connection), "fetch.wait.max.ms": 10, "enable.partition.eof": True}


def exclusive_settings(connection: Mapping[str, Any], request_timeout_s: float, writer_id: str) -> dict[str, Any]:
    """A transactional producer with a small queue: a large group waits for room and is sent in pieces."""
    return {
        **producer_settings(connection, request_timeout_s),
        "queue.buffering.max.kbytes": 8 * 1024,
        "transactional.id": writer_id,
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_S * 1_000,
        "message.timeout.ms": int(min(request_timeout_s, TRANSACTION_TIMEOUT_S) * 1_000),
    }


def admin_settings(connection: Mapping[str, Any]) -> dict[str, Any]:
    """An admin client that logs little, since its failures reach us as results."""
    return {**connection, "log_level": 2}
