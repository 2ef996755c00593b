"""One transactional producer: groups of entries, or offsets of consumer groups, each all-or-nothing. All calls block,
and run on one thread.

The error tells the outcome of a failed group. A producer that failed once is not used again: its owner makes a new one,
which fences the old one and aborts its open transaction. Being fenced is normal, so this client logs nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from statechannel.adapters.kafka.admin import RIGHTS
from statechannel.adapters.kafka.clients import TRANSACTION_TIMEOUT_S
from statechannel.adapters.kafka.ownership import own_producer
from statechannel.adapters.kafka.trouble import Trouble
from statechannel.errors import LogError, LogUnavailable, RecordTooLarge, WriterFenced
from statechannel.ports import Payload

SLICE_S = 0.5
"""Blocking calls are made in slices of this length; in between we check whether to leave."""
POLL_S = 0.1
TAKE_OVER_S = 15.0
"""Long, because a cluster's first transaction creates the topic of the transaction coordinator."""
WRITE_S = TRANSACTION_TIMEOUT_S * 3 / 4
"""We give up a longer group, before Kafka aborts it and fences us."""

SEND_S = 3.0
"""How long Kafka's client asks again where a topic is not known: the other groups of this producer wait meanwhile."""

FENCED = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001 (public constants)
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
    }
)
TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
HOPELESS = {
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: RIGHTS,
    KafkaError.INVALID_TRANSACTION_TIMEOUT: f"set the brokers' transaction.max.timeout.ms to at least "
    f"{TRANSACTION_TIMEOUT_S * 1_000}",
}

COORDINATOR = b"loadmanager"

_quiet = logging.getLogger("statechannel.kafka.transactions")
_quiet.setLevel(logging.CRITICAL + 1)


class FencedWhileCommitting(WriterFenced):
    """Fenced when the coordinator already had the group: it was committed iff readers get the offset `first`."""

    def __init__(self, message: str, first: int) -> None:
        super().__init__(message)
        self.first = first


class _Leaving(Exception):
    """The owner closes, or a group took too long."""


class Transactions:
    """The producer of one transactional id. Any thread may call `leave`, which ends a call under way."""

    def __init__(self, settings: Mapping[str, Any], request_timeout_s: float) -> None:
        self._id = str(settings["transactional.id"])
        self._timeout_s = request_timeout_s
        self._unusable: Callable[[], LogError] | None = None
        self._leaving = threading.Event()
        self._trouble = Trouble()
        watched: dict[str, Any] = {**settings, "error_cb": self._trouble.note}
        self._owned = own_producer(watched, logger=_quiet)
        self._owned.close_with(self)

    def leave(self) -> None:
        """Make a call under way fail soon."""
        self._leaving.set()

    def drop(self) -> None:
        """End the producer on this thread, since it blocks. Idempotent."""
        self._owned.close()

    def take_over(self) -> None:
        """Fence the previous producer of this id. Raises LogUnavailable, or LogError if no retry helps."""
        failed = self._repeat(Producer.init_transactions, TAKE_OVER_S)
        if failed is None:
            return
        if failed.code() in HOPELESS:
            raise LogError(f"Kafka refuses {self._id} as a writer: {failed.str()}; {HOPELESS[failed.code()]}")
        raise LogUnavailable(
            f"Kafka did not accept {self._id} as a writer: {self._trouble.latest or failed.str()}; ask again. If it "
            "never does, check that the cluster has as many brokers as transaction.state.log.replication.factor"
        )

    def commit(self, topic: str, partition: int, payloads: Sequence[Payload]) -> int:
        """Write a group and commit it; returns the offset of its last entry. Readers may get it a moment later.

        Raises WriterFenced or RecordTooLarge (nothing was written), FencedWhileCommitting, or LogUnavailable.
        """
        if self._unusable is not None:
            raise self._unusable()
        group = _Group(len(payloads))
        try:
            self._begin()
            self._send(topic, partition, payloads, group)
        except _Leaving as why:
            raise self._abort(str(why), None) from None
        except KafkaException as error:
            raise self._abort(error.args[0].str(), error.args[0].code()) from error
        if group.error is not None:
            raise self._abort(group.error.str(), group.error.code())
        self._end(group)
        return group.last

    def commit_offsets(self, wanted: Mapping[str, Sequence[TopicPartition]]) -> dict[str, KafkaError]:
        """Commit offsets of consumer groups, by group, in one transaction; returns which groups Kafka refuses, and why.
        Nothing is committed for those.

        Raises WriterFenced or LogUnavailable: they may have been committed or not. The next producer of this id ends
        what is under way.
        """
        if self._unusable is not None:
            raise self._unusable()
        refused: dict[str, KafkaError] = {}
        while left := {group: its for group, its in wanted.items() if group not in refused}:
            group, failed = self._send_offsets(left)
            if failed is None:
                failed = self._repeat(Producer.commit_transaction, self._timeout_s)
                if failed is None:
                    break
            elif failed.txn_requires_abort() and self._repeat(Producer.abort_transaction, self._timeout_s) is None:
                refused[group] = failed
                continue
            raise self._abort(failed.str(), failed.code())
        return refused

    def _send_offsets(self, wanted: Mapping[str, Sequence[TopicPartition]]) -> tuple[str, KafkaError | None]:
        """Begin a transaction of these; returns the group that failed, and why, None if none did."""
        group, failed = "", None
        try:
            self._begin()
        except KafkaException as error:
            raise self._abort(error.args[0].str(), error.args[0].code()) from error
        for group, offsets in wanted.items():
            failed = self._send_offsets_of(group, list(offsets))
            if failed is not None:
                break
        return group, failed

    def _send_offsets_of(self, group: str, offsets: list[TopicPartition]) -> KafkaError | None:
        """In one call, not in slices: with a short time-out the client sometimes never returns."""
        try:
            with self._owned.lent() as producer:
                producer.send_offsets_to_transaction(offsets, _no_member(group), min(SEND_S, self._timeout_s))
        except KafkaException as error:
            return error.args[0]
        return None

    def _begin(self) -> None:
        with self._owned.lent() as producer:
            producer.begin_transaction()

    def _send(self, topic: str, partition: int, payloads: Sequence[Payload], group: _Group) -> None:
        deadline = time.monotonic() + WRITE_S

        def poll(producer: Producer) -> None:
            if self._leaving.is_set():
                raise _Leaving("the writer is being closed")
            if time.monotonic() > deadline:
                raise _Leaving(f"it took more than {WRITE_S:g} s; write smaller groups")
            producer.poll(POLL_S)

        with self._owned.lent() as producer:
            for payload in payloads:
                while True:
                    try:
                        producer.produce(topic, payload.value, payload.key, partition, group.report)
                        break
                    except BufferError:
                        poll(producer)
            while group.left and group.error is None:
                poll(producer)

    def _end(self, group: _Group) -> None:
        failed = self._repeat(Producer.commit_transaction, self._timeout_s)
        if failed is None:
            return
        if failed.code() in FENCED:
            self._give_up_for(WriterFenced, f"{self._id} has another writer: {failed.str()}")
            raise FencedWhileCommitting(f"{self._id} has another writer: {failed.str()}", group.first)
        if failed.txn_requires_abort():
            raise self._abort(failed.str(), failed.code())
        raise self._give_up_for(
            LogUnavailable,
            f"it is not known whether {self._id} committed: {self._trouble.latest or failed.str()}; "
            "ask for a new writer",
        )

    def _abort(self, why: str, code: int | None) -> LogError:
        """Abort the transaction; returns the error to raise. If that fails, the next writer or a time-out aborts it."""
        failed = None
        if code not in FENCED:
            failed = self._repeat(Producer.abort_transaction, SLICE_S if self._leaving.is_set() else self._timeout_s)
        if code in FENCED or (failed is not None and failed.code() in FENCED):
            return self._give_up_for(WriterFenced, f"{self._id} has another writer: {why}; nothing was written")
        unavailable = self._give_up_for(
            LogUnavailable, f"{self._id} wrote nothing: {self._trouble.latest or why}; ask for a new writer"
        )
        return RecordTooLarge(f"{self._id} wrote nothing: {why}") if code in TOO_LARGE else unavailable

    def _give_up_for(self, kind: type[LogError], message: str) -> LogError:
        self._unusable = lambda: kind(message)
        return kind(message)

    def _repeat(self, call: Callable[[Producer, float], object], timeout_s: float) -> KafkaError | None:
        """Repeat a resumable call until it succeeds; returns None, or why it failed."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                with self._owned.lent() as producer:
                    call(producer, max(POLL_S, min(SLICE_S, deadline - time.monotonic())))
            except KafkaException as error:
                cause: KafkaError = error.args[0]
                if not cause.retriable() or self._leaving.is_set() or time.monotonic() > deadline:
                    return cause
            except SystemError:
                # the client's wrapper fails on a report that comes together with a fatal error; the next call
                # returns that error
                if time.monotonic() > deadline:
                    return KafkaError(KafkaError._FAIL)  # noqa: SLF001 (as above)
            else:
                return None


def _no_member(group: str) -> bytes:
    """A group's metadata, as `Consumer.consumer_group_metadata` writes it: of a member that the group does not have.

    So Kafka refuses the offsets while consumers of its own protocols are members. Without any id it would take them.
    """
    generation = (-1).to_bytes(4, "little", signed=True)
    return b"CGMDv2:" + generation + group.encode() + b"\0" + COORDINATOR + b"\0" + b"\1"


class _Group:
    """Counts the delivery reports of one group. They run inside the client's calls, so they only count."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.first = -1
        self.last = -1
        self.error: KafkaError | None = None

    def report(self, error: KafkaError | None, message: Message) -> None:
        self.left -= 1
        if error is not None:
            self.error = self.error or error
            return
        offset = message.offset()
        assert offset is not None
        self.first = offset if self.first < 0 else min(self.first, offset)
        self.last = max(self.last, offset)
