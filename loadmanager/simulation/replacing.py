"""A simulated operator who replaces the agreement as `loadmanager channel agree` does, again until it succeeds.

Each try is a process with its own clock; it may die anywhere, and the next try goes on. Only one runs at a time: two
would refuse each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import msgspec

from loadmanager.channel.migration.agreement import replace_agreement
from loadmanager.channel.migration.move import Place
from loadmanager.errors import Conflict
from loadmanager.simulation.cluster import REQUEST_TIMEOUT_S, SETTINGS, Cluster
from loadmanager.simulation.coordination_server import COORDINATION_SERVER
from loadmanager.simulation.log_server import LOG_SERVER
from loadmanager.simulation.process import Process
from loadmanager.simulation.world import World
from statechannel.errors import CoordinationUnavailable, ForeignCluster, ForeignRoot, LogUnavailable
from statechannel.law.agreement import Agreement

START_TIMEOUT_S = 5.0
AGAIN_S = 1.0
DEATH_CHANCE, LIVES_S = 0.3, (0.0, 6.0)
VALIDITIES_S = (1.0, 1.5, 2.0, 2.5, 3.0)
"""Proof times to choose from; a session must last at least as long."""

Later = Callable[[float, Callable[..., object]], None]


class Replacing:
    """Starts replacements with `amend` and `lose_root`; `go_on` completes them. `later` is the fault phase's."""

    def __init__(self, world: World, cluster: Cluster, random: Random, later: Later) -> None:
        self.root_was_lost = False
        """From then on a broker may find a root that is not the log's, and end."""
        self.roots_lost = 0
        self.replaced = 0
        self._world = world
        self._cluster = cluster
        self._random = random
        self._later = later
        self._wanted_s: float | None = None
        """The wanted proof time; None: there is nothing to do."""
        self._tries = 0
        self._at_work: Process | None = None

    def amend(self) -> None:
        """Begin to replace the proof time."""
        self._wanted_s = self._random.choice(VALIDITIES_S)
        self._begin()

    def lose_root(self) -> None:
        """Delete all data of the coordination service, as an operator might; `replace_root` repairs that."""
        self.root_was_lost = True
        self.roots_lost += 1
        self._world.coordination.lose_everything()

    def replace_root(self) -> None:
        """Make an empty root the log's, with the same proof time or another one."""
        self._wanted_s = self._wanted_s or self._random.choice(VALIDITIES_S)
        self._begin()

    def go_on(self) -> None:
        """Begin again if the last try died in the middle, or if the lost root was not replaced."""
        if self.root_was_lost and self._world.coordination.identity() is None:
            self.replace_root()
        elif self._wanted_s is not None:
            self._begin()

    def _begin(self) -> None:
        if self._at_work is not None and not self._at_work.dead:
            return
        self._tries += 1
        name = f"operator~{self._tries}"
        process = self._at_work = self._world.process(name, drift=self._cluster.draw_drift())
        self._world.trace.write(name, f"replaces what is agreed on, V = {self._wanted_s} s")
        process.start(lambda: self._until_done(process))
        if self._random.random() < DEATH_CHANCE:
            self._later(self._random.uniform(*LIVES_S), lambda: self._die(process))

    def _die(self, process: Process) -> None:
        if not process.dead:
            self._world.trace.write(process.name, "crashes")
            process.crash()
            self._later(self._random.uniform(*LIVES_S), self.go_on)

    async def _until_done(self, process: Process) -> None:
        log = self._world.log_client(process, request_timeout_s=REQUEST_TIMEOUT_S)
        coordination = self._world.coordination_client(
            process, session_timeout_s=SETTINGS.session_timeout_s, request_timeout_s=REQUEST_TIMEOUT_S
        )
        place = Place(log, coordination, LOG_SERVER, COORDINATION_SERVER)
        started = False
        while (wanted_s := self._wanted_s) is not None:
            lost = self.roots_lost
            try:
                if not started:
                    await log.start(START_TIMEOUT_S)
                    await coordination.start(START_TIMEOUT_S)
                    started = True
                await self._replace(place, wanted_s, process)
            except (Conflict, LogUnavailable, CoordinationUnavailable, ForeignRoot, ForeignCluster) as error:
                self._world.trace.write(process.name, f"runs it again: {error}")
                await asyncio.sleep(AGAIN_S)
            else:
                if (self._wanted_s, self.roots_lost) == (wanted_s, lost):  # else another root or V is wanted by now
                    self._wanted_s = None

    async def _replace(self, place: Place, wanted_s: float, process: Process) -> None:
        def wanted(before: Agreement, root: str) -> Agreement:
            chosen = SETTINGS.model_copy(update={"proof_validity_s": wanted_s})
            return msgspec.structs.replace(before, root=root, proof_validity_s=wanted_s, margin_s=chosen.margin_s)

        def say(text: str) -> None:
            self._world.trace.write(process.name, text)

        replaced = await replace_agreement(
            place, SETTINGS.cluster, wanted, old=None, lost=self.root_was_lost, say=say, draw_id=self._draw_id
        )
        self.replaced += not replaced.was_done

    def _draw_id(self) -> str:
        return f"{self._random.getrandbits(64):016x}"
