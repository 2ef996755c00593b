"""One consumer on explicit offsets, on a thread of its own, with a bounded queue to the loop.

Without an end it reads for ever. With one it stops there, even if the last offsets before the end hold no entries
(transaction markers, aborted or compacted entries): Kafka's client reports the end. The client library retries during
outages. An offset that Kafka no longer (or not yet) has is an error, never a jump. A consumer that has lost all its
servers for good gives way to a new one, which goes on where it was.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from statechannel.adapters.kafka.clients import LOGGER
from statechannel.adapters.kafka.handover import POLL_S, Handover
from statechannel.adapters.kafka.ownership import Owned, own_consumer
from statechannel.adapters.kafka.trouble import STRANDED, Trouble, reached, watched
from statechannel.errors import LogError, Trimmed
from statechannel.ports import LogEntry

BATCH_ENTRIES = 1_000
WATERMARKS_S = 1.0

AT_END: int = KafkaError._PARTITION_EOF  # noqa: SLF001 (public constants)
UNREADABLE = frozenset(
    {
        KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001
        KafkaError._LOG_TRUNCATION,  # noqa: SLF001
        KafkaError.OFFSET_OUT_OF_RANGE,
    }
)


class Tail(AsyncIterator[Sequence[LogEntry]]):
    """Batches of one partition each. Cancelling a wait for the next one loses nothing; `aclose` ends it.

    `starts` gives the first offset of each partition to read. `until`, for one partition alone, is the offset before
    which to stop; the consumer's settings must then have `enable.partition.eof`.
    """

    def __init__(
        self, settings: Mapping[str, Any], topic: str, starts: Mapping[int, int], until: int | None = None
    ) -> None:
        self.trouble = Trouble()
        self._handover = Handover(asyncio.get_running_loop())
        told = watched({**settings, "error_cb": _noting(self.trouble)}, self.trouble)
        owned = own_consumer(told, logger=LOGGER)
        positions = [TopicPartition(topic, partition, start) for partition, start in starts.items()]
        self._thread = threading.Thread(
            target=_read,
            args=(owned, told, self.trouble, positions, until, self._handover),
            name=f"kafka-tail-{topic}",
            daemon=True,
        )
        self._thread.start()

    async def __anext__(self) -> Sequence[LogEntry]:
        return await self._handover.take()

    @property
    def cut_off(self) -> bool:
        """Whether it was closed before everything was taken."""
        return self._handover.cut_off

    async def aclose(self) -> None:
        """Free the consumer; the thread ends within moments. Idempotent."""
        self._handover.end()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread; blocks."""
        self._thread.join(timeout_s)

    def __del__(self) -> None:
        if hasattr(self, "_handover"):
            self._handover.end()


def _noting(trouble: Trouble) -> Any:
    def on_error(error: KafkaError) -> None:
        trouble.note(error)
        LOGGER.warning("Kafka consumer: %s", error.str())

    return on_error


def _read(
    owned: Owned[Consumer],
    settings: dict[str, Any],
    trouble: Trouble,
    positions: Sequence[TopicPartition],
    until: int | None,
    handover: Handover,
) -> None:
    try:
        with owned.lent() as consumer:
            consumer.assign(list(positions))
        while not handover.ended.is_set():
            with owned.lent() as consumer:
                # `consume` alone would wait for a full batch; `poll` wakes at the first entry, then the rest is there
                first = consumer.poll(POLL_S)
                messages = [] if first is None else [first, *consumer.consume(BATCH_ENTRIES - 1, 0)]
                batches = _by_partition(consumer, messages, until, partial(_left, handover, owned))
                if first is None and trouble.stranded:
                    positions = reached(consumer, positions)
            for batch in batches:
                handover.give(batch)
            if until is not None and _reaches(until, messages):
                return handover.finish()
            if first is None and trouble.stranded:
                LOGGER.warning("replacing the Kafka consumer of %s: %s", positions[0].topic, STRANDED)
                owned.close()
                trouble.stranded = False
                owned = own_consumer(settings, logger=LOGGER)
                with owned.lent() as consumer:
                    consumer.assign(list(positions))
    except LogError as error:
        handover.fail(error)
    except KafkaException as error:
        handover.fail(LogError(f"Kafka consumer failed: {error.args[0].str()}"))
    except Exception as error:  # noqa: BLE001 - a reader that ended in silence would wait for ever
        handover.fail(LogError(f"Kafka consumer failed: {error!r}"))
    finally:
        owned.close()
    return None


def _left(handover: Handover, owned: Owned[Consumer]) -> bool:
    return handover.ended.is_set() or owned.closing


def _by_partition(
    consumer: Consumer, messages: Sequence[Message], until: int | None, left: Callable[[], bool]
) -> Sequence[list[LogEntry]]:
    batches: dict[int, list[LogEntry]] = {}
    for message in messages:
        if (error := message.error()) is not None:
            _judge(consumer, error, message, left)
            continue
        partition, offset = cast("int", message.partition()), cast("int", message.offset())
        if until is not None and offset >= until:
            break
        entry = LogEntry(partition, offset, message.key(), message.value(), message.timestamp()[1])
        batch = batches.get(partition)
        if batch is None:
            batches[partition] = [entry]
        else:
            batch.append(entry)
    return list(batches.values())


def _reaches(until: int, messages: Sequence[Message]) -> bool:
    """Whether no entry before `until` comes after these messages."""
    for message in messages:
        offset, error = cast("int", message.offset()), message.error()
        if offset >= until - 1 if error is None else error.code() == AT_END and offset >= until:
            return True
    return False


def _judge(consumer: Consumer, error: KafkaError, message: Message, left: Callable[[], bool]) -> None:
    if error.code() == AT_END:
        return
    if error.code() in UNREADABLE:
        raise _unreadable(consumer, error, message, left)
    LOGGER.warning("Kafka consumer of %s: %s", message.topic(), error.str())


def _unreadable(consumer: Consumer, error: KafkaError, message: Message, left: Callable[[], bool]) -> LogError:
    """Why an offset cannot be read: it was trimmed, or the log was damaged or replaced."""
    topic, partition = cast("str", message.topic()), cast("int", message.partition())
    offset = message.offset()
    if offset is None:  # the client found by the leader's epoch that the log ends earlier than it has read
        return LogError(
            f"{topic} partition {partition} ends before what was read of it ({error.str()}): the log was damaged, or "
            "replaced by another one. Find out which before you write anything to it"
        )
    where = f"{topic} partition {partition} has no offset {offset}"
    watermarks = _watermarks(consumer, TopicPartition(topic, partition), left)
    if watermarks is None:
        return LogError(f"{where} ({error.str()})")
    begin, end = watermarks
    if offset < begin:
        return Trimmed(f"{where} any more, it was trimmed up to {begin}: start from a snapshot, never skip")
    return LogError(
        f"{where}, only {begin} to {end} ({error.str()}): the log was damaged, or replaced by another one. "
        "Find out which before you write anything to it"
    )


def _watermarks(consumer: Consumer, where: TopicPartition, left: Callable[[], bool]) -> tuple[int, int] | None:
    """Begin and end of a partition, asked for until answered; None once the reader has left."""
    while not left():
        try:
            return consumer.get_watermark_offsets(where, timeout=WATERMARKS_S, cached=False)
        except KafkaException as error:
            LOGGER.warning("Kafka did not answer where %s begins: %s", where.topic, error.args[0].str())
    return None
