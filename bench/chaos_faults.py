"""Which members fail, when and for how long: drawn from a seed. Pure.

Faults and modes are those of OpenMessaging Chaos.
"""

from __future__ import annotations

import random
from typing import NamedTuple

LOSS, KILL, SUSPEND = "random-loss", "random-kill", "random-suspend"
FAULTS = (LOSS, KILL, SUSPEND)
MODES = ("minor", "major", "fixed")
SHORTEST_LOSS, LONGEST_LOSS = 0.4, 1.8
"""In sessions: some end before the session does, some after."""
SUSPENDED = 1.5
RESTART_S = 0.5
REST = 1.1, 1.4
"""Between the end of a fault and the next one, in sessions: so long that what a dead one had has a reader again."""


class Fault(NamedTuple):
    """Members, by their places, fail together. Times in seconds since the play began."""

    at_s: float
    victims: tuple[int, ...]
    for_s: float
    """How long they are cut off or suspended, or until new processes are started."""


def plan(fault: str, mode: str, members: int, session_s: float, length_s: float, rng: random.Random) -> list[Fault]:
    """The faults of one play, none of which begins after `length_s`.

    minor: one member at a time, any; major: the smallest majority at once, any; fixed: always the same one.
    """
    found: list[Fault] = []
    always = rng.randrange(members)
    at_s = rng.uniform(0.0, 1.0)
    while at_s < length_s:
        how_many = members // 2 + 1 if mode == "major" else 1
        victims = (always,) if mode == "fixed" else tuple(sorted(rng.sample(range(members), how_many)))
        for_s = {
            LOSS: session_s * rng.uniform(SHORTEST_LOSS, LONGEST_LOSS),
            KILL: RESTART_S,
            SUSPEND: session_s * SUSPENDED,
        }[fault]
        found.append(Fault(at_s, victims, for_s))
        at_s += for_s + session_s * rng.uniform(*REST)
    return found
