"""How late the control loop is; and the end of the session of a process whose loop hangs.

`LoopTurns` measures how long work that is ready waits for the turn that runs. A timer is due every `LOOK_S`; it is late
by the rest of the turn in which it became due. A turn that is longer than `LOOK_S` is seen, and its length is the
lateness or up to `LOOK_S` more. On Linux the lateness is divided into what the process did and the time for which the
kernel gave the loop's thread no processor.

The loop writes proofs, but threads of the coordination clients keep sessions alive. Without a watchdog a broker whose
loop hangs (a blocking call, a deadlock) would stay member and leader, and its bundles would stay unserved. A thread
watches the loop. If the loop does not turn for the whole time-out, its session ends; when it turns again, its
incarnation ends before anything else happens. Only time in which this thread itself ran counts. A stopped process or
machine, or a call that holds the interpreter, silences the clients' threads as well, and the session ends by itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import traceback
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import islice

from statechannel.runtime.durations import Durations

LOOK_S = 0.02
LATE_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Bounds: a turn should take less than 20 ms."""

WINDOW_S = 60.0


class Turns:
    """How late the loop was. What is longest looks back over one to two windows."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self.late = Durations(LATE_S)
        self._clock_s = clock_s
        self._began_s = clock_s()
        self._before = self._now = (0.0, 0.0)
        self._turned_s: float | None = None

    @property
    def longest_s(self) -> float:
        """The longest lateness of the last minute or two."""
        return max(self._before[0], self._now[0])

    @property
    def longest_own_s(self) -> float:
        """The same, excluding CPU wait."""
        return max(self._before[1], self._now[1])

    @property
    def still_s(self) -> float:
        """Seconds since the loop last turned, for any thread; 0 if it is not measured."""
        turned_s = self._turned_s
        return 0.0 if turned_s is None else self._clock_s() - turned_s

    def add(self, late_s: float, waited_s: float = 0.0) -> None:
        """The timer was late by this much. Since it was last set, the thread waited this long for a processor."""
        now_s = self._turned_s = self._clock_s()
        if now_s - self._began_s >= WINDOW_S:
            self._began_s, self._before, self._now = now_s, self._now, (0.0, 0.0)
        self.late.add(late_s)
        longest_s, own_s = self._now
        self._now = max(longest_s, late_s), max(own_s, late_s - waited_s)

    @asynccontextmanager
    async def measured(self) -> AsyncGenerator[None]:
        """Measure the running loop while the context is open."""
        loop = asyncio.get_running_loop()

        def look(due_s: float, before_s: float) -> None:
            nonlocal timer
            now_s, all_s = loop.time(), waited_s()
            self.add(now_s - due_s, all_s - before_s)
            timer = loop.call_at(now_s + LOOK_S, look, now_s + LOOK_S, all_s)

        with _waits_for_a_processor() as waited_s:
            timer = loop.call_at(loop.time() + LOOK_S, look, loop.time() + LOOK_S, waited_s())
            try:
                yield
            finally:
                timer.cancel()
                self._turned_s = None


@contextmanager
def _waits_for_a_processor() -> Generator[Callable[[], float]]:
    """Returns a function for the total time that this thread was ready but did not run; 0 if the kernel does not tell.

    Linux' `/proc/PID/task/TID/schedstat`, second figure, in nanoseconds.
    """
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield lambda: 0.0
        return
    try:
        yield lambda: int(os.pread(file, 100, 0).split()[1]) / 1e9
    finally:
        os.close(file)


LOOKS = 20
"""How often it looks within the time-out; it ends a session one or two looks late."""
FRAMES_SHOWN = 12
_log = logging.getLogger(__name__)


class Stillness:
    """Counts how long a loop has not turned while the watching thread ran. Pure."""

    def __init__(self, look_s: float, now_s: float) -> None:
        self._longest_s = 2 * look_s
        self._turns = -1
        self._looked_s = now_s
        self._still_s = 0.0

    def look(self, turns: int, now_s: float) -> float:
        """Seconds without a turn. The time between two looks counts at most twice the interval of looks."""
        passed_s = min(now_s - self._looked_s, self._longest_s)
        self._still_s = self._still_s + passed_s if turns == self._turns else 0.0
        self._turns, self._looked_s = turns, now_s
        return self._still_s


class Watchdog:
    """Watches the loop that calls `start`.

    `abandon` ends the session, from any thread. When the loop turns again, `woken` is called on it first, with a text
    of what had blocked it.
    """

    def __init__(
        self,
        timeout_s: float,
        clock_s: Callable[[], float],
        abandon: Callable[[], None],
        woken: Callable[[str], None],
    ) -> None:
        self._timeout_s = timeout_s
        self._look_s = timeout_s / LOOKS
        self._clock_s = clock_s
        self._abandon = abandon
        self._tell_woken = woken
        self._turns = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loadmanager-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._turn()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching. Idempotent."""
        self._ended.set()
        self._next_turn.cancel()

    def _turn(self) -> None:
        self._turns += 1
        self._next_turn = self._loop.call_later(self._look_s, self._turn)

    # --- the thread

    def _watch(self) -> None:
        stillness, bitten = Stillness(self._look_s, self._clock_s()), False
        while not self._ended.wait(self._look_s):
            still_s = stillness.look(self._turns, self._clock_s())
            if still_s >= self._timeout_s and not bitten:
                self._bite(still_s)
            bitten = still_s >= self._timeout_s

    def _bite(self, still_s: float) -> None:
        """End the session first: the rest may wait for something that the loop holds, such as a lock of the logger.

        Only the places are noted before, since the loop may go on as soon as the session has ended.
        """
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        places = list(islice(traceback.walk_stack(frame), FRAMES_SHOWN)) if frame is not None else []
        self._abandon()
        since_s = self._clock_s() - still_s
        stack = traceback.StackSummary.extract(iter(places))
        stack.reverse()
        held = _shown(stack[-1]) if stack else "something unknown"
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._wake, since_s, held)
        _log.error(
            "the control loop has not turned for %.1f s: this broker's session was ended, and others take over its "
            "bundles. The loop is held by\n%s",
            still_s,
            "".join(stack.format()),
        )

    # --- on the loop

    def _wake(self, since_s: float, held: str) -> None:
        self._tell_woken(f"the control loop did not turn for {self._clock_s() - since_s:.1f} s, held by {held}")


def _shown(frame: traceback.FrameSummary) -> str:
    return f"{frame.name} ({frame.filename}:{frame.lineno}): {frame.line}"
