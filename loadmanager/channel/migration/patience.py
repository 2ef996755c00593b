"""Retries an idempotent step of a move a few times, before the whole command has to be run again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from typing import TypeVar

from statechannel.errors import LogUnavailable
from statechannel.runtime.tasks import retried

ATTEMPTS = 5
PAUSE_S = 0.5

T = TypeVar("T")


async def patiently(step: Callable[[], Awaitable[T]]) -> T:
    """The step's result. Raises LogUnavailable if the log answers none of ATTEMPTS."""
    attempts = count(1)

    def failed(error: Exception, _: float) -> None:
        if next(attempts) == ATTEMPTS:
            raise error

    return await retried(step, (LogUnavailable,), first_s=PAUSE_S, last_s=PAUSE_S, failed=failed)
