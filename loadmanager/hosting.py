"""Calls a service's hooks so that none of them can hold up the control loop: coroutines run on the service's own loop,
plain functions on worker threads, each within a time-out.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

WORKER_THREADS = 16


class HookFailed(Exception):
    """A hook raised, or did not return in time; the message says which, and what it raised."""


class HostRunner:
    """`loop` is the service's event loop; None means that it is the loop that calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._workers: ThreadPoolExecutor | None = None

    async def call(self, hook: Callable[..., Any], *args: Any, timeout_s: float) -> Any:
        """What the hook returns. Raises HookFailed."""
        budget = asyncio.timeout(timeout_s)
        try:
            async with budget:
                if inspect.iscoroutinefunction(hook):
                    return await self._call_async(hook(*args))
                return await self._call_sync(hook, args)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise HookFailed(f"{_name(hook)} was cancelled by the service") from None
        except HookFailed:
            raise
        except Exception as error:
            if budget.expired() and isinstance(error, TimeoutError):
                raise HookFailed(f"{_name(hook)} did not return within {timeout_s:g} s") from None
            raise HookFailed(f"{_name(hook)} raised {type(error).__name__}: {error}") from error

    async def _call_async(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None or self._loop is asyncio.get_running_loop():
            return await work
        if self._loop.is_closed():
            work.close()
            raise HookFailed("the service's event loop is closed")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _call_sync(self, hook: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if self._workers is None:
            self._workers = ThreadPoolExecutor(WORKER_THREADS, thread_name_prefix="bundle-host")
        result = await asyncio.get_running_loop().run_in_executor(self._workers, hook, *args)
        if inspect.iscoroutine(result):  # a plain function around a coroutine: its loop is the service's all the same
            return await self._call_async(result)
        return await cast("Any", result) if inspect.isawaitable(result) else result

    def close(self) -> None:
        """Let go of the worker threads; a hook that hangs keeps its thread until the process ends."""
        if self._workers is not None:
            self._workers.shutdown(wait=False, cancel_futures=True)


def _name(hook: Callable[..., Any]) -> str:
    return getattr(hook, "__qualname__", repr(hook))
