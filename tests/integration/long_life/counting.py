"""The load of the long life: increments through the client router, and in the end whether the store has each once.

One client is steady and gives each request a minute, so that only what nobody answers fails and not what a busy machine
answers late; one is slow and patient, and goes on while there is no broker at all. Neither may see a single failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from urllib.parse import quote

from loadmanager.client import HttpRouter, Router
from loadmanager.demo.counter.load import Load, audit
from loadmanager.demo.counter.traffic import Traffic
from statechannel.law.record import Token
from tests.integration.long_life.cluster import Cluster
from tests.integration.long_life.waiting import until

TOPICS = 200
STEADY_S, PATIENT_S = 60.0, 10.0
STEADY_BUDGET_S, PATIENCE_S = 60.0, 180.0
CALLERS = 100
"""So many requests of a client are under way at most: a machine that is slow for a time is not buried under them."""


class Counting:
    """All clients that there were."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._loads: list[Load] = []

    @asynccontextmanager
    async def steadily(self, budget_s: float = STEADY_BUDGET_S) -> AsyncGenerator[Load]:
        """A client while the context is open; what is under way then is waited for."""
        async with self._client(STEADY_S, budget_s) as load:
            yield load

    @asynccontextmanager
    async def patiently(self) -> AsyncGenerator[Load]:
        """A client that outlasts the absence of all brokers."""
        async with self._client(PATIENT_S, PATIENCE_S) as load:
            yield load

    @asynccontextmanager
    async def _client(self, rate_s: float, budget_s: float) -> AsyncGenerator[Load]:
        async with HttpRouter(Router(f"http://{member.name}" for member in self._cluster.members)) as http:
            load = Load(http, Traffic(self._namespace, rate_s=rate_s, topics=TOPICS), budget_s, CALLERS)
            self._loads.append(load)
            sending = asyncio.create_task(load.run())
            try:
                yield load
                load.stop()
                await sending
            finally:
                sending.cancel()  # where something else has failed already, nobody waits for answers
                await asyncio.wait([sending])

    @property
    def ok(self) -> int:
        return sum(load.ok for load in self._loads)

    def assert_none_failed(self) -> None:
        """Not one request."""
        failures = [failure for load in self._loads for failure in load.failures]
        assert not failures, failures

    def assert_each_counted_once(self) -> None:
        """What was acknowledged is stored with that value, and no value was made twice; nothing failed."""
        self.assert_none_failed()
        found = audit(self._cluster.store, [each for load in self._loads for each in load.acknowledged])
        assert (found.lost, found.doubled) == (0, 0), found
        assert found.stored >= self.ok > 0


async def until_more(load: Load, requests: int = 100) -> None:
    """Return when so many more have been answered."""
    wanted = load.ok + requests
    await until(lambda: load.ok >= wanted, f"{requests} more requests are answered")


def tokens_by_topic(store: Path) -> dict[str, list[Token]]:
    """Under which tokens each key was ever written, in the order of the writes; one for each time it changed."""
    with contextlib.closing(sqlite3.connect(f"file:{quote(str(store))}?mode=ro", uri=True, timeout=5)) as db:
        rows = db.execute("SELECT topic, token FROM increment ORDER BY topic, value").fetchall()
    by_topic = groupby(rows, key=itemgetter(0))
    return {topic: [Token.parse(token) for token, _ in groupby(each, key=itemgetter(1))] for topic, each in by_topic}
