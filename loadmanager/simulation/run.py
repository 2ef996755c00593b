"""One run: a cluster from a seed, a fault phase, calm, and the proof that everything recovered.

`run_seed` is deterministic: the same seed gives the same history, whatever the hash seed and the machine.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from random import Random

import msgspec

from loadmanager.simulation.checks import Checks, Violation
from loadmanager.simulation.cluster import PARTITIONS, Cluster, Life, is_start_failure, met_another_root
from loadmanager.simulation.fault_phase import FaultPhase
from loadmanager.simulation.fault_profile import FaultProfile
from loadmanager.simulation.loop import SimulationError
from loadmanager.simulation.recovery import Recovery
from loadmanager.simulation.workload import Workload
from loadmanager.simulation.world import World

FAULT_PHASE_S = 25.0
REQUESTS_PER_S = 8.0
LEAST_BROKERS, MOST_BROKERS = 2, 5


class Report(msgspec.Struct, frozen=True):
    """The result of a run. `violation` is None if no invariant broke; `history` is filled in if one did."""

    seed: int
    violation: str | None
    digest: str
    steps: int
    virtual_s: float
    accepted: int
    recovery_s: float
    counts: dict[str, int]
    history: tuple[str, ...] = ()

    def line(self) -> str:
        """One line for people."""
        verdict = "ok" if self.violation is None else f"VIOLATION {self.violation}"
        return (
            f"seed {self.seed}: {self.steps} steps, {self.virtual_s:.0f} s, {self.accepted} records, "
            f"recovered in {self.recovery_s:.1f} s: {verdict}"
        )


def run_seed(
    seed: int, *, fault_phase_s: float = FAULT_PHASE_S, fault_profile: Mapping[str, int] | None = None
) -> Report:
    """Run one seed to its end, or to its first violation.

    The fault phase takes `fault_phase_s` of virtual time. `fault_profile` gives weights of faults and requests by name
    (see `fault_phase.py` and `workload.py`); by default each seed draws its own.
    """
    with _quiet(), World(seed) as world:
        run = Run(world, fault_phase_s, fault_profile)
        violation: str | None = None
        try:
            world.run(run.drive())
        except Violation as broken:
            violation = str(broken)
        except SimulationError as error:
            violation = _told(error)
        if violation is not None:
            run.write_last_words()
        return Report(
            seed=seed,
            violation=violation,
            digest=world.trace.digest(),
            steps=world.loop.executed,
            virtual_s=world.now_s,
            accepted=sum(run.checks.auditor.accepted),
            recovery_s=run.recovery.took_s,
            counts=dict(sorted(run.counts().items())),
            history=tuple(world.trace.lines()) if violation is not None else (),
        )


class Run:
    """The parts of one run, and its course."""

    def __init__(
        self, world: World, fault_phase_s: float = FAULT_PHASE_S, given: Mapping[str, int] | None = None
    ) -> None:
        self.world = world
        self.random: Random = world.random
        self.checks = Checks(world)
        self.cluster = Cluster(world, self.random, self.checks.born, self.checks.complain)
        self.checks.cluster = self.cluster
        fault_profile = FaultProfile(self.random, given)
        self.fault_phase = FaultPhase(world, self.cluster, self.random, fault_profile, self.checks.links_changed)
        self.workload = Workload(self.cluster, self.checks, self.random, fault_profile)
        self.recovery = Recovery(self.cluster, self.checks, self.random)
        self._fault_phase_s = fault_phase_s
        unknown = sorted((given or {}).keys() - self.fault_phase.names - self.workload.names)
        if unknown:
            raise ValueError(f"no such fault or request: {', '.join(unknown)}")

    async def drive(self) -> None:
        """From the first start to the proof of recovery. Raises Violation."""
        await self.begin(self.random.randint(LEAST_BROKERS, MOST_BROKERS))
        ends_s = self.world.now_s + self._fault_phase_s
        next_fault_s = self.world.now_s + self.random.expovariate(self.fault_phase.per_s)
        while self.world.now_s < ends_s:
            await asyncio.sleep(self.random.expovariate(REQUESTS_PER_S))
            if self.world.now_s >= next_fault_s:
                self.fault_phase.strike()
                next_fault_s = self.world.now_s + self.random.expovariate(self.fault_phase.per_s)
            self.workload.ask()
            self.look_after_the_dead()
            self.checks.raise_if_broken()
        self.fault_phase.end()
        await self.recovery.prove()
        self.workload.check_late_verdicts()
        self.checks.raise_if_broken()

    async def begin(self, brokers: int) -> None:
        """Start the brokers and create the namespaces."""
        for number in range(brokers):
            self.cluster.start(f"{'abcdefgh'[number]}:1")
        await self.world.until(lambda: bool(self.cluster.ready()), 30, "a broker is ready")
        self.workload.create_namespaces(self.cluster.ready()[0])
        await asyncio.sleep(1.0)

    def look_after_the_dead(self) -> None:
        """Restart processes that ended by themselves, and report those that had no good reason to end."""
        for name, life in self.cluster.current.items():
            if life.process.dead:
                self._judge_death(life)
                self.fault_phase.watch_over(name, life)

    def _judge_death(self, life: Life) -> None:
        failure = life.process.failure
        if self.fault_phase.replacing.root_was_lost and met_another_root(failure):
            return
        if failure is not None and not is_start_failure(failure):
            self.checks.complain(f"{life} ended with {failure!r}: {_told(failure)}")

    def counts(self) -> Counter[str]:
        """Counts of requests and their answers, and of events of the channel's log."""
        audit = self.checks.auditor.snapshots
        return self.workload.counts + Counter(
            {
                "snapshots": audit.written,
                "trims": audit.trims,
                "loads": self.checks.loads,
                "reloads": self.checks.reloads,
                "rounds": self.checks.rounds,
                "roots lost": self.fault_phase.replacing.roots_lost,
                "agreements replaced": self.fault_phase.replacing.replaced,
                **{f"struck: {what}": number for what, number in self.fault_phase.struck.items()},
            }
        )

    def write_last_words(self) -> None:
        """Write into the history who serves what at the end."""
        write = self.world.trace.write
        for life in self.cluster.alive():
            served = ", ".join(f"{c.bundle} under {c.token}" for c in self.checks.served(life)) or "nothing"
            write(str(life), f"serves {served}")
        for partition in range(PARTITIONS):
            write("log", f"ends at {partition}/{self.checks.auditor.table.next_offset(partition)}")


def _told(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_told(each) for each in error.exceptions)
    cause = f", because of {_told(error.__cause__)}" if error.__cause__ is not None else ""
    return f"{type(error).__name__}: {error}{cause}"


@contextmanager
def _quiet() -> Generator[None]:
    """No log lines (the history has them), and no garbage collection in the middle of a run."""
    level = logging.root.manager.disable
    was_enabled = gc.isenabled()
    logging.disable(logging.CRITICAL)
    gc.disable()
    try:
        yield
    finally:
        logging.disable(level)
        if was_enabled:
            gc.enable()
