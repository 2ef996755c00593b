"""Wakes waiters for a bundle, across threads and loops and without polling: `Bell`.

A woken waiter looks again by itself. A waiter first starts to listen, then looks, then waits; so it misses nothing that
happens in between.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from statechannel.law.bundle import Bundle

Wake = Callable[[], None]


class Bell:
    """One thread rings, any thread may wait. Each waiter is woken once and forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Bundle, set[Wake]] = {}

    def ring(self, bundle: Bundle) -> None:
        """Wake all waiters of this bundle."""
        if bundle in self._waiting:
            with self._lock:
                waiting = self._waiting.pop(bundle, ())
            for wake in waiting:
                wake()

    def ring_all(self) -> None:
        """Wake all waiters."""
        for bundle in list(self._waiting):
            self.ring(bundle)

    def future(self, bundle: Bundle) -> asyncio.Future[None]:
        """A future of the running loop, done at the next ring. Cancel it when you need it no more."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed, and nobody waits any more
                loop.call_soon_threadsafe(_finish, future)

        self._hear(bundle, wake)
        future.add_done_callback(lambda _: self._forget(bundle, wake))
        return future

    @contextmanager
    def event(self, bundle: Bundle) -> Generator[threading.Event]:
        """An event for a thread to wait for, set at the next ring."""
        rung = threading.Event()
        self._hear(bundle, rung.set)
        try:
            yield rung
        finally:
            self._forget(bundle, rung.set)

    def _hear(self, bundle: Bundle, wake: Wake) -> None:
        with self._lock:
            self._waiting.setdefault(bundle, set()).add(wake)

    def _forget(self, bundle: Bundle, wake: Wake) -> None:
        with self._lock:
            waiting = self._waiting.get(bundle)
            if waiting is not None:
                waiting.discard(wake)
                if not waiting:
                    del self._waiting[bundle]


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
