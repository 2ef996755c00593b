"""Work that must not end what it is a part of: its failures are noted, and it is repeated.

`retried` repeats a step that a server did not answer, `kept_running` a service; `failure_of` contains one look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

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

    `failed(error, pause_s)` hears of each error before the pause; it gives up by raising.
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
