"""Everything that a node takes from the world, as one value: what `wiring.py` gives a real process, and the simulator
a simulated one."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from loadmanager.load.service import Readings
from loadmanager.suspicion import Probe
from statechannel.ports import Coordination, Log


class Surroundings(msgspec.Struct, frozen=True):
    """Everything that a node takes from the world: the ports, the clocks, and ways to look around.

    `clock_s` must run on during suspend and is the same clock in which proofs are counted; `nonce` must differ between
    any two processes that ever write to the log.
    """

    log: Log
    coordination: Coordination
    clock_s: Callable[[], float]
    wall_ms: Callable[[], int]
    nonce: str
    probe: Probe
    sensors: Readings
