"""Where clients of the SQLite adapters meet: one file in the test's own directory."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from statechannel.adapters import sqlite_log
from statechannel.adapters.sqlite_coordination import SqliteCoordination
from statechannel.adapters.sqlite_log import SqliteLog


class SqliteLogStation:
    max_payload_bytes = sqlite_log.MAX_PAYLOAD_BYTES

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clients: list[SqliteLog] = []

    async def open(self) -> SqliteLog:
        client = SqliteLog(self._path)
        self._clients.append(client)
        await client.start(timeout_s=10)
        return client

    def topic(self, name: str) -> str:
        return f"{name}-{uuid.uuid4().hex[:8]}"

    async def aclose(self) -> None:
        for client in self._clients:
            await client.close()


class SqliteCoordinationStation:
    session_timeout_s = 1.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clients: list[SqliteCoordination] = []

    async def open(self) -> SqliteCoordination:
        client = SqliteCoordination(self._path, session_timeout_s=self.session_timeout_s)
        self._clients.append(client)
        await client.start(timeout_s=10)
        return client

    async def expire(self, client: SqliteCoordination) -> None:
        """Hold its heartbeat until another client has ended the session, and that client has seen it."""
        witness = await self.open()
        name = f"witness-of-expiry-{uuid.uuid4().hex}"
        marker = await client.start_incarnation(name, above=0)
        await client.register(marker, b"")
        seen = asyncio.Event()
        witness.on_change(seen.set)
        async with asyncio.timeout(10):
            while name not in witness.members:
                await seen.wait()
                seen.clear()
            client.heartbeat_held = True
            while name in witness.members:
                await seen.wait()
                seen.clear()
        client.heartbeat_held = False

    async def aclose(self) -> None:
        for client in self._clients:
            await client.close()


@asynccontextmanager
async def log_station(request: pytest.FixtureRequest) -> AsyncIterator[SqliteLogStation]:
    tmp_path: Path = request.getfixturevalue("tmp_path")
    station = SqliteLogStation(tmp_path / "log.db")
    try:
        yield station
    finally:
        await station.aclose()


@asynccontextmanager
async def coordination_station(request: pytest.FixtureRequest) -> AsyncIterator[SqliteCoordinationStation]:
    tmp_path: Path = request.getfixturevalue("tmp_path")
    station = SqliteCoordinationStation(tmp_path / "coordination.db")
    try:
        yield station
    finally:
        await station.aclose()


LOGS = {"sqlite": log_station}
COORDINATIONS = {"sqlite": coordination_station}
