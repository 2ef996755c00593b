"""Runs the real `Node` in each simulated process, over simulated ports.

A broker's name has one *life* after another, each a process of its own. Two lives of one name may overlap, as when an
operator starts a second process by mistake. `fault_phase.py` and `workload.py` decide what happens to them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

import msgspec

from loadmanager.broker.hooks import HostRunner
from loadmanager.broker.node import Node
from loadmanager.cluster.dependencies import Dependencies
from loadmanager.cluster.suspicion import Answer
from loadmanager.model.load import Figures
from loadmanager.model.registration import Peer
from loadmanager.settings import Settings
from statechannel.errors import CoordinationUnavailable, ForeignCluster, ForeignRoot, LogUnavailable, NameTaken
from tests.simulator.loop import Process
from tests.simulator.simulated_coordination import COORDINATION_SERVER
from tests.simulator.simulated_host import SimulatedHost, Storage
from tests.simulator.simulated_log import LOG_SERVER
from tests.simulator.world import World

T = TypeVar("T")

PARTITIONS = 2
REQUEST_TIMEOUT_S = 1.0
CHUNK_BUNDLES = 3
"""Few, so that snapshots of a few bundles still have several chunks."""

SETTINGS = Settings.model_construct(
    cluster="sim",
    partitions=PARTITIONS,
    start_timeout_s=20.0,
    session_timeout_s=3.0,
    recovery_grace_s=8.0,
    monitor_interval_s=5.0,
    in_flight_timeout_s=8.0,
    publish_timeout_s=2.0,
    lead_timeout_s=5.0,
    host_acquire_timeout_s=3.0,
    drain_timeout_s=15.0,
    load_window_s=60.0,
    balancing_interval_s=5.0,
    bundle_rest_s=12.0,
    quarantine_deaths=0,  # brokers die here all the time, and of no bundle
    snapshot_records=60,
    snapshot_interval_s=3.0,
    snapshot_timeout_s=3.0,
    log_retention_s=4.0,
)
"""Production settings, with long waits cut short so that a run sees many of them. V and the drift are the defaults."""


_A_DEFECT = re.compile(
    r"begins again|channel partition \d+: \w+\(|differs from what was written|than was written|lacks what"
)
"""Notes that show a defect: a part of a node raised something that only its supervisor caught."""


class WatchedNode(Node):
    """A node whose notes go into the run's history."""

    def __init__(
        self,
        settings: Settings,
        host: SimulatedHost,
        world: Dependencies,
        write: Callable[[str], None],
        complain: Callable[[str], None],
    ) -> None:
        self._write = write
        self._complain = complain
        super().__init__(settings, host, HostRunner(), world)

    def note(self, text: str) -> None:
        self._write(f"notes: {text}")
        if _A_DEFECT.search(text):
            self._complain(text)
        super().note(text)


class Life:
    """One start of a broker: its process, its service, and its node once the process runs."""

    def __init__(self, name: str, process: Process, host: SimulatedHost) -> None:
        self.name = name
        self.process = process
        self.host = host
        self.node: Node | None = None
        self.leaving = False
        self.lied_about = False
        """Whether its port refuses connections although it is well."""

    def __str__(self) -> str:
        return self.process.name

    @property
    def ready(self) -> bool:
        return not self.process.dead and self.node is not None and self.node.ready.is_set()

    def spawn(self, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """Begin something in this process; it may never end."""
        loop = self.process.loop
        return self.process.run(lambda: loop.create_task(work()))


class Cluster:
    """All lives. `born` is called with each, as soon as its node exists and before it runs."""

    def __init__(self, world: World, random: Random, born: Callable[[Life], None], complain: Callable[[str], None]):
        self.world = world
        self.storage = Storage()
        self.lives: list[Life] = []
        self.current: dict[str, Life] = {}
        self.rejected: frozenset[tuple[str, str]] = frozenset()
        """(From, to): names of brokers between which a firewall rejects connections."""
        self._started: dict[str, int] = {}
        self._random = random
        self._born = born
        self._complain = complain

    def start(self, name: str) -> Life:
        """Start a broker of this name, whether or not another life of it still runs."""
        number = self._started[name] = self._started.get(name, 0) + 1
        drift = self.draw_drift()
        process = self.world.process(name if number == 1 else f"{name}~{number}", drift=drift)
        host = SimulatedHost(self.storage, self._random, lambda what: self._complain(f"{process.name}: {what}"))
        life = Life(name, process, host)
        self.lives = [known for known in self.lives if not known.process.dead]
        self.lives.append(life)
        self.current[name] = life
        self.world.trace.write(process.name, f"starts, its clock {drift:+.2%}")
        process.start(lambda: self._live(life))
        return life

    def alive(self) -> list[Life]:
        """Lives whose process has not ended; paused ones are alive."""
        return [life for life in self.lives if not life.process.dead]

    def ready(self) -> list[Life]:
        """Lives that answer requests."""
        return [life for life in self.lives if life.ready and life.process.running]

    def change_drift(self, life: Life) -> None:
        """Change the rate of its clock from now on."""
        drift = self.draw_drift()
        self.world.trace.write(str(life), f"its clock now {drift:+.2%}")
        life.process.set_drift(drift)

    def draw_drift(self) -> float:
        """A drift such that any two clocks' rates are within a factor of 1 + clock_drift, often at the limit."""
        most = (1 + SETTINGS.clock_drift) ** 0.5
        rate = self._random.choice((1 / most, most, self._random.uniform(1 / most, most)))
        return rate - 1

    async def _live(self, life: Life) -> None:
        process, world = life.process, self.world
        loop = world.loop
        dependencies = Dependencies(
            log=world.log_client(process, request_timeout_s=REQUEST_TIMEOUT_S),
            coordination=world.coordination_client(
                process, session_timeout_s=SETTINGS.session_timeout_s, request_timeout_s=REQUEST_TIMEOUT_S
            ),
            clock_s=lambda: process.local_s(loop.now_ns),
            wall_ms=world.wall_ms,
            nonce=f"{self._random.getrandbits(48):012x}",
            probe=self._probe_from(life),
            sensors=SimulatedSensors(self._random),
            chunk_bundles=CHUNK_BUNDLES,
        )
        settings = SETTINGS.model_copy(update={"advertised": life.name})
        life.node = WatchedNode(
            settings,
            life.host,
            dependencies,
            lambda what: world.trace.write(process.name, what),
            lambda what: self._complain(f"{process.name}: {what}"),
        )
        self._born(life)
        await life.node.run()

    def _probe_from(self, observer: Life) -> Callable[[Peer, float], Coroutine[Any, Any, Answer]]:
        async def probe(peer: Peer, keep_s: float) -> Answer:
            observed = self.current[peer.broker.name]
            rejects = (observer.name, observed.name) in self.rejected
            if observed.process.dead or observed.lied_about or rejects:
                return Answer.REFUSED
            if self.is_isolated(observed.process) or self.is_isolated(observer.process):
                return Answer.SILENT
            await asyncio.sleep(keep_s)
            return Answer.ENDED if observed.process.dead else Answer.OPEN

        return probe

    def is_isolated(self, process: Process) -> bool:
        """Whether a process can exchange nothing with either server."""
        is_cut = self.world.network.is_cut
        return is_cut(process.name, LOG_SERVER) and is_cut(process.name, COORDINATION_SERVER)


class SimulatedSensors:
    """Sensors with random CPU figures."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def read(self) -> Figures:
        return msgspec.structs.replace(_FIGURES, cpu_percent=self._random.uniform(0, 100))


_FIGURES = Figures(
    cpu_percent=0.0,
    memory_percent=20.0,
    cores=2.0,
    memory_bytes=1 << 32,
    host_cpu_percent=50.0,
    host_memory_percent=50.0,
)


def met_another_root(failure: BaseException | None) -> bool:
    """Whether a process ended because the coordination root is not the log's, as it must where that root was lost."""
    if isinstance(failure, BaseExceptionGroup):
        return all(met_another_root(each) for each in failure.exceptions)
    return isinstance(failure, (ForeignCluster, ForeignRoot))


def is_start_failure(failure: BaseException | None) -> bool:
    """Whether a process ended because a server did not answer, or its name was taken: a supervisor starts it again."""
    if isinstance(failure, BaseExceptionGroup):
        return all(is_start_failure(each) for each in failure.exceptions)
    return failure is None or isinstance(failure, (LogUnavailable, CoordinationUnavailable, NameTaken))
