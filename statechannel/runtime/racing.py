"""Runs awaitables together and ends them together: none outlives its caller.

Not a task group: if a child fails while the group's own task is cancelled, the group loses the cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable


async def first_of(*works: Awaitable[object]) -> None:
    """Wait until one has ended, and cancel the others. Raises what the first one raised."""
    await _until(asyncio.FIRST_COMPLETED, works)


async def all_or_first_failure(works: Iterable[Awaitable[object]]) -> None:
    """Wait for all; when one fails, cancel the others and raise its error."""
    await _until(asyncio.FIRST_EXCEPTION, works)


async def _until(event: str, works: Iterable[Awaitable[object]]) -> None:
    tasks = [asyncio.ensure_future(work) for work in works]
    if not tasks:
        return
    try:
        done, _ = await asyncio.wait(tasks, return_when=event)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
