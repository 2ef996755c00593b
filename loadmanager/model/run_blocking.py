"""How work that takes long is run apart from the control loop: on a thread, or at once where there are none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

Blocking = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs work that takes long where it holds nothing up."""


async def at_once(work: Callable[[], Any]) -> Any:
    """For worlds without threads."""
    return work()
