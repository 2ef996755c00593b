"""Waiting on the world: repeats what a server did not answer.

The steps of a start are repeated until its time is up, those of a life until told to stop. Each may be done twice.
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
"""What a step of the start gets at least, so that it can find out what it waits for."""


class StartRetries:
    """One deadline for all steps of a start. Make it when the start begins, on the loop."""

    def __init__(self, start_timeout_s: float, note: Callable[[str], None]) -> None:
        self._limit_s = start_timeout_s
        self._until_s = asyncio.get_running_loop().time() + start_timeout_s
        self._note = note

    @property
    def left_s(self) -> float:
        """What a step may take."""
        return max(LAST_STEP_S, self._until_s - asyncio.get_running_loop().time())

    async def of(self, step: Step[T]) -> T:
        """What the step returns. Raises LogUnavailable or CoordinationUnavailable when the time is up."""
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
    """What the step returns. Raises what kept it from that only if we are told to stop meanwhile."""
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
