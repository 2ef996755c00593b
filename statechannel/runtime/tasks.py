"""Asyncio work: run together, again, in turns, off the loop, and handed back to it.

`retried` repeats a step that a server did not answer, `kept_running` a service; `failure_of` contains one look, so that
its failure does not end what it is a part of. `first_of` and `all_or_first_failure` run awaitables together and end
them together: none outlives its caller. They use no task group: if a child fails while the group's own task is
cancelled, the group loses the cancellation.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from statechannel.errors import Error

T = TypeVar("T")

_log = logging.getLogger(__name__)

BEGIN_AGAIN_S = 1.0


async def retried(
    step: Callable[[], Awaitable[T]],
    errors: tuple[type[Exception], ...],
    *,
    first_s: float,
    last_s: float,
    failed: Callable[[Exception, float], object],
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> T:
    """The result of an idempotent step, which is repeated after one of these errors; pauses double up to `last_s`.

    `failed(error, pause_s)` is called with each error before the pause; it gives up by raising.
    """
    pause_s = first_s
    while True:
        try:
            return await step()
        except errors as error:
            failed(error, pause_s)
        await pause(pause_s)
        pause_s = min(2 * pause_s, last_s)


async def failure_of(what: str, work: Awaitable[object], note: Callable[[str], object]) -> Exception | None:
    """Await the work; its error, noted, or None. An error that is a bug is logged with its traceback as well."""
    try:
        await work
    except (Error, TimeoutError) as error:
        note(f"{what} was cut short: {error}")
        return error
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not end what this work is a part of
        _log.exception("%s failed", what)
        note(f"{what} failed: {error!r}")
        return error
    return None


def is_bug(error: Exception | None) -> bool:
    """Whether it is neither a refusal, nor a server's error, nor a time-out."""
    return error is not None and not isinstance(error, Error | TimeoutError)


async def kept_running(what: str, run: Callable[[], Awaitable[object]], note: Callable[[str], object]) -> None:
    """Run a service, and begin again after each failure, until it returns."""
    while await failure_of(what, run(), note) is not None:
        note(f"{what} begins again")
        await asyncio.sleep(BEGIN_AGAIN_S)


async def first_of(*works: Awaitable[object]) -> None:
    """Wait until one has ended, and cancel the others. Raises what the first one raised."""
    await _until(asyncio.FIRST_COMPLETED, works)


async def all_or_first_failure(works: Iterable[Awaitable[object]]) -> None:
    """Wait for all; when one fails, cancel the others and raise its error."""
    await _until(asyncio.FIRST_EXCEPTION, works)


async def _until(event: str, works: Iterable[Awaitable[object]]) -> None:
    tasks = [asyncio.ensure_future(work) for work in works]
    if not tasks:
        return
    try:
        done, _ = await asyncio.wait(tasks, return_when=event)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


class Turnstile:
    """First come, first served. A task that comes while there is room goes on at once."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._gone_on = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._open_again = False

    @property
    def waiting(self) -> int:
        """How many wait for a later turn."""
        return len(self._waiting)

    async def passed(self) -> None:
        """Return when it is this task's turn to go on."""
        if self._gone_on >= self._at_once or self._waiting:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._count()

    def _count(self) -> None:
        self._gone_on += 1
        if not self._open_again:
            self._open_again = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._gone_on, self._open_again = 0, False
        while self._waiting and self._gone_on < self._at_once:
            turn = self._waiting.popleft()
            if not turn.done():  # else it was cancelled
                turn.set_result(None)
                self._count()


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


Blocking = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs slow work where it does not block the loop."""


async def at_once(work: Callable[[], Any]) -> Any:
    """Run the work in place, for worlds without threads."""
    return work()
