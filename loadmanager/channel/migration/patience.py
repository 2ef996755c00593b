"""Retries an idempotent step of a move a few times, before the whole command has to be run again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from statechannel.errors import LogUnavailable

ATTEMPTS = 5
PAUSE_S = 0.5

T = TypeVar("T")


async def patiently(step: Callable[[], Awaitable[T]]) -> T:
    """The step's result. Raises LogUnavailable if the log answers none of ATTEMPTS."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await step()
        except LogUnavailable:
            await asyncio.sleep(PAUSE_S)
    return await step()
