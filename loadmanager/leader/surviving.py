"""Work beside a leader's term that must not end it: what goes wrong is noted, and the next look goes on."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from loadmanager.errors import LoadManagerError
from statechannel.errors import StateChannelError

_log = logging.getLogger(__name__)


async def survives(what: str, work: Awaitable[None], note: Callable[[str], None]) -> bool:
    """Do it; whether nothing happened that nobody expects. What a server did not answer, or the law refused, is."""
    try:
        await work
    except (StateChannelError, LoadManagerError, TimeoutError) as error:
        note(f"{what} was cut short: {error}")
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the term
        _log.exception("%s failed", what)
        note(f"{what} failed: {error!r}")
        return False
    return True
