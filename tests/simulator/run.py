"""One run: a cluster from a seed, a fault phase, calm, and the proof that everything recovered; and many runs.

`run_seed` is deterministic: the same seed gives the same history, whatever the hash seed and the machine. After the
fault phase everything is served again within a bound, all brokers agree, and a graceful stop drains. Many runs are
spread over processes; reports come in the order of the seeds, as soon as they are ready.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from random import Random

import msgspec

from loadmanager.errors import LoadManagerError
from loadmanager.model.load import BUNDLES_TOPIC
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.law.transitions import State
from tests.simulator.checks import Checks, Violation
from tests.simulator.cluster import PARTITIONS, SETTINGS, Cluster, Life, is_start_failure, met_another_root
from tests.simulator.faults import FaultPhase, FaultProfile
from tests.simulator.loop import SimulationError
from tests.simulator.simulated_host import cells_of, topic_in
from tests.simulator.workload import Workload
from tests.simulator.world import World

BOUND_S = 60.0
ASK_EVERY_S = 0.5
STOP_BOUND_S = SETTINGS.drain_timeout_s + 5.0
LOOKUP_TIMEOUT_S = 2.0
AGREE_BOUND_S = 20.0


class Recovery:
    """Proves the recovery of one run. `took_s` is how long it took."""

    def __init__(self, cluster: Cluster, checks: Checks, random: Random) -> None:
        self.took_s = 0.0
        self._cluster = cluster
        self._checks = checks
        self._random = random
        self._world = cluster.world

    async def prove(self) -> None:
        """Raises Violation."""
        began_s = self._world.now_s
        await self._all_served()
        self.took_s = self._world.now_s - began_s
        await self._lookups_agree()
        await self._only_the_leader_reads_bundles()
        await self._one_leaves()
        await self._all_served()
        await self._only_the_leader_reads_bundles()
        await asyncio.sleep(0.5)
        self._checks.check_replicas()
        self._checks.raise_if_broken()

    # --- everything is served

    async def _all_served(self) -> None:
        deadline_s = self._world.now_s + BOUND_S
        while (missing := self._missing()) is not None:
            if self._world.now_s > deadline_s:
                self._checks.complain(f"not within {BOUND_S:g} s after the last fault: {missing}")
            self._checks.raise_if_broken()
            self._ask_for_unassigned()
            await asyncio.sleep(ASK_EVERY_S)

    def _missing(self) -> str | None:
        """What must still come true, and what is instead; None if all is well."""
        for name, life in self._cluster.current.items():
            if life.process.dead:
                self._cluster.start(name)
                return f"{name} runs"
            if not life.ready:
                return f"{life} is ready"
        served = self._served()
        for entry in self._checks.auditor.table:
            if entry.state is not State.ASSIGNED or entry.holder is None:
                return f"{entry.bundle} is assigned; it is {entry.state}({entry.holder}) since {entry.action}"
            if served.get(entry.bundle) != entry.holder:
                return f"{entry.bundle} is served by {entry.holder}; it is by {served.get(entry.bundle)}"
        return None if len(self._checks.auditor.table) else "there is a namespace"

    def _served(self) -> dict[Bundle, BrokerId]:
        return {
            claim.bundle: life.node.current.me
            for life in self._cluster.ready()
            if life.node is not None
            for claim in self._checks.served(life)
        }

    def _ask_for_unassigned(self) -> None:
        """Act as clients and operators do: look up bundles without an owner, and undrain brokers."""
        ready = self._cluster.ready()
        for life in ready:
            if life.node is not None and life.node.registration.draining and not life.leaving:
                life.spawn(life.node.undrain)
        for bundle in self._checks.auditor.table.in_state(State.UNASSIGNED):
            if ready:
                self._look_up(self._random.choice(ready), bundle)

    # --- lookups

    def _look_up(self, life: Life, bundle: Bundle) -> asyncio.Task[BrokerId | None]:
        async def owner() -> BrokerId | None:
            assert life.node is not None
            topic = topic_in(bundle.namespace, cells_of(bundle)[0])
            try:
                return (await life.node.current.lookup.locate(topic, LOOKUP_TIMEOUT_S)).owner
            except LoadManagerError:
                return None

        return life.spawn(owner)

    async def _lookups_agree(self) -> None:
        """Soon every broker names the same owner of each bundle, and that owner serves it."""
        deadline_s = self._world.now_s + AGREE_BOUND_S
        while (wrong := await self._disagreement()) is not None:
            if self._world.now_s > deadline_s:
                self._checks.complain(wrong)
            self._checks.raise_if_broken()
            await asyncio.sleep(ASK_EVERY_S)

    async def _disagreement(self) -> str | None:
        for entry in self._checks.auditor.table:
            bundle = entry.bundle
            asked = {str(life): self._look_up(life, bundle) for life in self._cluster.ready()}
            if not asked:
                return f"no broker is ready to look up {bundle}"
            await asyncio.wait(asked.values())
            serving = self._served().get(bundle)
            wrong = {name: task.result() for name, task in asked.items() if task.result() != serving}
            if wrong or serving is None:
                told = ", ".join(f"{name} says {owner}" for name, owner in wrong.items())
                return f"lookups of {bundle}, which {serving} serves: {told}"
        return None

    # --- load data

    async def _only_the_leader_reads_bundles(self) -> None:
        """Soon the leader has read the hottest bundles, and follows them; no other broker does."""
        deadline_s = self._world.now_s + AGREE_BOUND_S
        while (wrong := self._wrong_readers()) is not None:
            if self._world.now_s > deadline_s:
                self._checks.complain(wrong)
            self._checks.raise_if_broken()
            await asyncio.sleep(ASK_EVERY_S)

    def _wrong_readers(self) -> str | None:
        nodes = [(life, life.node) for life in self._cluster.ready() if life.node is not None]
        leading = {str(life) for life, node in nodes if node.current.leader.leading is not None}
        readers = self._world.log.readers(BUNDLES_TOPIC) & {str(life) for life, _ in nodes}
        shown = {str(life) for life, node in nodes if node.views.bundles.ready}
        if leading and leading == readers == shown:
            return None
        return f"{BUNDLES_TOPIC} is followed by {readers or 'nobody'}, read by {shown}; leading: {leading or 'nobody'}"

    # --- a graceful stop

    def _is_current(self, life: Life) -> bool:
        return life.node is not None and self._world.coordination.is_current(life.node.current.me)

    async def _one_leaves(self) -> None:
        staying = [life for life in self._cluster.ready() if not life.leaving and self._is_current(life)]
        if not staying:  # all were asked to stop, or do not know yet that they are fenced, and will end at once
            return
        life = self._random.choice(staying)
        node = life.node
        assert node is not None
        me = node.current.me
        life.leaving = True
        self._world.trace.write(str(life), "is asked to stop")
        life.process.run(node.stop)
        try:
            await self._world.until(lambda: life.process.dead, STOP_BOUND_S, f"{life} stops")
        except SimulationError as error:
            self._checks.complain(str(error))
        left = self._checks.auditor.table.count_held_by(me)
        if left and self._world.coordination.is_current(me):
            self._checks.complain(f"{life} stopped gracefully and left {left} bundles behind")
        if life.process.failure is not None:
            self._checks.complain(f"{life} was asked to stop and ended with {life.process.failure!r}")
        self._checks.raise_if_broken()


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
                "brokers": len(self.cluster.current),
                "evicted alive": len(self.checks.evicted_alive),
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


SEEDS_A_TASK = 4


def run_seeds(seeds: Iterable[int], *, jobs: int, fault_phase_s: float = FAULT_PHASE_S) -> Iterator[Report]:
    """Run each seed once, `jobs` at a time. Closing the iterator cancels runs that have not begun."""
    run = partial(run_seed, fault_phase_s=fault_phase_s)
    if jobs == 1:
        yield from map(run, seeds)
        return
    context = multiprocessing.get_context("spawn")  # forking a process that may have threads is not safe
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        try:
            yield from pool.map(run, seeds, chunksize=SEEDS_A_TASK)
        finally:
            pool.shutdown(cancel_futures=True)
