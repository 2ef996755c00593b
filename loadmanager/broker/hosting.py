"""Calls a service's hooks without blocking the control loop.

Coroutines run on the service's own loop, plain functions on worker threads, each within a time-out. Functions marked
`at_once` run on the control loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from loadmanager.broker.workers import Workers

Hook = TypeVar("Hook", bound=Callable[..., Any])

_AT_ONCE = "_loadmanager_at_once"


class HookFailed(Exception):
    """A hook raised, or did not return in time; the message names the hook and the error."""


def at_once(hook: Hook) -> Hook:
    """Mark a plain function that takes microseconds and never waits, not even for a lock.

    It is called on the control loop itself, without a time-out. Raises TypeError for a coroutine function.
    """
    if inspect.iscoroutinefunction(hook):
        raise TypeError(f"{_name(hook)} is a coroutine function; only a plain one can be called at once")
    setattr(hook, _AT_ONCE, True)
    return hook


class HostRunner:
    """Calls hooks. `loop` is the service's event loop, None for the calling loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None, workers: Workers | None = None) -> None:
        self._loop = loop
        self._workers = workers or Workers()

    async def call(self, hook: Callable[..., Any], *args: Any, timeout_s: float) -> Any:
        """Call a hook; returns its result. Raises HookFailed."""
        if getattr(hook, _AT_ONCE, False) is True:
            return _called(hook, args)
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
                full = "; all worker threads are taken by hooks that hang" if self._workers.exhausted else ""
                raise HookFailed(f"{_name(hook)} did not return within {timeout_s:g} s{full}") from None
            raise _raised(hook, error) from error

    async def _call_async(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None or self._loop is asyncio.get_running_loop():
            return await work
        if self._loop.is_closed():
            work.close()
            raise HookFailed("the service's event loop is closed")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _call_sync(self, hook: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        try:
            result = await self._workers.call(hook, *args)
        except (SystemExit, KeyboardInterrupt) as error:  # raised by the service: must not end the control plane
            raise _raised(hook, error) from error
        if inspect.iscoroutine(result):  # a plain function that returns a coroutine: run it on the service's loop
            return await self._call_async(result)
        return await cast("Any", result) if inspect.isawaitable(result) else result

    def close(self) -> None:
        """End the worker threads; a hook that hangs keeps its thread until the process ends."""
        self._workers.close()


def _called(hook: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return hook(*args)
    except Exception as error:
        raise _raised(hook, error) from error


def _raised(hook: Callable[..., Any], error: BaseException) -> HookFailed:
    return HookFailed(f"{_name(hook)} raised {type(error).__name__}: {error}")


def _name(hook: Callable[..., Any]) -> str:
    return getattr(hook, "__qualname__", repr(hook))
