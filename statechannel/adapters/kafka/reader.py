"""Reads entries from explicit offsets, without end or up to one: a consumer on a thread, a bounded queue to the loop.

With an end it stops there, even if the last offsets before the end hold no entries (transaction markers, aborted or
compacted entries): Kafka's client reports the end. The client library retries during outages. An offset that Kafka no
longer (or not yet) has is an error, never a jump. A consumer that has lost all its servers for good is replaced by a
new one, which goes on where it was.

Kafka lets a reader hang in two places. Between the last committed entry and the partition's end it neither answers nor
fails. Past the last entry it is silent unless told to report the end. So a caller that reads what a partition has at
the moment of the call asks for begin and end first.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import ResourceType

from statechannel.adapters.kafka.admin import Admin, text_of
from statechannel.adapters.kafka.clients import LOGGER
from statechannel.adapters.kafka.offsets import Offsets
from statechannel.adapters.kafka.ownership import Owned, own_consumer
from statechannel.adapters.kafka.trouble import STRANDED, Trouble, reached, watched
from statechannel.errors import LogError, LogUnavailable, Trimmed
from statechannel.ports import LogEntry

WAITING_BATCHES = 16
"""How many batches the thread may be ahead of its reader; then it waits, and Kafka's client stops fetching."""
POLL_S = 0.1
"""How often a waiting thread checks whether its reader has left."""


class Handover:
    """At most `WAITING_BATCHES` under way, then an end or an error. Cancelling `take` loses nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ended = threading.Event()
        """Whether the reader has left."""
        self.cut_off = False
        """Whether there was more when the reader left."""
        self._loop = loop
        self._slots = threading.Semaphore(WAITING_BATCHES)
        self._batches: deque[Sequence[LogEntry]] = deque()
        self._error: LogError | None = None
        self._finished = False
        self._arrived = asyncio.Event()

    # --- on the consumer's thread
    def give(self, batch: Sequence[LogEntry]) -> None:
        """Hand over a batch; waits for room."""
        while not self._slots.acquire(timeout=POLL_S):
            if self.ended.is_set():
                return
        self._call(self._batches.append, batch)

    def fail(self, error: LogError) -> None:
        """Raise this in the reader after all batches given before."""
        self._call(self._keep_error, error)

    def finish(self) -> None:
        """End the reader's iteration after all batches given before."""
        self._call(self._keep_finished, None)

    def _call(self, keep: Any, what: object) -> None:
        def arrive() -> None:
            keep(what)
            self._arrived.set()

        with suppress(RuntimeError):  # the loop is closed: there is no reader any more
            self._loop.call_soon_threadsafe(arrive)

    # --- on the loop
    async def take(self) -> Sequence[LogEntry]:
        """The next batch. Raises the error of `fail`, or StopAsyncIteration at the end and after `end`."""
        while not self.ended.is_set():  # batches that arrive after `end` are dropped
            if self._batches:
                self._slots.release()
                return self._batches.popleft()
            if self._error is not None:
                raise self._error
            if self._finished:
                break
            self._arrived.clear()
            await self._arrived.wait()
        raise StopAsyncIteration

    def end(self) -> None:
        """The reader leaves. Idempotent."""
        if not self.ended.is_set():
            self.cut_off = bool(self._batches) or not self._finished
        self.ended.set()
        self._batches.clear()
        self._arrived.set()

    def _keep_error(self, error: LogError) -> None:
        self._error = error

    def _keep_finished(self, _: None) -> None:
        self._finished = True


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
    except Exception as error:  # noqa: BLE001 - a reader that ended in silence would wait forever
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


# pyright: reportPrivateImportUsage=false


OpenTail = Callable[[str, int, int, int], Tail]
"""Topic, partition, first offset, and the offset before which to stop."""


class Reader:
    """As `Log.read`, by the topics' full names."""

    def __init__(self, admin: Admin, offsets: Offsets, open_tail: OpenTail) -> None:
        self._admin = admin
        self._offsets = offsets
        self._open_tail = open_tail

    async def read(self, topic: str, partition: int, start: int) -> AsyncGenerator[Sequence[LogEntry], None]:
        """As `Log.read`; a start beyond the partition's end gives nothing."""
        span = await self._offsets.span(topic, partition)
        if start < span.begin:
            if not await self._compacted(topic):
                raise Trimmed(
                    f"{topic} partition {partition} has no offset {start} any more, it was trimmed up to "
                    f"{span.begin}: start from a snapshot, never skip"
                )
            start = span.begin
        if start >= span.committed:
            return
        tail = self._open_tail(topic, partition, start, span.committed)
        try:
            while start < span.committed and (batch := await self._next(tail, topic, partition)) is not None:
                yield batch
                start = batch[-1].offset + 1
        finally:
            await tail.aclose()

    async def holds(self, topic: str, partition: int, offset: int) -> bool:
        """Whether readers get an entry at exactly this offset. Raises LogUnavailable."""
        async with aclosing(self.read(topic, partition, offset)) as batches:
            first = await anext(batches, None)
        return first is not None and first[0].offset == offset

    async def _next(self, tail: Tail, topic: str, partition: int) -> Sequence[LogEntry] | None:
        try:
            async with asyncio.timeout(self._admin.timeout_s):
                batch = await anext(tail, None)
        except TimeoutError:
            why = tail.trouble.latest or "no answer"
            raise LogUnavailable(
                f"Kafka at {self._admin.bootstrap}: no record of {topic} partition {partition} "
                f"came for {self._admin.timeout_s:g} s: {why}"
            ) from None
        if batch is None and tail.cut_off:
            raise LogUnavailable(f"the log was closed while {topic} partition {partition} was read")
        return batch

    async def _compacted(self, topic: str) -> bool:
        try:
            settings = await self._admin.settings(ResourceType.TOPIC, topic)
        except (KafkaException, TimeoutError) as error:
            raise LogUnavailable(f"Kafka at {self._admin.bootstrap}: {topic}: {text_of(error)}") from error
        return "compact" in settings["cleanup.policy"]
