"""Runs work that must not end a leader's term: failures are noted, and the next look continues."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from loadmanager.errors import LoadManagerError
from statechannel.errors import StateChannelError

_log = logging.getLogger(__name__)


async def survives(what: str, work: Awaitable[None], note: Callable[[str], None]) -> bool:
    """Run the work; False after an unexpected error. Refusals, errors of servers and time-outs are expected."""
    try:
        await work
    except (StateChannelError, LoadManagerError, TimeoutError) as error:
        note(f"{what} was cut short: {error}")
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the term
        _log.exception("%s failed", what)
        note(f"{what} failed: {error!r}")
        return False
    return True
