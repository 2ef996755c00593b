"""A queue for replays of the log beside a broker's other work: one at a time; few may wait, for a limited time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from loadmanager.errors import Unavailable
from statechannel.ports import Log
from statechannel.runtime.replay import Replay

WAITING_AT_MOST = 16
REST_S = 0.002
"""Pause after each step of 4 ms: on two cores under a load of 13 it cut the loop's stalls from 110 ms to 15 ms."""

TIMEOUT_S = 45.0
"""For one answer, including the wait for its turn; our clients wait 65 s."""


class ReplayQueue:
    """One per broker."""

    def __init__(self, log: Log, topic: str, timeout_s: float) -> None:
        self._log = log
        self._topic = topic
        self._timeout_s = timeout_s
        self._turn = asyncio.Semaphore(1)
        self._asked = 0

    def replay(self, partition: int, partitions: int, namespace: str | None) -> Replay:
        """A new replay; run it only inside `turn()`."""
        return Replay(self._log, self._topic, partition, partitions, namespace, asyncio.to_thread, REST_S)

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """The right to replay while the context is open. Raises Unavailable if waiting and replaying take too long."""
        if self._asked > WAITING_AT_MOST:
            raise Unavailable(
                f"{self._asked} requests wait already to read the log again here; try again, or ask another broker"
            )
        self._asked += 1
        try:
            async with asyncio.timeout(self._timeout_s), self._turn:
                yield
        except TimeoutError:
            raise Unavailable(
                f"the log could not be read again within {self._timeout_s:g} s; try again, ask for less (a later "
                "begin), or ask a broker that has less to do",
                retry_after_s=5.0,
            ) from None
        finally:
            self._asked -= 1
