"""A bounded queue of batches from a consumer's thread to the event loop. Knows nothing of Kafka."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from statechannel.errors import LogError
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

        with suppress(RuntimeError):  # the loop is closed: nobody reads any more
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
