"""A simulated operating-system process: its tasks, its clock, and how it stops.

A context variable says which process runs, so everything that a process spawns belongs to it automatically. Order and
virtual time are in `loop.py`, the network is in `network.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from math import ceil
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from loadmanager.simulation.loop import VirtualLoop
    from loadmanager.simulation.timers import ScheduledCall

P = ParamSpec("P")
T = TypeVar("T")

NS = 1_000_000_000
_SWEEP_FLOOR = 256
_CLOSING_ATTEMPTS = 100

current_process: ContextVar[Process] = ContextVar("current_process")
"""The process whose code runs; unset outside every process (the driver, the servers, the network)."""


class Process:
    """One life of one simulated process.

    `drift` is how much faster its clock runs than true time (0.02: 2 % fast); `offset_s` what it shows when it starts.
    A process never comes back to life: a restart is a new `Process`, usually of the same name.
    """

    def __init__(self, loop: VirtualLoop, name: str, *, drift: float = 0.0, offset_s: float = 0.0) -> None:
        self.name = name
        self.running = True
        self.dead = False
        self.failure: BaseException | None = None
        self.deferred: list[ScheduledCall] = []
        self.loop = loop
        self._base_ns = loop.now_ns
        self._base_local_s = offset_s
        self._rate = 1.0 + drift
        self._tasks: list[asyncio.Task[Any]] = []
        self._sweep_at = _SWEEP_FLOOR
        self._spawned = 0
        self._on_death: list[Callable[[], None]] = []
        self._context = Context()
        self._context.run(current_process.set, self)

    def __repr__(self) -> str:
        return f"<Process {self.name} {'dead' if self.dead else 'running' if self.running else 'paused'}>"

    # --- running code in it
    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` at once as this process, and return what it returns."""
        return self._context.copy().run(function, *args, **kwargs)

    def start(self, main: Callable[[], Coroutine[Any, Any, object]]) -> asyncio.Task[object]:
        """Run `main()` as this process's main task. When it ends the process ends; `failure` is what it raised."""
        task = self.run(lambda: self.loop.create_task(main(), name=f"{self.name}.main"))
        task.add_done_callback(self._main_ended, context=Context())
        return task

    def on_death(self, react: Callable[[], None]) -> None:
        """Call `react` (outside of the process) when it dies, however it dies."""
        self._on_death.append(react)

    # --- faults
    def crash(self) -> None:
        """As by SIGKILL: none of its code ever runs again, no clean-up code either. Idempotent."""
        if self.dead:
            return
        self.dead, self.running = True, False
        self.deferred.clear()
        for react in self._on_death:
            react()

    def pause(self) -> None:
        """As by SIGSTOP: due callbacks are deferred until `resume`; its clock runs on. Idempotent."""
        if not self.dead:
            self.running = False

    def resume(self) -> None:
        """Run on; deferred callbacks run now, in the order in which they fell due. Idempotent."""
        if self.dead or self.running:
            return
        self.running = True
        deferred, self.deferred = self.deferred, []
        self.loop.requeue(deferred)

    # --- its clock
    def local_s(self, true_ns: int) -> float:
        """What its monotonic clock shows at a true time."""
        return self._base_local_s + (true_ns - self._base_ns) * self._rate / NS

    def true_ns(self, local_s: float) -> int:
        """The first nanosecond of true time at which its clock shows at least `local_s`."""
        due = self._base_ns + ceil((local_s - self._base_local_s) / self._rate * NS)
        while self.local_s(due) < local_s:
            due += 1
        return due

    def set_drift(self, drift: float) -> None:
        """From now on its clock runs `1 + drift` times as fast; timers that are already set keep their true time."""
        self._base_local_s, self._base_ns = self.local_s(self.loop.now_ns), self.loop.now_ns
        self._rate = 1.0 + drift

    # --- its tasks
    def name_next_task(self) -> str:
        """A name for a task that has none: deterministic, unlike asyncio's process-wide counter."""
        self._spawned += 1
        return f"{self.name}.{self._spawned}"

    def hold(self, task: asyncio.Task[Any]) -> None:
        """Keep a task alive until it is done, so that the garbage collector never decides what runs."""
        self._tasks.append(task)
        if len(self._tasks) > self._sweep_at:
            self._tasks = [held for held in self._tasks if not held.done()]
            self._sweep_at = max(_SWEEP_FLOOR, 2 * len(self._tasks))

    def unseen_failures(self) -> list[BaseException]:
        """Exceptions of its tasks that nobody has retrieved."""
        return [
            failure
            for task in self._tasks
            if task.done() and task._log_traceback and (failure := task.exception())  # type: ignore[attr-defined] # noqa: SLF001
        ]

    def bury(self) -> None:
        """Drop everything silently. The simulation is over: clean-up code that runs now reaches nothing."""
        self.crash()
        while self._tasks:
            task = self._tasks.pop()
            if not task.done():
                self.run(_close_silently, task)

    def _main_ended(self, main: asyncio.Task[object]) -> None:
        self.failure = None if main.cancelled() else main.exception()
        self.crash()


class _Over(BaseException):
    """Thrown into coroutines that still wait when the simulation is over.

    Not GeneratorExit: where clean-up code of an inner coroutine awaits, closing would end only the outer one.
    """


def _close_silently(task: asyncio.Task[Any]) -> None:
    """Finish a pending task's coroutine, whatever its clean-up code awaits or raises, so that nothing is logged."""
    task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001 # asyncio's own switch for this
    coroutine = task.get_coro()
    with contextlib.suppress(BaseException):
        for _ in range(_CLOSING_ATTEMPTS):  # each attempt gets past one `await` in a `finally`
            coroutine.throw(_Over())  # type: ignore[union-attr] # None only for eager tasks, never pending here
