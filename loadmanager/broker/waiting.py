"""Repeats steps that a server did not answer.

Steps of the start are repeated until its time-out, later ones until the broker is told to stop. All are idempotent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from statechannel.errors import CoordinationUnavailable, LogUnavailable

T = TypeVar("T")
Step = Callable[[], Coroutine[Any, Any, T]]

FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 1.0
LAST_STEP_S = 0.1
"""The least time for a step of the start, so that it can find out what it waits for."""


class StartRetries:
    """One deadline for all steps of a start. Construct it on the loop when the start begins."""

    def __init__(self, start_timeout_s: float, note: Callable[[str], None]) -> None:
        self._limit_s = start_timeout_s
        self._until_s = asyncio.get_running_loop().time() + start_timeout_s
        self._note = note

    @property
    def left_s(self) -> float:
        """Seconds that a step may take."""
        return max(LAST_STEP_S, self._until_s - asyncio.get_running_loop().time())

    async def of(self, step: Step[T]) -> T:
        """Repeat the step; returns its result. Raises LogUnavailable or CoordinationUnavailable at the deadline."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return await step()
            except (LogUnavailable, CoordinationUnavailable) as error:
                if asyncio.get_running_loop().time() + pause_s >= self._until_s:
                    text = f"not started within {self._limit_s:g} s (start_timeout_s): {error}"
                    raise type(error)(text) from None
                self._note(f"starting: {error}; trying again")
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LAST_PAUSE_S)


async def until_answered(step: Step[T], stopping: asyncio.Event, note: Callable[[str], None]) -> T:
    """Repeat the step; returns its result. Raises its last error only once `stopping` is set."""
    pause_s, told = FIRST_PAUSE_S, ""
    while True:
        try:
            return await step()
        except (CoordinationUnavailable, LogUnavailable) as error:
            if stopping.is_set():
                raise
            if str(error) != told:
                told = str(error)
                note(told)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stopping.wait()
            pause_s = min(2 * pause_s, LAST_PAUSE_S)
