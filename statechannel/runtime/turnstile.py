"""Lets a bounded number of tasks go on in one turn of the event loop.

One record may make hundreds of tasks ready at once. In between the loop must serve its timers and sockets, for it also
writes the proofs of ownership.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Turnstile:
    """First come, first served. A task that comes while there is room goes on at once."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._gone_on = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._open_again = False

    @property
    def waiting(self) -> int:
        """How many wait for a later turn."""
        return len(self._waiting)

    async def passed(self) -> None:
        """Return when it is this task's turn to go on."""
        if self._gone_on >= self._at_once or self._waiting:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._count()

    def _count(self) -> None:
        self._gone_on += 1
        if not self._open_again:
            self._open_again = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._gone_on, self._open_again = 0, False
        while self._waiting and self._gone_on < self._at_once:
            turn = self._waiting.popleft()
            if not turn.done():  # else it was cancelled
                turn.set_result(None)
                self._count()
