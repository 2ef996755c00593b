"""One consumer on explicit offsets, on a thread of its own, handed over to the loop with a bound.

Outages are the client library's to ride out. An offset that Kafka no longer (or not yet) has ends the tail.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from statechannel.adapters.kafka_clients import LOGGER
from statechannel.errors import LogError
from statechannel.ports import LogEntry

BATCH_ENTRIES = 1_000
WAITING_BATCHES = 16
"""How far the thread may run ahead of its reader; then it waits, and Kafka's client stops fetching."""
POLL_S = 0.1

UNREADABLE = frozenset(
    {
        KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001 (public constants)
        KafkaError._LOG_TRUNCATION,  # noqa: SLF001
        KafkaError.OFFSET_OUT_OF_RANGE,
    }
)


class Tail(AsyncIterator[Sequence[LogEntry]]):
    """Batches of one partition each. Cancelling a wait for the next one loses nothing; `aclose` ends it."""

    def __init__(self, settings: Mapping[str, Any], topic: str, starts: Sequence[int]) -> None:
        self._handover = _Handover(asyncio.get_running_loop())
        consumer = Consumer({**settings, "error_cb": _log_error}, logger=LOGGER)
        positions = [TopicPartition(topic, partition, start) for partition, start in enumerate(starts)]
        self._thread = threading.Thread(
            target=_read, args=(consumer, positions, self._handover), name=f"kafka-tail-{topic}", daemon=True
        )
        self._thread.start()

    async def __anext__(self) -> Sequence[LogEntry]:
        return await self._handover.take()

    async def aclose(self) -> None:
        """Free the consumer; the thread ends within moments. Idempotent."""
        self._handover.end()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread; blocks."""
        self._thread.join(timeout_s)

    def __del__(self) -> None:
        self._handover.end()


class _Handover:
    """From the consumer's thread to the loop: at most `WAITING_BATCHES` under way, then an end or an error."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ended = threading.Event()
        self._loop = loop
        self._slots = threading.Semaphore(WAITING_BATCHES)
        self._batches: deque[Sequence[LogEntry]] = deque()
        self._error: LogError | None = None
        self._arrived = asyncio.Event()

    # --- on the consumer's thread
    def give(self, batch: Sequence[LogEntry]) -> None:
        while not self._slots.acquire(timeout=POLL_S):
            if self.ended.is_set():
                return
        self._call(self._batches.append, batch)

    def fail(self, error: LogError) -> None:
        self._call(self._keep_error, error)

    def _call(self, keep: Any, what: object) -> None:
        def arrive() -> None:
            keep(what)
            self._arrived.set()

        with suppress(RuntimeError):  # the loop is closed: nobody reads any more
            self._loop.call_soon_threadsafe(arrive)

    # --- on the loop
    async def take(self) -> Sequence[LogEntry]:
        while not self._batches:
            if self._error is not None:
                raise self._error
            if self.ended.is_set():
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        self._slots.release()
        return self._batches.popleft()

    def end(self) -> None:
        self.ended.set()
        self._batches.clear()
        self._arrived.set()

    def _keep_error(self, error: LogError) -> None:
        self._error = error


def _read(consumer: Consumer, positions: Sequence[TopicPartition], handover: _Handover) -> None:
    try:
        consumer.assign(list(positions))
        while not handover.ended.is_set():
            # `consume` alone would wait for a full batch; `poll` wakes at the first entry, the rest is there already
            first = consumer.poll(POLL_S)
            if first is not None:
                for batch in _by_partition([first, *consumer.consume(BATCH_ENTRIES - 1, 0)]):
                    handover.give(batch)
    except LogError as error:
        handover.fail(error)
    except KafkaException as error:
        handover.fail(LogError(f"Kafka consumer failed: {error.args[0].str()}"))
    finally:
        consumer.close()


def _by_partition(messages: Sequence[Message]) -> Sequence[list[LogEntry]]:
    batches: dict[int, list[LogEntry]] = {}
    for message in messages:
        if (error := message.error()) is not None:
            _judge(error, message)
            continue
        partition = cast("int", message.partition())
        entry = LogEntry(
            partition, cast("int", message.offset()), message.key(), message.value(), message.timestamp()[1]
        )
        batch = batches.get(partition)
        if batch is None:
            batches[partition] = [entry]
        else:
            batch.append(entry)
    return list(batches.values())


def _judge(error: KafkaError, message: Message) -> None:
    if error.code() in UNREADABLE:
        raise LogError(
            f"{message.topic()} partition {message.partition()} has no offset {message.offset()} "
            f"({error.str()}): it was trimmed, or the log was damaged or replaced. "
            "Start from a newer snapshot; never skip what is missing"
        )
    LOGGER.warning("Kafka consumer of %s: %s", message.topic(), error.str())


def _log_error(error: KafkaError) -> None:
    LOGGER.warning("Kafka consumer: %s", error.str())
