"""Leases in a SQLite file that processes of an older release, which know none, use at the same time."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from statechannel.adapters.sqlite.coordination import SqliteCoordination

A, B = "broker-a:8080", "broker-b:8080"
WAIT_S = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shared.db"


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteCoordination]:
    client = SqliteCoordination(path, session_timeout_s=WAIT_S, request_timeout_s=WAIT_S)
    try:
        await client.start(timeout_s=WAIT_S)
        yield client
    finally:
        await client.close()


def by_hand(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=WAIT_S)) as db:
        for statement in statements:
            db.execute(statement)


async def until(client: SqliteCoordination, holds: Callable[[], bool]) -> None:
    changed = asyncio.Event()
    client.on_change(changed.set)
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await changed.wait()
            changed.clear()


async def test_a_file_without_offices_opens_and_has_them_then(path):
    async with opened(path) as client:
        before = await client.start_incarnation(A, above=40)
    by_hand(path, "DROP TABLE offices")
    async with opened(path) as client:
        broker = await client.start_incarnation(A, above=0)
        assert broker.incarnation > before.incarnation
        assert await client.claim("a-lease", broker)
        await until(client, lambda: client.leases == {"a-lease": broker})


async def test_an_office_ends_with_its_session_even_if_an_older_release_ended_that(path):
    async with opened(path) as client, opened(path) as other:
        a, b = await client.start_incarnation(A, above=0), await other.start_incarnation(B, above=0)
        assert await client.claim("a-lease", a)
        await until(other, lambda: other.leases == {"a-lease": a})
        by_hand(path, f"DELETE FROM sessions WHERE id = '{client.session().id}'")
        await until(other, lambda: not other.leases)
        assert await other.claim("a-lease", b)
        assert not await client.claim("a-lease", a)


async def test_session_ended_by_an_older_release_returns_without_its_leases(path):
    async with opened(path) as client, opened(path) as other:
        a = await client.start_incarnation(A, above=0)
        await client.register(a, b"")
        assert await client.claim("a-lease", a)
        await until(other, lambda: A in other.members and other.leases == {"a-lease": a})
        session = client.session().id
        by_hand(
            path, f"DELETE FROM members WHERE session = '{session}'", f"DELETE FROM sessions WHERE id = '{session}'"
        )
        await until(other, lambda: A not in other.members)
        await client.prove(a)
        await until(other, lambda: A in other.members)
        assert not other.leases
