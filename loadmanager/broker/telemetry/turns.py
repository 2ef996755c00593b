"""Measures how late the control loop is: how long work that is ready waits for the turn that runs.

A timer is due every `LOOK_S`; it is late by the rest of the turn in which it became due. A turn that is longer than
`LOOK_S` is seen, and its length is the lateness or up to `LOOK_S` more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from statechannel.runtime.durations import Durations

LOOK_S = 0.02
LATE_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Bounds: a turn should take less than 20 ms."""

WINDOW_S = 60.0


class Turns:
    """How late the loop was. `longest_s` looks back over one to two windows."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.late = Durations(LATE_S)
        self._clock_s = clock_s
        self._began_s = clock_s()
        self._before_s = self._now_s = 0.0

    @property
    def longest_s(self) -> float:
        """The longest lateness of the last minute or two."""
        return max(self._before_s, self._now_s)

    def add(self, late_s: float) -> None:
        """The timer was late by so much."""
        now_s = self._clock_s()
        if now_s - self._began_s >= WINDOW_S:
            self._began_s, self._before_s, self._now_s = now_s, self._now_s, 0.0
        self.late.add(late_s)
        self._now_s = max(self._now_s, late_s)

    @asynccontextmanager
    async def measured(self) -> AsyncGenerator[None]:
        """Measure the running loop while the context is open."""
        loop = asyncio.get_running_loop()

        def look(due_s: float) -> None:
            nonlocal timer
            now_s = loop.time()
            self.add(now_s - due_s)
            timer = loop.call_at(now_s + LOOK_S, look, now_s + LOOK_S)

        timer = loop.call_at(loop.time() + LOOK_S, look, loop.time() + LOOK_S)
        try:
            yield
        finally:
            timer.cancel()
