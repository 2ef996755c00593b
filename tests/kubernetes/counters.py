"""The counters of the demo as a service in pods: what `host` of the chart names in the image `counters`.

Its settings come from the environment: POD_IP is where it listens, COUNTERS the file, on a volume that all pods share.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path

from loadmanager import Broker, Bundle, Token
from loadmanager.demo.counter.ledger import Ledger
from loadmanager.demo.counter.service import Counters, served

PORT = 9_000


class Service(Counters):
    """Opens its file and its port when the broker starts; both end with the process."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._open = AsyncExitStack()
        self._ready = asyncio.Event()
        self._tasks = set[asyncio.Task[None]]()

    def attached(self, broker: Broker) -> None:
        """Called on the service's loop before the broker starts."""
        self.broker = broker
        self._tasks.add(asyncio.get_running_loop().create_task(self._begin()))

    async def _begin(self) -> None:
        await self._open.enter_async_context(self._ledger)
        await self._open.enter_async_context(served(self, os.environ["POD_IP"], PORT))
        self._ledger.broker = self.broker.name
        self._ready.set()

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        """Not before the file is open."""
        await self._ready.wait()
        await super().acquire(bundle, token, hand_off)


def make_host() -> Service:
    """The factory."""
    return Service(Ledger(Path(os.environ["COUNTERS"])))
