"""Measures how late the control loop is: how long work that is ready waits for the turn that runs.

A timer is due every `LOOK_S`; it is late by the rest of the turn in which it became due. A turn that is longer than
`LOOK_S` is seen, and its length is the lateness or up to `LOOK_S` more. On Linux the lateness is told apart into what
the process did and the time for which the kernel gave the loop's thread no processor.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager

from statechannel.runtime.durations import Durations

LOOK_S = 0.02
LATE_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Bounds: a turn should take less than 20 ms."""

WINDOW_S = 60.0


class Turns:
    """How late the loop was. What is longest looks back over one to two windows."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.late = Durations(LATE_S)
        self._clock_s = clock_s
        self._began_s = clock_s()
        self._before = self._now = (0.0, 0.0)
        self._turned_s: float | None = None

    @property
    def longest_s(self) -> float:
        """The longest lateness of the last minute or two."""
        return max(self._before[0], self._now[0])

    @property
    def longest_own_s(self) -> float:
        """The same of the lateness without the waits for a processor."""
        return max(self._before[1], self._now[1])

    @property
    def still_s(self) -> float:
        """Since the loop last turned, for any thread; 0 if nobody measures."""
        turned_s = self._turned_s
        return 0.0 if turned_s is None else self._clock_s() - turned_s

    def add(self, late_s: float, waited_s: float = 0.0) -> None:
        """The timer was late by so much; since it was last set, the thread waited so long for a processor."""
        now_s = self._turned_s = self._clock_s()
        if now_s - self._began_s >= WINDOW_S:
            self._began_s, self._before, self._now = now_s, self._now, (0.0, 0.0)
        self.late.add(late_s)
        longest_s, own_s = self._now
        self._now = max(longest_s, late_s), max(own_s, late_s - waited_s)

    @asynccontextmanager
    async def measured(self) -> AsyncGenerator[None]:
        """Measure the running loop while the context is open."""
        loop = asyncio.get_running_loop()

        def look(due_s: float, before_s: float) -> None:
            nonlocal timer
            now_s, all_s = loop.time(), waited_s()
            self.add(now_s - due_s, all_s - before_s)
            timer = loop.call_at(now_s + LOOK_S, look, now_s + LOOK_S, all_s)

        with _waits_for_a_processor() as waited_s:
            timer = loop.call_at(loop.time() + LOOK_S, look, loop.time() + LOOK_S, waited_s())
            try:
                yield
            finally:
                timer.cancel()
                self._turned_s = None


@contextmanager
def _waits_for_a_processor() -> Generator[Callable[[], float]]:
    """Gives a function: for how long this thread was ready to run and did not, in all. Where no kernel says so, 0.

    Linux' `/proc/PID/task/TID/schedstat`, second figure, in nanoseconds.
    """
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield lambda: 0.0
        return
    try:
        yield lambda: int(os.pread(file, 100, 0).split()[1]) / 1e9
    finally:
        os.close(file)
