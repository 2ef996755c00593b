"""SIGTERM and SIGINT: the first signal lets a broker leave gracefully, the second one ends the process at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def leaving_on_signal(leave: Callable[[], object], loop: asyncio.AbstractEventLoop | None = None) -> Generator[None]:
    """Call `leave` at the first signal, on the loop if given. For the main thread; restores the handlers at the end."""
    told = False

    def handle(number: int, _frame: object = None) -> None:
        nonlocal told
        if told:
            os._exit(128 + number)
        told = True
        leave()

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        if loop is not None:
            loop.add_signal_handler(number, handle, number)
        else:
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            if loop is not None:
                loop.remove_signal_handler(number)
            signal.signal(number, handler)
