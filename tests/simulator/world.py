"""The world of one simulated run: the loop, the servers, the network, random numbers and the history, from one seed.

A driver makes processes, gives each its log and coordination clients, starts its main task, and injects faults. The
driver checks the outcome. The history has the last lines for people, and a digest of all of them for comparing runs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from hashlib import blake2b
from random import Random
from types import TracebackType
from typing import Any, TypeVar

from tests.simulator.loop import NS, Process, SimulationError, VirtualLoop
from tests.simulator.network import NO_FAULTS, Faults, Latency, Network
from tests.simulator.simulated_coordination import (
    COORDINATION_SERVER,
    SimulatedCoordination,
    SimulatedCoordinationServer,
)
from tests.simulator.simulated_log import LOG_SERVER, SimulatedLog, SimulatedLogServer

DEFAULT_LINES = 2_000


class Trace:
    """Readable lines `time process what`. Only the last `limit` are kept; the digest covers all.

    `now_s` gives true time. `executed` gives the number of callbacks so far, which is part of the digest: two runs with
    one digest took the same steps between any two lines.
    """

    def __init__(self, now_s: Callable[[], float], executed: Callable[[], int], limit: int = DEFAULT_LINES) -> None:
        self._now_s = now_s
        self._executed = executed
        self._lines: deque[str] = deque(maxlen=limit)
        self._hash = blake2b(digest_size=16)
        self.written = 0

    def write(self, who: str, what: str) -> None:
        """Add a line. `what` must not name memory addresses, and sets only sorted, or digests will differ."""
        line = f"{self._now_s():12.6f} {who:<20} {what}"
        self._lines.append(line)
        self.written += 1
        self._hash.update(f"{self._executed()} {line}\n".encode())

    def lines(self) -> list[str]:
        """The kept lines, oldest first; if earlier ones were dropped, the first line says how many."""
        dropped = self.written - len(self._lines)
        return [f"… {dropped} earlier lines dropped", *self._lines] if dropped else list(self._lines)

    def digest(self) -> str:
        """Equal for two runs if, and only if, they wrote the same lines after the same steps."""
        return self._hash.hexdigest()


T = TypeVar("T")

EPOCH_MS = 1_700_000_000_000
"""The wall clock at the start of every run."""


class World:
    """Everything that is simulated. Use it as a context manager; leaving it ends every process silently."""

    def __init__(self, seed: int, *, latency: Latency | None = None, faults: Faults = NO_FAULTS) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.loop = VirtualLoop()
        self.trace = Trace(lambda: self.now_s, lambda: self.loop.executed)
        self.network = Network(self.random, latency, faults)
        self.log = SimulatedLogServer(self.random, self.wall_ms)
        self.coordination = SimulatedCoordinationServer(trace=lambda what: self.trace.write(COORDINATION_SERVER, what))
        self.processes: dict[str, Process] = {}

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.loop.close()

    # --- time
    @property
    def now_s(self) -> float:
        """True time since the start of the run."""
        return self.loop.now_ns / NS

    def wall_ms(self) -> int:
        """True wall time."""
        return EPOCH_MS + self.loop.now_ns // 1_000_000

    def run(self, drive: Coroutine[Any, Any, T]) -> T:
        """Run the driver, outside of every process, to its end; then raise what tasks raised unseen."""
        result = self.loop.run_until_complete(drive)
        for process in (self.loop.outside, *self.processes.values()):
            for failure in () if process.dead else process.unseen_failures():
                raise SimulationError(f"a task of {process.name} failed and nobody looked") from failure
        return result

    async def until(self, holds: Callable[[], bool], within_s: float, what: str, *, poll_s: float = 0.01) -> None:
        """Wait until a condition holds. Raises SimulationError, which says `what` did not come about."""
        deadline_s = self.now_s + within_s
        while not holds():
            if self.now_s >= deadline_s:
                raise SimulationError(f"not within {within_s} s: {what}")
            await asyncio.sleep(poll_s)

    # --- processes and their clients
    def process(self, name: str, *, drift: float | None = None, offset_s: float | None = None) -> Process:
        """A new process in place of any earlier one of that name, which must be dead.

        By default its clock drifts by up to 2 % either way and starts at up to 1,000 s.
        """
        earlier = self.processes.get(name)
        if earlier is not None and not earlier.dead:
            raise SimulationError(f"{name} is still running: crash it before starting it again")
        drift = self.random.uniform(-0.02, 0.02) if drift is None else drift
        offset_s = self.random.uniform(0, 1_000) if offset_s is None else offset_s
        process = self.processes[name] = self.loop.process(name, drift=drift, offset_s=offset_s)
        process.on_death(lambda: self.trace.write(name, f"ends{_because(process.failure)}"))
        return process

    def log_client(self, process: Process, *, request_timeout_s: float = 5.0) -> SimulatedLog:
        client = SimulatedLog(self.log, self.network, process.name, request_timeout_s=request_timeout_s)
        process.on_death(client.link.close)
        return client

    def coordination_client(
        self, process: Process, *, session_timeout_s: float = 6.0, request_timeout_s: float = 2.0
    ) -> SimulatedCoordination:
        client = SimulatedCoordination(
            self.coordination,
            self.network,
            process.name,
            session_timeout_s=session_timeout_s,
            request_timeout_s=request_timeout_s,
        )
        process.on_death(client.link.close)
        return client

    # --- faults, each in the history
    def crash(self, name: str) -> None:
        self.trace.write(name, "crashes")
        self.processes[name].crash()

    def pause(self, name: str) -> None:
        self.trace.write(name, "is paused")
        self.processes[name].pause()

    def resume(self, name: str) -> None:
        self.trace.write(name, "resumes")
        self.processes[name].resume()

    def cut(self, name: str, server: str, *, requests: bool = True, answers: bool = True) -> None:
        """Cut a process off from a server ("log" or "coordination"), one way or both."""
        way = "" if requests and answers else " (requests only)" if requests else " (answers only)"
        self.trace.write(name, f"is cut off from {server}{way}")
        self.network.cut(name, server, requests=requests, answers=answers)

    def heal(self, name: str, server: str) -> None:
        self.trace.write(name, f"reaches {server} again")
        self.network.heal(name, server)

    def expire_session(self, name: str) -> None:
        """End the process's coordination session now, whatever it sends."""
        self.coordination.expire_sessions_of(name)

    def set_down(self, server: str, down: bool) -> None:
        """Take a server down, or bring it back with all that it had stored."""
        self.trace.write(server, "goes down" if down else "is back")
        self.network.set_down(server, down)
        if server == COORDINATION_SERVER:
            self.coordination.set_down(down)

    def heal_everything(self) -> None:
        """No faults from now on: servers up, links whole, nobody paused. The dead stay dead."""
        self.network.faults = NO_FAULTS
        for server in (LOG_SERVER, COORDINATION_SERVER):
            self.set_down(server, False)
            for name, process in self.processes.items():
                self.network.heal(name, server)
                process.resume()


def _because(failure: BaseException | None) -> str:
    return "" if failure is None else f" with {type(failure).__name__}: {failure}"
