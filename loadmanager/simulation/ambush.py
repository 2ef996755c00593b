"""Faults that wait until a broker reaches a step of the work on snapshots, and strike in the middle of it.

The steps are requests to the log server; a fault strikes as the request arrives, or in the few milliseconds after.
`fault_phase.py` chooses the fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from loadmanager.simulation.cluster import Cluster, Life
from loadmanager.simulation.log_server import Step
from loadmanager.simulation.world import World

MIDDLE_S = 0.006
"""About as long as two or three requests: a fault within it may hit any step of the work after this one."""


class Trap(msgspec.Struct, frozen=True):
    """Calls `strike` with the life that reaches `step` next."""

    step: Step
    strike: Callable[[Life], None]


class Ambush:
    """Set traps. `schedule(delay_s, do, life)` calls `do(life)` unless the fault phase or the life is over."""

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        random: Random,
        schedule: Callable[[float, Callable[..., object], Any], None],
    ) -> None:
        self.struck: Counter[str] = Counter()
        """How often a fault struck, by step."""
        self._world = world
        self._cluster = cluster
        self._random = random
        self._schedule = schedule
        self.traps: list[Trap] = []
        world.log.on_step = self._reached

    def lay(self, strike: Callable[[Life], None]) -> None:
        """Set a trap at a step that is drawn now."""
        self.traps.append(Trap(self._random.choice(list(Step)), strike))

    def lift(self) -> None:
        """No traps from now on."""
        self.traps.clear()

    def _reached(self, step: Step, process: str) -> None:
        trap = next((trap for trap in self.traps if trap.step is step), None)
        life = next((life for life in self._cluster.alive() if life.process.name == process), None)
        if trap is None or life is None:
            return
        self.traps.remove(trap)
        self.struck[step] += 1
        self._world.trace.write(process, f"is met at: {step}")
        delay_s = self._random.choice((0.0, self._random.uniform(0, MIDDLE_S)))
        self._schedule(delay_s, trap.strike, life)
