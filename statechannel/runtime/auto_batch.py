"""Batches for a function that writes many records at once: callers hand in one each, and get their own record's result.

    insert = AutoBatch(store.insert_many)
    await insert.send(order)

Each batch is one call of the function, and one crossing to its loop. A caller that awaits each record before the next
is quicker without it. `docs/decisions/0037-batching.md` says where this is worth its delay.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from statechannel.errors import LogUnavailable
from statechannel.ports import Log, Payload
from statechannel.runtime.accumulator import BatchAccumulator, Outcome
from statechannel.runtime.batching import RECORD_OVERHEAD_BYTES, BatchSettings, record_bytes

T = TypeVar("T")
R = TypeVar("R")

CLOSE_S = 1.0


def alike(record: object) -> Hashable:
    """All records may share a batch."""
    return None


def rough_size(record: Any) -> int:
    """The default size of a record: its own bytes, not those of what it refers to."""
    return sys.getsizeof(record) + RECORD_OVERHEAD_BYTES


class AutoBatch(Generic[T, R]):
    """Make it on the loop on which `write` runs; use it with `async with`, or `close` it before what it writes to.

    `write` gets the records of a batch in order, and returns one result for each, or None. Each caller of the batch
    gets what it raises. Records share a batch only if `by` is the same for them. Batches begin in order, and a batch
    does not wait for the one before. `size_bytes` of a record counts for the settings.
    """

    def __init__(
        self,
        write: Callable[[list[T]], Awaitable[Sequence[R] | None]],
        settings: BatchSettings | None = None,
        *,
        by: Callable[[T], Hashable] = alike,
        size_bytes: Callable[[T], int] = rough_size,
    ) -> None:
        self._write = write
        self._by = by
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._accumulator: BatchAccumulator[Hashable, T, R | None] = BatchAccumulator(self._send, size_bytes, settings)

    @property
    def held_bytes(self) -> int:
        """Bytes of the budget that are taken at present."""
        return self._accumulator.held_bytes

    async def send(self, record: T) -> R | None:
        """Return the record's result when its batch is written. Works on any loop. Waits while there is no room.

        Raises what `write` raises; see `BatchAccumulator`.
        """
        return await self._accumulator.append(self._by(record), record)

    def send_blocking(self, record: T, timeout_s: float) -> R | None:
        """As `send`, for threads without a loop. Raises LogUnavailable after `timeout_s`."""
        return self._accumulator.append_blocking(self._by(record), record, timeout_s)

    def try_send(self, record: T, done: Callable[[R | None, Exception | None], None]) -> bool:
        """Return at once: False if there is no room. `done` is called on the loop when the batch is written."""
        return self._accumulator.try_append(self._by(record), record, done)

    async def close(self) -> None:
        """Write what is there, wait at most a second for it, and fail the rest. Idempotent."""
        self._accumulator.stop()
        await asyncio.sleep(0)  # batches that were sent from this turn of the loop become tasks
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_S)
        self._accumulator.abandon()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _send(self, key: Hashable, records: Sequence[T], settle: Callable[[Outcome[R | None]], None]) -> None:  # noqa: ARG002
        # always through the loop's queue, which keeps the order among batches that came from different threads
        self._loop.call_soon_threadsafe(self._begin, records, settle)

    def _begin(self, records: Sequence[T], settle: Callable[[Outcome[R | None]], None]) -> None:
        task = self._loop.create_task(self._written(records, settle))
        self._tasks.add(task)
        task.add_done_callback(partial(self._end, settle))

    def _end(self, settle: Callable[[Outcome[R | None]], None], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            settle(LogUnavailable("the write of the batch was cancelled; its records may be stored or not"))

    async def _written(self, records: Sequence[T], settle: Callable[[Outcome[R | None]], None]) -> None:
        try:
            results = await self._write(list(records))
        except Exception as error:  # noqa: BLE001 - it is the outcome of the batch, whatever it is
            settle(error)
        else:
            settle([None] * len(records) if results is None else results)


Entry = tuple[str, int, Payload]
"""Topic, partition, and what is appended there."""


class BatchedAppends(AutoBatch[Entry, None]):
    """Appends single records to a log in batches; those of one topic and partition keep their order."""

    def __init__(self, log: Log, settings: BatchSettings | None = None) -> None:
        async def append(entries: list[Entry]) -> None:
            topic, partition, _ = entries[0]
            await log.append(topic, partition, [payload for _, _, payload in entries])

        super().__init__(append, settings, by=lambda entry: entry[:2], size_bytes=lambda entry: record_bytes(entry[2]))

    async def append(self, topic: str, partition: int, payload: Payload) -> None:
        """As `send`. Raises what `Log.append` raises, too."""
        await self.send((topic, partition, payload))

    def append_blocking(self, topic: str, partition: int, payload: Payload, timeout_s: float) -> None:
        """As `send_blocking`."""
        self.send_blocking((topic, partition, payload), timeout_s)

    def try_append(
        self, topic: str, partition: int, payload: Payload, done: Callable[[None, Exception | None], None]
    ) -> bool:
        """As `try_send`."""
        return self.try_send((topic, partition, payload), done)
