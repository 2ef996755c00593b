"""A session on SQLite that is abandoned while its file takes no write: it must end all the same."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

from statechannel.adapters.sqlite.coordination import SqliteCoordination
from statechannel.errors import CoordinationUnavailable
from statechannel.law.record import BrokerId
from tests.contracts.hanging import abandon_from_a_thread

NAME = "broker-a:8080"
WAIT_S = 30


@asynccontextmanager
async def opened(path: Path) -> AsyncGenerator[SqliteCoordination]:
    client = SqliteCoordination(path, session_timeout_s=1.0, request_timeout_s=0.3)
    await client.start(WAIT_S)
    try:
        yield client
    finally:
        await client.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0.01)


async def started(client: SqliteCoordination) -> BrokerId:
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                broker = await client.start_incarnation(NAME, above=0)
                await client.register(broker, b"")
            except CoordinationUnavailable:
                continue
            return broker


async def abandon_in_vain(client: SqliteCoordination, path: Path) -> None:
    """The file is locked until the thread that writes has given up."""
    writer_thread = client._writer_thread
    assert writer_thread is not None
    with closing(sqlite3.connect(path, isolation_level=None)) as lock:
        lock.execute("BEGIN IMMEDIATE")
        abandon_from_a_thread(client)
        await until(lambda: writer_thread._queue.empty() and writer_thread._writing_since_s is None)


async def test_a_session_that_could_not_be_ended_at_once_ends_by_its_time_out(tmp_path: Path):
    path = tmp_path / "coordination.db"
    async with opened(path) as client, opened(path) as other:
        await started(client)
        await until(lambda: NAME in other.members)
        await abandon_in_vain(client, path)
        await until(lambda: NAME not in other.members)


async def test_the_next_incarnation_does_not_keep_alive_what_the_one_before_held(tmp_path: Path):
    path = tmp_path / "coordination.db"
    async with opened(path) as client, opened(path) as other:
        leadership = await client.campaign(await started(client))
        await until(lambda: other.leadership == leadership)
        await abandon_in_vain(client, path)
        new = await started(client)
        await until(lambda: other.leadership is None)
        assert other.members[NAME].broker == new
