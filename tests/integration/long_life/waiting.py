"""Waiting for a condition of the world, never for a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

LOOK_S = 0.05


async def until(holds: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
    """Return as soon as it holds. Raises AssertionError, saying what was missing."""

    async def ask() -> bool:
        return holds()

    await until_told(ask, what, within_s)


async def until_told(ask: Callable[[], Awaitable[bool]], what: str, within_s: float = 60.0) -> None:
    """As `until`, where somebody has to be asked."""
    try:
        async with asyncio.timeout(within_s):
            while not await ask():
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:g} s: {what}") from None
