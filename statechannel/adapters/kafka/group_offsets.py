"""Reads and commits offsets of groups, each with a consumer that never joins its group. Blocks.

An admin client must never ask a group's coordinator, since that can end the process (librdkafka 2.0 to 2.16). It ends
with SIGSEGV when a server that starts or stops answers that it is not the coordinator (issue 5040): an admin client has
no group by which to find the right one. It ends with SIGABRT when the connection breaks before the request is sent
(pull request 5397). A consumer has a group, and for it these are errors.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from statechannel.adapters.kafka.clients import LOGGER, consumer_settings
from statechannel.adapters.kafka.ownership import Owned, own_consumer

AT_ONCE = 1_000
"""Partitions in one request: the client searches its list of them for each one of the answer."""
LOOK_S = 1.0
"""How often a request without an answer is interrupted to see whether the coordinator refuses this user."""
FIRST_POLL_S, LAST_POLL_S = 0.002, 0.05
"""A poll that serves an answer continues until its time is over."""
IDLE = 16
"""Consumers that stay open, of the groups used last: another request on one takes a tenth of the time of the first."""

T = TypeVar("T")


class GroupOffsets:
    """The groups of one Kafka; `connection` as for all clients. For any thread.

    A commit that is a transaction is read some milliseconds after it was acknowledged; if `stable`, reading waits for
    the end of those that have begun.

    Both methods raise KafkaException, also when there is no answer within `timeout_s`.
    """

    def __init__(self, connection: Mapping[str, Any], *, stable: bool = False) -> None:
        level = "read_committed" if stable else "read_uncommitted"
        self._settings = {**consumer_settings(connection), "isolation.level": level, "log_level": 2}
        self._idle = OrderedDict[str, _Member]()
        self._turn = threading.Lock()

    def committed(self, group: str, places: Sequence[tuple[str, int]], timeout_s: float) -> list[TopicPartition]:
        """The places (topic, partition) with offset and metadata, or an error each; below 0: nothing is committed."""
        deadline_s = time.monotonic() + timeout_s
        parts = [places[at : at + AT_ONCE] for at in range(0, len(places), AT_ONCE)]
        answers = self._with(group, lambda member: [member.committed(part, deadline_s) for part in parts])
        return [place for answer in answers for place in answer]

    def commit(self, group: str, offsets: Sequence[TopicPartition], timeout_s: float) -> list[TopicPartition]:
        """Commit offsets with their metadata; the partitions, or an error each."""
        deadline_s = time.monotonic() + timeout_s
        return self._with(group, lambda member: member.commit(offsets, deadline_s))

    def _with(self, group: str, ask: Callable[[_Member], T]) -> T:
        """One that failed is not used again: its successor looks for the coordinator."""
        with self._turn:
            member = self._idle.pop(group, None)
        member = member or _Member(self._settings, group, self)
        try:
            answer = ask(member)
        except BaseException:
            # `close` waits half a minute for a commit without a coordinator; a refused one was never sent
            (member.owned.close_soon if member.refused else member.owned.close)()
            raise
        with self._turn:
            spare = [self._idle.pop(group, None)]  # of another thread that has asked meanwhile
            self._idle[group] = member
            spare += [self._idle.popitem(last=False)[1]] if len(self._idle) > IDLE else []
        for each in filter(None, spare):
            each.owned.close_soon()
        return answer


class _Member:
    """A consumer of one group; one thread at a time uses it."""

    def __init__(self, settings: Mapping[str, Any], group: str, owner: GroupOffsets) -> None:
        self._done: list[tuple[KafkaError | None, list[TopicPartition]]] = []
        self.refused = False
        told = {**settings, "group.id": group, "on_commit": _adding(self._done)}
        self.owned: Owned[Consumer] = own_consumer(told, logger=LOGGER)
        self.owned.close_with(owner)

    def committed(self, places: Sequence[tuple[str, int]], deadline_s: float) -> list[TopicPartition]:
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            with self.owned.lent() as consumer:
                wanted = [TopicPartition(topic, number) for topic, number in places]
                try:
                    return consumer.committed(wanted, timeout=min(left_s, LOOK_S))
                except KafkaException as error:
                    self._serve(consumer, 0)
                    if error.args[0].code() != KafkaError._TIMED_OUT or left_s <= LOOK_S:  # noqa: SLF001 (public)
                        raise

    def commit(self, offsets: Sequence[TopicPartition], deadline_s: float) -> list[TopicPartition]:
        self._done.clear()
        with self.owned.lent() as consumer:
            consumer.commit(offsets=list(offsets), asynchronous=True)
        poll_s = FIRST_POLL_S
        while not self._done:
            if time.monotonic() > deadline_s:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the commit was not answered"))  # noqa: SLF001
            with self.owned.lent() as consumer:
                self._serve(consumer, poll_s)
            poll_s = min(2 * poll_s, LAST_POLL_S)
        error, places = self._done.pop()
        if error is not None and not any(place.error for place in places):
            raise KafkaException(error)
        return places

    def _serve(self, consumer: Consumer, timeout_s: float) -> None:
        """Serve callbacks. Raises KafkaException if the coordinator refuses this user: the client itself asks on."""
        message = consumer.poll(timeout_s)
        error = None if message is None else message.error()
        if error is not None and error.code() > 0 and not error.retriable():
            self.refused = True
            raise KafkaException(error)


def _adding(done: list[tuple[KafkaError | None, list[TopicPartition]]]) -> Any:
    def on_commit(error: KafkaError | None, places: list[TopicPartition]) -> None:
        done.append((error, places))

    return on_commit
