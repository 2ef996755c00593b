"""Repeats steps that a server did not answer.

Steps of the start are repeated until its time-out, later ones until the broker is told to stop. All are idempotent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from statechannel.errors import CoordinationUnavailable, LogUnavailable
from statechannel.runtime.tasks import retried

T = TypeVar("T")
Step = Callable[[], Coroutine[Any, Any, T]]

UNANSWERED = (LogUnavailable, CoordinationUnavailable)
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
        return await retried(step, UNANSWERED, first_s=FIRST_PAUSE_S, last_s=LAST_PAUSE_S, failed=self._failed)

    def _failed(self, error: Exception, pause_s: float) -> None:
        if asyncio.get_running_loop().time() + pause_s >= self._until_s:
            raise type(error)(f"not started within {self._limit_s:g} s (start_timeout_s): {error}") from None
        self._note(f"starting: {error}; trying again")


async def until_answered(step: Step[T], stopping: asyncio.Event, note: Callable[[str], None]) -> T:
    """Repeat the step; returns its result. Raises its last error only once `stopping` is set."""
    told = ""

    def failed(error: Exception, _: float) -> None:
        nonlocal told
        if stopping.is_set():
            raise error
        if str(error) != told:
            told = str(error)
            note(told)

    async def pause(pause_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await stopping.wait()

    return await retried(step, UNANSWERED, first_s=FIRST_PAUSE_S, last_s=LAST_PAUSE_S, failed=failed, pause=pause)
