"""Threads for the plain functions of a service: any number of which may hang, without holding up the others or the end
of the process. They are daemons, reused when idle; one more is started when a call has waited for all the others.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

AT_ONCE = 16
"""Threads that are started without waiting: a burst of quick calls needs no more."""

LIMIT = 256
WAITING_LIMIT = 10_000
PATIENCE_S = 0.02
"""How long a call waits for the threads there are before it gets one of its own."""


class WorkersExhausted(Exception):
    """All threads are taken by calls that do not return."""


class _Call:
    """One call, and what came of it."""

    def __init__(self, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.work, self.args = work, args
        self.loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self.begun = False
        self.result: Any = None
        self.error: BaseException | None = None


class Workers:
    """Used from one event loop. `close()` ends those that are idle, and the others when they come back."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._waiting: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads = 0
        self._unfinished = 0
        """Calls that no thread has come back from, whether or not anybody still waits for them."""
        self._closed = False

    @property
    def exhausted(self) -> bool:
        """Whether a further call would have to wait for one of those that do not return."""
        return self._threads >= self._limit <= self._unfinished

    async def call(self, work: Callable[..., Any], *args: Any) -> Any:
        """What `work(*args)` returns, on a thread; raises what it raises. One that is given up before it began is not
        run. Raises WorkersExhausted at once if too many wait already, RuntimeError after `close()`."""
        if self._closed:
            raise RuntimeError("the broker has left: it calls nothing more")
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
            del call  # an idle thread keeps no hand-off alive

    def _finished(self, call: _Call) -> None:
        self._unfinished -= 1
        if not call.ended.done():
            call.ended.set_result(None)
