"""Two processes of one advertised name would fence each other for ever: the one that was fenced looks for the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from loadmanager.cluster.membership import Membership
from statechannel.errors import CoordinationUnavailable, NameTaken
from statechannel.law.record import BrokerId
from statechannel.ports import Coordination

ANSWERS = 5
"""One way back for its number, one there and back for its registration, as much for us to read what the watch told, and
one more, since it asks later than we do."""


async def yield_to_namesake(
    me: BrokerId,
    membership: Membership,
    coordination: Coordination,
    clock_s: Callable[[], float],
    validity_s: float,
    stopping: asyncio.Event,
) -> None:
    """Return once nobody else has shown under the name of `me`, which was fenced. Raises NameTaken.

    A leader that fenced us has registered nobody. A namesake registers right after it took the number, and its way to
    the coordination service may be as long as ours: so we look for V/2, and until that has answered us some times.
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
