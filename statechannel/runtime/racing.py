"""Works that run together and end together: nothing goes on behind whoever waits for them.

Not a task group: where its task is cancelled while one of it fails, a group forgets that it was cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable


async def first_of(*works: Awaitable[object]) -> None:
    """Wait until the first one has ended, and cancel the others. Raises what the first one raised."""
    await _until(asyncio.FIRST_COMPLETED, works)


async def all_or_first_failure(works: Iterable[Awaitable[object]]) -> None:
    """Wait for all; when one fails, cancel the others and raise that."""
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
