"""One reader of one topic of the simulated log: the server's position in it, and the client's inbox."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from loadmanager.simulation.log_server import SimulatedLogServer
from loadmanager.simulation.network import Link
from statechannel.errors import LogError
from statechannel.ports import LogEntry

_INBOX_BATCHES = 16


class Tail:
    """One reader: one batch is under way at a time, so batches grow with load.

    The inbox is bounded, so a paused reader holds the server's position back.
    """

    def __init__(self, server: SimulatedLogServer, link: Link, topic: str, starts: Sequence[int]) -> None:
        self.topic = topic
        self.process = link.process
        self.closed = False
        self._server = server
        self._link = link
        self._next = list(starts)
        self._turn = 0
        self._sending = False
        self._inbox: deque[Sequence[LogEntry] | LogError] = deque()
        self._arrival: asyncio.Future[None] | None = None

    def send_next(self) -> None:
        """Send the next batch, from the partitions in turn, if there is one and room for it."""
        if self._link.closed:
            self.close()
        if self.closed or self._sending or len(self._inbox) >= _INBOX_BATCHES:
            return
        try:
            batch = self._next_batch()
        except LogError as unreadable:
            batch = unreadable
            self.close()
        if batch:
            self._sending = True
            self._link.push(lambda: self._arrived(batch))

    async def receive(self) -> Sequence[LogEntry]:
        while not self._inbox:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival  # no time-out: a tail waits for ever by contract
        batch = self._inbox.popleft()
        self.send_next()
        if isinstance(batch, LogError):
            raise batch
        return batch

    def close(self) -> None:
        self.closed = True
        self._server.detach(self)

    def _next_batch(self) -> Sequence[LogEntry]:
        partitions = self._server.partitions(self.topic)
        for _ in self._next:
            turn = self._turn = (self._turn + 1) % len(self._next)
            if self._next[turn] >= partitions[turn].end:
                continue
            if batch := self._server.read(self.topic, turn, self._next[turn]):
                self._next[turn] = batch[-1].offset + 1
                return batch
            # Skip a marker at the end: if only the marker is trimmed, the position must not be below the begin.
            self._next[turn] = partitions[turn].end
        return ()

    def _arrived(self, batch: Sequence[LogEntry] | LogError) -> None:
        self._sending = False
        self._inbox.append(batch)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
        self.send_next()
