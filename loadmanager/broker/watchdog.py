"""Ends the session of a process whose control loop hangs, so that others take over what it holds.

Proofs are written by the loop, but sessions are kept alive by threads of the coordination clients. Without this a loop
that hangs (a call that blocks, a deadlock) would stay a member and leader for ever, and nobody would serve what it
holds. A thread looks whether the loop turns; one that has not for the whole time-out loses its session, and when it
turns again its incarnation is over before anything else happens.

Only time in which this thread itself could look counts: a process or machine that was stopped as a whole, or a call
that holds the interpreter, silences the clients' threads as well, and the service sees to the session.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

from loadmanager.broker.node import Node

LOOKS = 20
"""How often it looks within the time-out: it ends a session late by one look, or two."""
FRAMES_SHOWN = 12
_log = logging.getLogger(__name__)


class Stillness:
    """How long a loop has not turned, as far as somebody could look. Pure."""

    def __init__(self, look_s: float, now_s: float) -> None:
        self._longest_s = 2 * look_s
        self._turns = -1
        self._looked_s = now_s
        self._still_s = 0.0

    def look(self, turns: int, now_s: float) -> float:
        """Seconds without a turn. Between two looks no more passes than a looker who runs would let pass."""
        passed_s = min(now_s - self._looked_s, self._longest_s)
        self._still_s = self._still_s + passed_s if turns == self._turns else 0.0
        self._turns, self._looked_s = turns, now_s
        return self._still_s


class Watchdog:
    """Watches the loop that runs `start`. `abandon` ends the session, from any thread; `woken` is called on the loop,
    first of all, when it turns after that, with what had held it."""

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
        """From now on the loop must turn."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._turn()
        self._thread.start()

    def stop(self) -> None:
        """The loop need not turn any more. Idempotent."""
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
        """The session first: what comes after it may wait for what the loop holds, a lock of the log's for one."""
        self._abandon()
        since_s = self._clock_s() - still_s
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        stack = traceback.extract_stack(frame, FRAMES_SHOWN) if frame else traceback.StackSummary()
        held = _shown(stack[-1]) if stack else "nobody knows what"
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._wake, since_s, held)
        _log.error(
            "the control loop has not turned for %.1f s: its session was ended, and others take over what it holds. "
            "It is held by\n%s",
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
    """Watch the loop of a real process that runs this node. Its session ends if it does not turn for its time-out."""
    world = node.world
    watchdog = Watchdog(node.settings.session_timeout_s, world.clock_s, world.coordination.abandon, node.abandoned)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()
