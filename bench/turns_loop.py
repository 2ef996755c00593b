"""The loop of `turns`: a virtual loop that notes the CPU time of each turn of one process, and where it went.

A turn is all that was ready at its beginning; what other processes, the servers and the network do in it does not
count. Where a turn spends its time is looked at every `LOOK_S`, by a signal: a search for cycles, or a long call into
C, shows as the line that it interrupted.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections import Counter
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import msgspec

from tests.simulator.loop import Process, VirtualLoop

LOOK_S = 0.002
FRAMES = 5
"""How many of the innermost calls tell where the time went."""
LINES = 3
"""How many places of the longest turn, and how many kinds of turns over the bound, are told."""
OVER_LINES = 8
"""How many places of all turns over the bound."""

Place = tuple[str, ...]
T = TypeVar("T")


class Turns(msgspec.Struct):
    """The turns of the loop of one scenario, in CPU time."""

    longest_s: float = 0.0
    longest_at: list[str] = msgspec.field(default_factory=list)
    """Where the time of the longest turn went, the most frequent first."""
    longest_collecting_s: float = 0.0
    """What the search for cycles took of it."""
    longest_own_s: float = 0.0
    """The longest turn without its searches for cycles: they go through the peers' objects as well."""
    longest_of: list[str] = msgspec.field(default_factory=list)
    """The kinds of calls that took most of that turn: ms, how many, and their name."""
    over: int = 0
    """How many turns took more than the bound."""
    over_own: int = 0
    """How many did without their searches for cycles."""
    over_of: Counter[str] = msgspec.field(default_factory=Counter[str])
    """The calls that took most of those."""
    over_at: Counter[Place] = msgspec.field(default_factory=Counter[Place])
    """Where the time of those went that are over the bound without their searches for cycles."""
    total_s: float = 0.0
    turns: int = 0
    collecting_s: float = 0.0
    """The longest search for cycles in a turn. Objects of the peers are searched as well: it is an upper bound."""


class TurnLoop(VirtualLoop):
    """A virtual loop that notes how long each turn of one process takes."""

    def __init__(self, bound_s: float) -> None:
        super().__init__(instant_limit=50_000_000)
        self.measured: Process | None = None
        self.noted = Turns()
        self.bound_s = bound_s
        self._in_measured = False
        self._places: list[Place] = []
        self._collecting_s = 0.0
        self._collecting_since_s = 0.0

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Not kept by the loop, as on a real one, so the search for cycles does not visit ended tasks."""
        return asyncio.Task(coro, loop=self, name=name or "a task", context=context)  # type: ignore[arg-type]

    @contextmanager
    def noting(self) -> Generator[Turns]:
        """The turns of what happens inside."""
        noted = self.noted = Turns()
        gc.callbacks.append(self._collecting)
        before = signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)
        try:
            yield noted
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)
            gc.callbacks.remove(self._collecting)
            self.noted = Turns()

    def _look(self, _number: int, frame: FrameType | None) -> None:
        if self._in_measured:
            self._places.append(_place(frame))

    def _collecting(self, phase: str, _info: dict[str, int]) -> None:
        if not self._in_measured:
            return
        if phase == "start":
            self._collecting_since_s = time.thread_time()
        else:
            took_s = time.thread_time() - self._collecting_since_s
            self._collecting_s += took_s
            self.noted.collecting_s = max(self.noted.collecting_s, took_s)

    def _run_instant(self) -> None:
        while self._ready and not self._stopping:
            self._run_turn(len(self._ready))

    def _run_turn(self, calls: int) -> None:
        kinds: dict[str, tuple[float, int]] = {}
        self._places.clear()
        self._collecting_s = 0.0
        for _ in range(calls):
            call = self._ready.popleft()
            callback, process = call.callback, call.process
            if callback is None or not process.running:
                continue
            self._in_measured = mine = process is self.measured
            begin_s = time.thread_time() if mine else 0.0
            try:
                call.context.run(callback, *call.args)
            except Exception as error:  # noqa: BLE001 - as asyncio does
                self.call_exception_handler({"message": f"in a callback of {process.name}", "exception": error})
            if mine:
                self._in_measured = False
                took_s, kind = time.thread_time() - begin_s, _name_of(callback)
                so_far_s, count = kinds.get(kind, (0.0, 0))
                kinds[kind] = so_far_s + took_s, count + 1
        if kinds:
            self._note(kinds)

    def _note(self, kinds: dict[str, tuple[float, int]]) -> None:
        noted, turn_s = self.noted, sum(took_s for took_s, _ in kinds.values())
        noted.turns += 1
        noted.total_s += turn_s
        own_s = turn_s - self._collecting_s
        if own_s > noted.longest_own_s:
            noted.longest_own_s, noted.longest_of = own_s, _most(kinds)
        if own_s > self.bound_s:
            noted.over_own += 1
            noted.over_at.update(self._places)
            noted.over_of[max(kinds, key=lambda kind: kinds[kind])] += 1
        noted.over += turn_s > self.bound_s
        if turn_s > noted.longest_s:
            noted.longest_s, noted.longest_collecting_s = turn_s, self._collecting_s
            noted.longest_at = told(Counter(self._places), LINES)


def _most(kinds: dict[str, tuple[float, int]]) -> list[str]:
    """The kinds of calls that took most, the longest first."""
    most = sorted(kinds.items(), key=lambda each: each[1], reverse=True)[:LINES]
    return [f"{took_s * 1e3:.1f} ms of {count} calls: {kind}" for kind, (took_s, count) in most]


def _place(frame: FrameType | None) -> Place:
    """The innermost calls, but for those of the loop itself."""
    found: list[str] = []
    while frame is not None and len(found) < FRAMES:
        code = frame.f_code
        if code.co_filename == __file__:
            break
        found.append(f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_qualname}")
        frame = frame.f_back
    return tuple(found)


def told(places: Counter[Place], most: int) -> list[str]:
    """The most frequent places, each with how often it was seen among how many."""
    return [f"{count}/{places.total()}: {' < '.join(place)}" for place, count in places.most_common(most)]


def _name_of(callback: Any) -> str:
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return _chain(owner.get_coro())
    return getattr(callback, "__qualname__", repr(callback))


def _chain(coro: Any) -> str:
    """The coroutine, and what it waits for by now: a shell's name alone says little."""
    names: list[str] = []
    while coro is not None and (name := getattr(coro, "__qualname__", None)) is not None:
        names.append(name)
        coro = getattr(coro, "cr_await", None)
    return " > ".join(names)
