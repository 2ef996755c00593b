"""The life of a `Broker` in a process of its own: start, wait for an order to leave, drain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from loadmanager.embedding.broker import Broker


async def live(broker: Broker, leave: asyncio.Event, ready: Callable[[], object]) -> None:
    """Start the broker, call `ready`, and let it leave in order once `leave` is set. Raises its error if it fails."""
    await _first(broker.start(), leave.wait())
    if not leave.is_set():
        ready()
        await _first(broker.ended(), leave.wait())
    await broker.stop()
    await broker.ended()


async def _first(*works: Awaitable[object]) -> None:
    """Wait until one is done, and cancel the others. Raises the error of the first one."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
