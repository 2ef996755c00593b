"""Ends one of two processes with the same advertised name, which would else fence each other for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from loadmanager.cluster.membership import Membership
from statechannel.errors import CoordinationUnavailable, NameTaken
from statechannel.law.record import BrokerId
from statechannel.ports import Coordination

ANSWERS = 5
"""Enough for the answer with the namesake's number, the round trip of its registration, as much for our watch, and one
more, since it asks later than we do."""


async def yield_to_namesake(
    me: BrokerId,
    membership: Membership,
    coordination: Coordination,
    clock_s: Callable[[], float],
    validity_s: float,
    stopping: asyncio.Event,
) -> None:
    """Return once no other process has registered under the name of `me`, which was fenced. Raises NameTaken.

    A leader that fenced us registers nobody. A namesake registers right after it took the number, and its round trip to
    the coordination service may be as long as ours: so we look for `validity_s / 2`, and until the service has answered
    us ANSWERS times.
    """
    answers, until_s = 0, clock_s() + validity_s / 2
    while not stopping.is_set():
        peer = membership.peers.get(me.name)
        if peer is not None and peer.broker.incarnation > me.incarnation:
            raise NameTaken(f"another process runs as {peer.broker}; give each its own --advertised address")
        if answers >= ANSWERS and clock_s() >= until_s:
            return
        if answers < ANSWERS:
            with suppress(CoordinationUnavailable):
                await coordination.identity()  # changes nothing
                answers += 1
        await asyncio.sleep(validity_s / 40)
