"""Hands results from the threads of the SQLite adapters back to the caller's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


def post(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
    """Run a call on the loop, from another thread; does nothing once the loop is closed."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise


def settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    """Set the result, or the error, unless the future is done already."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
