"""Runs slow work off the control loop: on a thread, or at once in worlds without threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

Blocking = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs slow work where it does not block the loop."""


async def at_once(work: Callable[[], Any]) -> Any:
    """Run the work in place, for worlds without threads."""
    return work()
