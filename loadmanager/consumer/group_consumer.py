"""A consumer of Kafka topics whose partitions are granted by a coordinator in the brokers of the load manager.

    with GroupConsumer("shop/orders/billing", ["orders"], brokers=["http://broker-0:8080"], kafka=settings) as consumer:
        for message in consumer:
            handle(message)  # done when the next one is asked for; `auto_done=False` and `done(message)` for workers

Records are read at least once. A planned change repeats none: a partition is given up when what was taken of it is
done and committed, and the next reader begins there. Two threads: the caller's reads; another one (`session.py`) sends
heartbeats and commits.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message

from loadmanager.client.cluster import Pin
from loadmanager.client.credentials import Credentials
from loadmanager.client.router import urls_of
from loadmanager.consumer.kafka_client import KafkaClient, place_of, starts_at
from loadmanager.consumer.session import Session, now_ms
from loadmanager.consumers.coordinator.messages import check, group_key
from loadmanager.consumers.coordinator.records import Partition, Subscription
from loadmanager.errors import Invalid

Told = Callable[[list[Partition]], object]

_END: int = KafkaError._PARTITION_EOF  # noqa: SLF001 - the client names its own errors so
_UNKNOWN = frozenset({
    KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
})  # fmt: skip
"""Servers that start again may not know all topics; and the coordinator sees when one is gone, and takes it away."""


class GroupConsumer:
    """One member of a group. Use `with`, or `start()` and `close()`.

    `group` is a key of the load manager; its form without `persistent://` is the `group.id` in Kafka. `brokers` are
    admin URLs of some brokers, and `cluster` says which cluster is meant, as in `Router`. `kafka` are the settings of
    confluent-kafka's Consumer; `group.id` and automatic commits are ours; people see its `client.id` and this machine's
    name. `rack` is Kafka's `client.rack`, and `name` is what the strategy CONFIG calls this member. `on_assign`,
    `on_revoke` and `on_lost` are called by `poll`: before the first record of new partitions; when all records of
    partitions that will be given up are done, and before they are, by `close` too; and when it is too late for that,
    because the session is over. A consumer that does not call `poll` for
    `max_poll_interval_s` leaves the group until it does. Raises Invalid, InvalidName.
    """

    def __init__(
        self,
        group: str,
        topics: Iterable[str],
        *,
        brokers: Iterable[str],
        kafka: Mapping[str, Any],
        session_timeout_s: float = 10.0,
        revoke_timeout_s: float = 60.0,
        max_poll_interval_s: float = 300.0,
        commit_interval_s: float = 1.0,
        capacity: float = 1.0,
        rack: str | None = None,
        name: str = "",
        auto_done: bool = True,
        on_assign: Told | None = None,
        on_revoke: Told | None = None,
        on_lost: Told | None = None,
        credentials: Credentials | None = None,
        cluster: str = "",
    ) -> None:
        for option, value_s in (("commit_interval_s", commit_interval_s), ("max_poll_interval_s", max_poll_interval_s)):
            if not value_s > 0:
                raise Invalid(f"{option} is {value_s}: give seconds, more than 0")
        urls = urls_of(brokers)
        Pin(cluster)  # refuses here what is not one
        self.group = group_key(group).full_name
        self._auto_done = auto_done
        self._callbacks: dict[str, Told | None] = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        self._last: Message | None = None
        self._closed = False
        if isinstance(topics, str):
            raise Invalid(f"topics is one text, {topics!r}: give a list of topics")
        subscription = Subscription(
            tuple(topics),
            int(session_timeout_s * 1000),
            int(revoke_timeout_s * 1000),
            capacity,
            str(kafka.get("client.rack", "")) if rack is None else rack,
            starts_at=starts_at(kafka),
            name=name,
            client_id=str(kafka.get("client.id", "")),
            host=socket.gethostname(),
        )
        check("a consumer", subscription)
        self._kafka = KafkaClient({"client.rack": rack, **kafka} if rack else kafka, self.group)
        self._session = Session(
            self.group,
            subscription,
            urls,
            credentials,
            self._kafka,
            cluster=cluster,
            commit_interval_s=commit_interval_s,
            max_poll_interval_s=max_poll_interval_s,
            revoke_is_told=on_revoke is not None,
        )

    # --- life

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(last_is_done=error is None)

    def start(self) -> None:
        """Join the group. Returns at once; records come when partitions are granted."""
        self._session.start()

    def close(self, *, last_is_done: bool = True) -> None:
        """Commit what is done, leave the group, close Kafka's client. Idempotent.

        With `auto_done` the record that `poll` gave out last counts as done, unless `last_is_done` is false. Raises
        what `on_revoke` raises, when all is closed.
        """
        with self._session.news:
            if self._closed:
                return
            self._closed = True
            if last_is_done:
                self._done_with_last()
            held = self._session.held()
        try:
            if held:
                self._call("revoke", held)
        finally:
            self._session.end()
            self._kafka.close()

    # --- reading

    def __iter__(self) -> Iterator[Message]:
        """Records until `close`."""
        while not self._closed:
            message = self.poll(1.0)
            if message is not None:
                yield message

    def poll(self, timeout_s: float) -> Message | None:
        """The next record, None if none comes in time. With `auto_done` the one before is done now.

        Raises KafkaException for what Kafka's client cannot mend, Invalid, Conflict or Forbidden if the coordinator
        refuses this consumer, and what a callback raises.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._session.news:
            self._done_with_last()
        while True:
            self._tell()
            left_s = deadline_s - time.monotonic()
            message = self._next(left_s)
            if message is not None:
                return message
            if left_s <= 0 or self._closed:
                return None

    def done(self, message: Message) -> None:
        """With `auto_done=False`: the service is done with a record, in any order, on any thread."""
        with self._session.news:
            self._session.progress.done(*place_of(message))
            leaving = bool(self._session.progress.leaving)
        if leaving:
            self._session.wake()

    @property
    def assignment(self) -> list[Partition]:
        """What may be read at this moment."""
        session = self._session
        with session.news:
            return sorted(each for each in session.membership.reads(*now_ms()) if each in session.progress)

    def poll_fetched(self) -> Message | None:
        """As `poll(0)` if a record is at hand and nothing else is to be done; else None. Never waits."""
        session = self._session
        if not session.news.acquire(blocking=False):
            return None
        try:
            if not session.fetched or session.failed or session.has_events or session.to_tell():
                return None
            if not session.may_read():
                return None
            self._done_with_last()
            session.polls()
            return self._given_out()
        finally:
            session.news.release()

    def _next(self, timeout_s: float) -> Message | None:
        session = self._session
        with session.news:
            if session.failed is not None:
                raise session.failed
            session.polls()
            if not session.may_read():
                if timeout_s > 0:
                    session.news.wait(min(timeout_s, 0.1))
                return None
            if session.has_events:
                return None
            if session.fetched:
                return self._given_out()
        session.fetch(min(max(timeout_s, 0), 0.1))
        with session.news:
            return self._given_out() if session.may_read() and not session.has_events else None

    def _given_out(self) -> Message | None:
        """The next fetched record that is ours, if any; from now on it is in progress."""
        session = self._session
        while session.fetched:
            message = session.fetched.popleft()
            error = message.error()
            if error is None:
                if session.progress.take(*place_of(message)):
                    self._last = message
                    return message
            elif error.code() in _UNKNOWN or error.retriable():
                self._kafka.warn(error)
            elif error.code() == _END:
                session.progress.reached(*place_of(message))
            elif not self._kafka.restart(message):
                raise KafkaException(error)
        return None

    def _done_with_last(self) -> None:
        if self._auto_done and self._last is not None:
            self._session.progress.done(*place_of(self._last))
        self._last = None

    def _tell(self) -> None:
        """Call the service's callbacks for what has happened."""
        session = self._session
        while True:
            with session.news:
                event, leaving = session.next_event(), session.to_tell()
            if event is None:
                break
            self._call(*event)
            with session.news:
                session.event_told()
        if leaving:
            self._call("revoke", leaving)
            with session.news:
                session.told(leaving)
            session.wake()

    def _call(self, what: str, partitions: list[Partition]) -> None:
        callback = self._callbacks[what]
        if callback is not None:
            callback(partitions)
