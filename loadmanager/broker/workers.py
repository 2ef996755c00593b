"""Threads for the plain functions of a service; any of them may hang without delaying others or the process's end.

They are daemons, and reused when idle; a new one starts when a call has waited for all the others.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

AT_ONCE = 16
"""Threads that start without waiting: a burst of quick calls needs no more."""

LIMIT = 256
WAITING_LIMIT = 10_000
PATIENCE_S = 0.02
"""How long a call waits for the present threads before it gets a new one."""


class WorkersExhausted(Exception):
    """Calls that do not return have taken all threads."""


class _Call:
    """One call and its outcome."""

    def __init__(self, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.work, self.args = work, args
        self.loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self.begun = False
        self.result: Any = None
        self.error: BaseException | None = None


class Workers:
    """Used from one event loop. `close()` ends idle threads at once, and the others when they return."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._waiting: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads = 0
        self._unfinished = 0
        """Calls that have not returned, whether or not anybody still waits for them."""
        self._closed = False

    @property
    def exhausted(self) -> bool:
        """Whether a further call would have to wait for a call that does not return."""
        return self._threads >= self._limit <= self._unfinished

    async def call(self, work: Callable[..., Any], *args: Any) -> Any:
        """Run `work(*args)` on a thread; returns or raises as it does. A call cancelled before it began is not run.

        Raises WorkersExhausted at once if too many calls wait, RuntimeError after `close()`.
        """
        if self._closed:
            raise RuntimeError("the broker has left, and calls no hook any more")
        if self._unfinished >= self._limit + WAITING_LIMIT:
            raise WorkersExhausted(f"{self._limit} worker threads hang, and {WAITING_LIMIT} calls wait for one")
        call = _Call(work, args)
        self._unfinished += 1
        self._waiting.put(call)
        if self._threads < self._unfinished:
            if self._threads < AT_ONCE:
                self._grow(call)
            else:
                call.loop.call_later(PATIENCE_S, self._grow, call)
        await call.ended
        if call.error is not None:
            raise call.error
        return call.result

    def close(self) -> None:
        """Take no more calls."""
        self._closed = True
        for _ in range(self._threads):
            self._waiting.put(None)

    def _grow(self, call: _Call) -> None:
        if not call.begun and self._threads < self._limit:
            self._threads += 1
            threading.Thread(target=self._work, name=f"bundle-host-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        while (call := self._waiting.get()) is not None:
            call.begun = True
            if not call.ended.cancelled():
                try:
                    call.result = call.work(*call.args)
                except BaseException as error:  # noqa: BLE001 - the caller gets it; the thread lives on
                    call.error = error
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                call.loop.call_soon_threadsafe(self._finished, call)
            del call  # else an idle thread would keep its arguments alive

    def _finished(self, call: _Call) -> None:
        self._unfinished -= 1
        if not call.ended.done():
            call.ended.set_result(None)
