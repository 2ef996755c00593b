"""A deterministic asyncio event loop on virtual time, and the processes on it: no selector, no thread, no clock.

The loop decides what runs next and what time it is: ready callbacks first-in first-out, then the earliest timer by
(time, sequence), to which virtual time jumps. Every callback belongs to the process in whose context it was scheduled;
callbacks of a paused process wait, those of a dead one are dropped. Callbacks take no virtual time.

A run depends on its inputs alone if the code on it keeps three rules: take randomness from a seeded `random.Random`,
take time from `loop.time()`, and never depend on the order of a set or on an `id()` (string hashes differ between runs;
dictionaries keep insertion order and are fine). Tasks are held until done, so garbage collection decides nothing, with
one exception: when an async generator is closed that was dropped without `aclose()`.

A process has tasks and a clock, and stops in several ways. A context variable says which process runs, so everything
that a process spawns belongs to it automatically.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from contextvars import Context, ContextVar, copy_context
from heapq import heapify, heappop, heappush
from math import ceil
from typing import Any, NoReturn, ParamSpec, TypeVar
from weakref import WeakValueDictionary

_COMPACT_ABOVE = 512


class ScheduledCall(asyncio.TimerHandle):
    """A callback that is ready or due at a time: the virtual loop's handle, without asyncio's debugging data."""

    __slots__ = ("args", "callback", "context", "due_s", "process", "timers")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context, process: Process
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self.process = process
        self.due_s = 0.0
        self.timers: Timers | None = None

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback, self.args = None, ()
            if self.timers is not None:
                self.timers.one_was_cancelled()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.due_s

    def __repr__(self) -> str:
        return f"<ScheduledCall {self.callback} of {self.process.name}>"


class Timers:
    """Timers in order of true time, and of their setting where times are equal."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, ScheduledCall]] = []
        self._sequence = 0
        self._cancelled = 0

    def push(self, due_ns: int, call: ScheduledCall) -> None:
        call.timers = self
        self._sequence += 1
        heappush(self._heap, (due_ns, self._sequence, call))

    def pop_next_instant(self, ready: deque[ScheduledCall]) -> int | None:
        """Move the calls of the earliest instant to `ready`; that instant in ns, None if no timer is set."""
        heap = self._heap
        if not heap:
            return None
        due_ns = heap[0][0]
        while heap and heap[0][0] == due_ns:
            call = heappop(heap)[2]
            call.timers = None
            if call.callback is None:
                self._cancelled -= 1
            else:
                ready.append(call)
        return due_ns

    def one_was_cancelled(self) -> None:
        """Count it, and drop the cancelled ones once they are the majority."""
        self._cancelled += 1
        if self._cancelled > _COMPACT_ABOVE and 2 * self._cancelled > len(self._heap):
            self._heap = [timer for timer in self._heap if timer[2].callback is not None]
            heapify(self._heap)
            self._cancelled = 0

    def clear(self) -> None:
        self._heap.clear()
        self._cancelled = 0


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
            if task.done() and task._log_traceback and (failure := task.exception())  # type: ignore[attr-defined]
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
    task._log_destroy_pending = False  # type: ignore[attr-defined] # asyncio's own switch for this
    coroutine = task.get_coro()
    with contextlib.suppress(BaseException):
        for _ in range(_CLOSING_ATTEMPTS):  # each attempt gets past one `await` in a `finally`
            coroutine.throw(_Over())  # type: ignore[union-attr] # None only for eager tasks, never pending here


DEFAULT_INSTANT_LIMIT = 500_000
"""After so many callbacks at one instant of virtual time the loop reports a runaway."""


class SimulationError(Exception):
    """The simulation cannot go on; the message says what the simulated code did."""


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs the asyncio code of many processes in virtual time. `now_ns` is true time since the start of the run.

    `after_callback`, if set, is called after each callback of a process (not of the outside), with that process; what
    it raises ends the run. `executed` counts callbacks. An exception that no code handles ends the run too.
    """

    def __init__(self, *, instant_limit: int = DEFAULT_INSTANT_LIMIT) -> None:
        self.now_ns = 0
        self.executed = 0
        self.after_callback: Callable[[Process], None] | None = None
        self.outside = Process(self, "outside")
        self._instant_limit = instant_limit
        self._ready: deque[ScheduledCall] = deque()
        self._timers = Timers()
        self._processes: list[Process] = [self.outside]
        self._asyncgens: WeakValueDictionary[int, AsyncGenerator[Any, Any]] = WeakValueDictionary()
        self._asyncgens_seen = 0
        self._running = False
        self._stopping = False
        self._closed = False
        self._failure: BaseException | None = None

    def process(self, name: str, *, drift: float = 0.0, offset_s: float = 0.0) -> Process:
        """A new process, which runs nothing yet; its clock shows `offset_s` now and gains `drift` of each second."""
        process = Process(self, name, drift=drift, offset_s=offset_s)
        self._processes.append(process)
        return process

    # --- scheduling
    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> ScheduledCall:
        if context is None:
            context = copy_context()
        call = ScheduledCall(callback, args, context, context.get(current_process, self.outside))
        self._ready.append(call)
        return call

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> ScheduledCall:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> ScheduledCall:
        asking = current_process.get(self.outside)
        return self._set_timer(asking, asking.local_s(self.now_ns) + delay, callback, args, context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> ScheduledCall:
        """Call at a time on the clock of the process that asks."""
        return self._set_timer(current_process.get(self.outside), when, callback, args, context)

    def _set_timer(
        self,
        asking: Process,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> ScheduledCall:
        process = asking
        if context is None:
            context = copy_context()
        else:
            process = context.get(current_process, self.outside)
        call = ScheduledCall(callback, args, context, process)
        call.due_s = when
        self._timers.push(max(asking.true_ns(when), self.now_ns), call)
        return call

    def time(self) -> float:
        """What the monotonic clock of the process that asks shows, in seconds."""
        return current_process.get(self.outside).local_s(self.now_ns)

    def requeue(self, calls: Iterable[ScheduledCall]) -> None:
        """Make calls that were deferred ready again."""
        self._ready.extend(calls)

    # --- futures and tasks
    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        owner = current_process.get(self.outside) if context is None else context.get(current_process, self.outside)
        task: asyncio.Task[T] = asyncio.Task(
            coro,  # type: ignore[arg-type] # generators are what typeshed's base class still allows
            loop=self,
            name=name or owner.name_next_task(),
            context=context,
        )
        owner.hold(task)
        return task

    # --- running
    def run_until_complete(self, future: Generator[Any, None, T] | Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:  # type: ignore[override]
        """Run until the future is done, and return its result.

        Raises SimulationError when nothing is left that could ever complete it, or at a runaway; also what the future
        raises, exceptions that no code handled, and what `after_callback` raises.
        """
        main = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        main.add_done_callback(self._stop_after)
        self.run_forever()
        if not main.done():
            raise SimulationError("the loop was stopped before its main future was done")
        return main.result()

    def run_forever(self) -> None:
        """Run until `stop()`."""
        if self._closed or self._running:
            raise RuntimeError("this loop is closed or already running")
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._asyncgen_begins, finalizer=self._asyncgen_dropped)
        outer = events._get_running_loop()  # what asyncio offers to loops of others' making
        events._set_running_loop(self)
        self._running, self._stopping = True, False
        try:
            while not self._stopping:
                if not self._ready:
                    self._jump_to_next_timer()
                self._run_instant()
        finally:
            self._running = False
            events._set_running_loop(outer)
            sys.set_asyncgen_hooks(*hooks)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _jump_to_next_timer(self) -> None:
        due_ns = self._timers.pop_next_instant(self._ready)
        if due_ns is None:
            raise SimulationError("deadlock: nothing is ready, no timer is set, and the main future is not done")
        self.now_ns = due_ns

    def _run_instant(self) -> None:
        """Run ready calls, and those that they make ready, at one instant."""
        ready, outside, hook = self._ready, self.outside, self.after_callback
        executed = 0
        try:
            while ready and not self._stopping:
                call = ready.popleft()
                callback, process = call.callback, call.process
                if callback is None:
                    continue
                if not process.running:
                    if not process.dead:
                        process.deferred.append(call)
                    continue
                executed += 1
                try:
                    call.context.run(callback, *call.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 # as asyncio does: to the exception handler
                    self.call_exception_handler({"message": f"in a callback of {process.name}", "exception": error})
                if hook is not None and process is not outside:
                    hook(process)
                if executed > self._instant_limit:
                    self._runaway(call)
        finally:
            self.executed += executed

    def _runaway(self, last: ScheduledCall) -> NoReturn:
        raise SimulationError(
            f"runaway: {self._instant_limit} callbacks at {self.now_ns / NS:.6f} s without a wait; "
            f"the last one was {last!r}. Look for a loop that awaits nothing, or only sleep(0)"
        )

    def _stop_after(self, _main: asyncio.Future[Any]) -> None:
        self._stopping = True

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """End the simulation: every process dies, and its pending work is dropped silently. Idempotent."""
        if self._closed:
            return
        outer = events._get_running_loop()
        events._set_running_loop(self)  # so that what still runs finds no other loop to act on
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._asyncgen_begins, finalizer=self._asyncgen_dropped)
        try:
            for process in self._processes:
                process.crash()
            for process in self._processes:
                process.bury()
        finally:
            events._set_running_loop(outer)
            sys.set_asyncgen_hooks(*hooks)
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    # --- what went wrong
    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """End the run with an exception that no code handled: in a simulation that is a finding, not a log line."""
        if self._closed or current_process.get(self.outside).dead:
            return
        if self._failure is None:
            failure = SimulationError(f"unhandled: {context.get('message')}")
            failure.__cause__ = context.get("exception")
            self._failure = failure
        self._stopping = True

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_debug(self) -> bool:
        return False

    # --- async generators
    def _asyncgen_begins(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._asyncgens_seen += 1
        self._asyncgens[self._asyncgens_seen] = generator

    def _asyncgen_dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._closed and not current_process.get(self.outside).dead:
            self.create_task(generator.aclose())

    async def shutdown_asyncgens(self) -> None:
        """Close every async generator that is still open, in the order in which they began."""
        for _, generator in sorted(self._asyncgens.items(), key=lambda item: item[0]):
            await generator.aclose()

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Nothing to shut down: there is no executor."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> NoReturn:
        raise SimulationError(
            f"no threads in a simulation, where {executor!r} was to run {func!r}{args!r}: use a simulated adapter"
        )
