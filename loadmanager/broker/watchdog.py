"""Ends the session of a process whose control loop hangs, so that others take over what it holds.

The loop writes proofs, but threads of the coordination clients keep sessions alive. Without a watchdog a broker whose
loop hangs (a blocking call, a deadlock) would stay member and leader for ever, and nobody would serve its bundles. A
thread watches the loop. If the loop does not turn for the whole time-out, its session ends; when it turns again, its
incarnation ends before anything else happens.

Only time in which this thread itself ran counts. A stopped process or machine, or a call that holds the interpreter,
silences the clients' threads as well, and the session ends by itself.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import islice

from loadmanager.broker.node import Node

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


@asynccontextmanager
async def watched(node: Node) -> AsyncGenerator[None]:
    """Watch the loop of a real process that runs this node, with the session's time-out, and measure its turns."""
    world = node.world
    watchdog = Watchdog(node.settings.session_timeout_s, world.clock_s, world.coordination.abandon, node.abandoned)
    watchdog.start()
    try:
        async with node.seen.turns.measured():
            yield
    finally:
        watchdog.stop()
