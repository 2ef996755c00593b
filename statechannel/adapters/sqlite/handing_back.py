"""How the threads of the SQLite adapters hand back what they found, on the loop of whoever asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


def post(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: Any) -> None:
    """Run a call on the loop, from another thread; nobody waits for it any more once the loop is closed."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise


def settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    """The answer, or the error, unless nobody waits any more."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
