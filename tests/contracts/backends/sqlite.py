"""Where clients of the SQLite adapters meet: one file in the test's own directory."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from statechannel.adapters.sqlite.coordination import SqliteCoordination
from statechannel.adapters.sqlite.log import MAX_PAYLOAD_BYTES, SqliteLog
from tests.contracts.hanging import abandon_from_a_thread


class SqliteLogBackend:
    max_payload_bytes = MAX_PAYLOAD_BYTES

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clients: list[SqliteLog] = []

    async def open(self) -> SqliteLog:
        client = SqliteLog(self._path, append_timeout_s=30.0)
        self._clients.append(client)
        await client.start(timeout_s=60)
        return client

    def topic(self, name: str) -> str:
        return f"{name}-{uuid.uuid4().hex[:8]}"

    async def aclose(self) -> None:
        for client in self._clients:
            await client.close()


class SqliteCoordinationBackend:
    session_timeout_s = 3.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clients: list[SqliteCoordination] = []

    async def open(self) -> SqliteCoordination:
        client = SqliteCoordination(self._path, session_timeout_s=self.session_timeout_s, request_timeout_s=30.0)
        self._clients.append(client)
        await client.start(timeout_s=60)
        return client

    def abandon(self, client: SqliteCoordination) -> None:
        abandon_from_a_thread(client)

    async def expire(self, client: SqliteCoordination) -> None:
        """Hold its heartbeat, as if for long, until another client has ended the session and has seen that."""
        witness = await self.open()
        name = f"witness-of-expiry-{uuid.uuid4().hex}"
        marker = await client.start_incarnation(name, above=0)
        await client.register(marker, b"")
        seen = asyncio.Event()
        witness.on_change(seen.set)
        async with asyncio.timeout(60):
            while name not in witness.members:
                await seen.wait()
                seen.clear()
            client.heartbeat_held = True
            await asyncio.to_thread(self._unheard, client)
            while name in witness.members:
                await seen.wait()
                seen.clear()
        client.heartbeat_held = False

    async def wipe(self) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=60)) as db:
            db.executescript(
                "BEGIN IMMEDIATE; DELETE FROM identity; DELETE FROM root; DELETE FROM incarnations;"
                "DELETE FROM members; DELETE FROM offices;"
                "UPDATE election SET epoch = 0, name = NULL, incarnation = NULL; COMMIT"
            )

    def _unheard(self, client: SqliteCoordination) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=60)) as db:
            db.execute("UPDATE sessions SET heard_ms = 0 WHERE id = ?", (client.session().id,))

    async def aclose(self) -> None:
        for client in self._clients:
            await client.close()


@asynccontextmanager
async def log_backend(request: pytest.FixtureRequest) -> AsyncIterator[SqliteLogBackend]:
    tmp_path: Path = request.getfixturevalue("tmp_path")
    backend = SqliteLogBackend(tmp_path / "log.db")
    try:
        yield backend
    finally:
        await backend.aclose()


@asynccontextmanager
async def coordination_backend(request: pytest.FixtureRequest) -> AsyncIterator[SqliteCoordinationBackend]:
    tmp_path: Path = request.getfixturevalue("tmp_path")
    backend = SqliteCoordinationBackend(tmp_path / "coordination.db")
    try:
        yield backend
    finally:
        await backend.aclose()


LOGS = {"sqlite": log_backend}
COORDINATIONS = {"sqlite": coordination_backend}
