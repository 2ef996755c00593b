"""One idempotent producer and the thread that serves its delivery reports. Ignores topics' settings.

A producer can break for good: its sequence and the broker's disagree after a failure, or it has lost all its servers.
Then `broken` is set, and its owner makes a new one. Unacknowledged appends then fail, as `Log.append` allows.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from statechannel.adapters.kafka.clients import LOGGER, MAX_ENTRY_BYTES
from statechannel.adapters.kafka.ownership import ClientClosed, own_producer
from statechannel.adapters.kafka.trouble import STRANDED, Trouble, watched
from statechannel.errors import LogUnavailable, RecordTooLarge
from statechannel.ports import Payload

POLL_S = 0.1
FULL_QUEUE_PAUSE_S = 0.005
FLUSH_S = 1.0
GRACE_S = 0.5
"""How much later than the producer's own time-out we stop waiting for its report."""


class Writer:
    """Append payloads in order; each append resolves once all of it is durable."""

    def __init__(self, settings: Mapping[str, Any], loop: asyncio.AbstractEventLoop, request_timeout_s: float) -> None:
        self.broken = ""
        self._loop = loop
        self._timeout_s = request_timeout_s + GRACE_S
        self._turn = asyncio.Lock()
        self._trouble = Trouble()
        told = watched({**settings, "error_cb": self._on_error}, self._trouble)
        self._owned = own_producer(told, logger=LOGGER)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="kafka-writer", daemon=True)
        self._thread.start()

    async def append(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        """As `Log.append`."""
        check_sizes(payloads)
        if not payloads:
            return
        append = _Append(self, self._loop, len(payloads))
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._turn:  # first come, first served, also while the queue is full
                    await self._enqueue(topic, partition, payloads, append)
                await append.done
        except TimeoutError:
            raise LogUnavailable(
                f"Kafka did not acknowledge an append to {topic} within {self._timeout_s:g} s"
            ) from None
        except KafkaException as error:
            self.note(error.args[0])
            raise LogUnavailable(f"Kafka refused an append to {topic}: {error.args[0].str()}") from error

    def note(self, error: KafkaError) -> None:
        """Remember an error that this producer cannot recover from."""
        if error.fatal() or error.code() in (KafkaError._FATAL, KafkaError._STATE):  # noqa: SLF001 (public constants)
            self.broken = error.str()

    def stop(self, *, flush: bool) -> None:
        """Let the thread end by itself; with `flush`, after sending what it can within a second. Idempotent."""
        if not flush:
            with suppress(ClientClosed), self._owned.lent() as producer:
                producer.purge(blocking=False)
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread; blocks."""
        self._thread.join(timeout_s)

    async def _enqueue(self, topic: str, partition: int, payloads: Sequence[Payload], append: _Append) -> None:
        at = 0
        while True:
            at = self._produce(topic, partition, payloads, at, append)
            if at == len(payloads):
                return
            await asyncio.sleep(FULL_QUEUE_PAUSE_S)

    def _produce(self, topic: str, partition: int, payloads: Sequence[Payload], at: int, append: _Append) -> int:
        """Enqueue the payloads from `at` on while there is room; the first one left over."""
        report = append.report
        with self._owned.lent() as producer:
            produce = producer.produce
            for number in range(at, len(payloads)):
                payload = payloads[number]
                try:
                    produce(topic, payload.value, payload.key, partition, report)
                except BufferError:
                    return number
        return len(payloads)

    def _serve(self) -> None:
        try:
            while not self._stopping.is_set():
                self._poll(POLL_S)
            self._flush()
        except ClientClosed:
            return  # the interpreter ends
        finally:
            self._owned.close()

    def _flush(self) -> None:
        with self._owned.lent() as producer, suppress(RuntimeError, KafkaException):
            producer.flush(FLUSH_S)
            producer.purge(blocking=False)  # fails the appends that still wait
            producer.flush(POLL_S)

    def _poll(self, timeout_s: float) -> None:
        # RuntimeError: a report's loop is closed, and nothing waits for it any more
        with self._owned.lent() as producer, suppress(RuntimeError):
            try:
                producer.poll(timeout_s)
            except KafkaException as error:  # the client reports a fatal error so, instead of by `error_cb`
                self._on_error(error.args[0])
        if self._trouble.stranded:
            self.broken = STRANDED

    def _on_error(self, error: KafkaError) -> None:
        self.note(error)
        LOGGER.warning("Kafka producer: %s", error.str())


class _Append:
    """Counts the delivery reports of one append, on the writer's thread, and settles it on the loop."""

    __slots__ = ("_error", "_left", "_loop", "_writer", "done")

    def __init__(self, writer: Writer, loop: asyncio.AbstractEventLoop, count: int) -> None:
        self._writer = writer
        self._loop = loop
        self._left = count
        self._error: KafkaError | None = None
        self.done: asyncio.Future[None] = loop.create_future()

    def report(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self._error = error
            self._writer.note(error)
        self._left -= 1
        if self._left == 0:
            self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        if self.done.done():
            return
        if self._error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(KafkaException(self._error))


def check_sizes(payloads: Sequence[Payload]) -> None:
    """Raises RecordTooLarge if any payload is too large for the log."""
    for payload in payloads:
        size = len(payload.key or b"") + len(payload.value or b"")
        if size > MAX_ENTRY_BYTES:
            raise RecordTooLarge(
                f"an entry of {size} bytes exceeds the {MAX_ENTRY_BYTES} that the log takes: write smaller records"
            )
