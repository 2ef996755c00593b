"""Appends single records to a log in batches, for callers on its loop and in other threads.

Each batch is one append, and one crossing to the log's loop. Whoever awaits each record before the next is quicker
without: `docs/decisions/0037-batching.md` says where this is worth its delay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from statechannel.ports import Log, Payload
from statechannel.runtime.accumulator import BatchAccumulator, Outcome
from statechannel.runtime.batching import BatchSettings, record_bytes

_CLOSE_S = 1.0

TopicPartition = tuple[str, int]


class BatchedAppends:
    """Make it on the log's loop, and `close` it before the log.

    Records of one topic and partition keep the order in which they were handed in.
    """

    def __init__(self, log: Log, settings: BatchSettings | None = None) -> None:
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._accumulator: BatchAccumulator[TopicPartition, Payload, None] = BatchAccumulator(
            self._send, record_bytes, settings
        )

    @property
    def held_bytes(self) -> int:
        """Bytes of the budget that are taken at present."""
        return self._accumulator.held_bytes

    async def append(self, topic: str, partition: int, payload: Payload) -> None:
        """Return when the record is durable; on any loop. Raises what `Log.append` raises; see `BatchAccumulator`."""
        await self._accumulator.append((topic, partition), payload)

    def append_blocking(self, topic: str, partition: int, payload: Payload, timeout_s: float) -> None:
        """As `append`, for threads without a loop. Raises LogUnavailable after `timeout_s`."""
        self._accumulator.append_blocking((topic, partition), payload, timeout_s)

    def try_append(
        self, topic: str, partition: int, payload: Payload, done: Callable[[None, Exception | None], None]
    ) -> bool:
        """Return at once, False if there is no room; `done` is called on the log's loop, when the record is durable."""
        return self._accumulator.try_append((topic, partition), payload, done)

    async def close(self) -> None:
        """Send what is there, wait at most a second for it, and fail the rest. Idempotent."""
        self._accumulator.stop()
        await asyncio.sleep(0)  # batches that were sent from this turn of the loop become tasks
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)
        self._accumulator.abandon()

    def _send(self, key: TopicPartition, payloads: Sequence[Payload], settle: Callable[[Outcome[None]], None]) -> None:
        # always through the loop's queue, which keeps the order among batches that came from different threads
        self._loop.call_soon_threadsafe(self._begin, key, payloads, settle)

    def _begin(self, key: TopicPartition, payloads: Sequence[Payload], settle: Callable[[Outcome[None]], None]) -> None:
        task = self._loop.create_task(self._append(key, payloads, settle))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _append(
        self, key: TopicPartition, payloads: Sequence[Payload], settle: Callable[[Outcome[None]], None]
    ) -> None:
        topic, partition = key
        try:
            await self._log.append(topic, partition, payloads)
        except Exception as error:  # noqa: BLE001 - it is the outcome of the batch, whatever it is
            settle(error)
        else:
            settle([None] * len(payloads))
