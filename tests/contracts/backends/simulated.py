"""Where clients of the simulated adapters meet: one network without faults, here on a real loop and in real time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from tests.simulator.network import Network
from tests.simulator.simulated_coordination import SimulatedCoordination, SimulatedCoordinationServer
from tests.simulator.simulated_log import MAX_BATCH, SimulatedLog, SimulatedLogServer


class SimulatedLogBackend:
    def __init__(self) -> None:
        random = Random(1)
        self._network = Network(random)
        self._server = SimulatedLogServer(random, lambda: time.time_ns() // 1_000_000)
        self._server.read_sizes = (MAX_BATCH,)  # a compaction in the middle of a read is for tests/sim
        self.max_payload_bytes = self._server.max_entry_bytes
        self._clients: list[SimulatedLog] = []
        self._topics = 0

    async def open(self) -> SimulatedLog:
        client = SimulatedLog(self._server, self._network, f"client-{len(self._clients)}")
        self._clients.append(client)
        await client.start(timeout_s=10)
        return client

    def topic(self, name: str) -> str:
        self._topics += 1
        return f"{name}-{self._topics}"

    async def aclose(self) -> None:
        for client in self._clients:
            await client.close()


class SimulatedCoordinationBackend:
    session_timeout_s = 1.0

    def __init__(self) -> None:
        self._network = Network(Random(1))
        self._server = SimulatedCoordinationServer()
        self._clients: list[SimulatedCoordination] = []

    async def open(self) -> SimulatedCoordination:
        client = SimulatedCoordination(
            self._server,
            self._network,
            f"client-{len(self._clients)}",
            session_timeout_s=self.session_timeout_s,
        )
        self._clients.append(client)
        await client.start(timeout_s=10)
        return client

    def abandon(self, client: SimulatedCoordination) -> None:
        client.abandon()

    async def expire(self, client: SimulatedCoordination) -> None:
        self._server.expire_sessions_of(client.link.process)

    async def wipe(self) -> None:
        self._server.lose_everything()

    async def aclose(self) -> None:
        for client in self._clients:
            await client.close()


@asynccontextmanager
async def log_backend(_request: pytest.FixtureRequest) -> AsyncIterator[SimulatedLogBackend]:
    backend = SimulatedLogBackend()
    try:
        yield backend
    finally:
        await backend.aclose()


@asynccontextmanager
async def coordination_backend(_request: pytest.FixtureRequest) -> AsyncIterator[SimulatedCoordinationBackend]:
    backend = SimulatedCoordinationBackend()
    try:
        yield backend
    finally:
        await backend.aclose()


LOGS = {"simulated": log_backend}
COORDINATIONS = {"simulated": coordination_backend}
