"""The calls that the virtual loop will make, and the timers among them by (time, sequence)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from heapq import heapify, heappop, heappush
from typing import Any

from loadmanager.simulation.process import Process

_COMPACT_ABOVE = 512


class ScheduledCall(asyncio.TimerHandle):
    """A callback that is ready or due at a time: the virtual loop's handle, without asyncio's debugging data."""

    __slots__ = ("args", "callback", "context", "due_s", "process", "timers")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context, process: Process
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self.process = process
        self.due_s = 0.0
        self.timers: Timers | None = None

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback, self.args = None, ()
            if self.timers is not None:
                self.timers.one_was_cancelled()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.due_s

    def __repr__(self) -> str:
        return f"<ScheduledCall {self.callback} of {self.process.name}>"


class Timers:
    """Timers in order of true time, and of their setting where times are equal."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, ScheduledCall]] = []
        self._sequence = 0
        self._cancelled = 0

    def push(self, due_ns: int, call: ScheduledCall) -> None:
        call.timers = self
        self._sequence += 1
        heappush(self._heap, (due_ns, self._sequence, call))

    def pop_next_instant(self, ready: deque[ScheduledCall]) -> int | None:
        """Move the calls of the earliest instant to `ready`; that instant in ns, None if no timer is set."""
        heap = self._heap
        if not heap:
            return None
        due_ns = heap[0][0]
        while heap and heap[0][0] == due_ns:
            call = heappop(heap)[2]
            call.timers = None
            if call.callback is None:
                self._cancelled -= 1
            else:
                ready.append(call)
        return due_ns

    def one_was_cancelled(self) -> None:
        """Count it, and drop the cancelled ones once they are the majority."""
        self._cancelled += 1
        if self._cancelled > _COMPACT_ABOVE and 2 * self._cancelled > len(self._heap):
            self._heap = [timer for timer in self._heap if timer[2].callback is not None]
            heapify(self._heap)
            self._cancelled = 0

    def clear(self) -> None:
        self._heap.clear()
        self._cancelled = 0
