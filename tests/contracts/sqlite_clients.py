"""Clients of one SQLite log for its adapter's own tests: in this process, in others, and those that keep it locked."""

from __future__ import annotations

import asyncio
import fcntl
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import TypeVar

from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.errors import LogUnavailable
from statechannel.ports import TopicSpec

WAIT_S = 60
TOPIC = "channel"
PROGRAM = Path(__file__).with_name("log_process.py")

T = TypeVar("T")


@asynccontextmanager
async def opened_log(path: Path, **settings) -> AsyncIterator[SqliteLog]:
    log = SqliteLog(path, **{"append_timeout_s": 30.0, **settings})
    await log.start(timeout_s=WAIT_S)
    try:
        await at_last(lambda: log.open_topic(TopicSpec(TOPIC, partitions=1)))
        yield log
    finally:
        await log.close()


async def at_last(ask: Callable[[], Awaitable[T]]) -> T:
    """What a log that is well says: a slow machine may need longer than the short time-out that a test has chosen."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await ask()
            except LogUnavailable:
                await asyncio.sleep(0)


@asynccontextmanager
async def process(path: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), str(path), *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def line(child: asyncio.subprocess.Process) -> str:
    assert child.stdout is not None
    return (await asyncio.wait_for(child.stdout.readline(), WAIT_S)).decode().strip()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process's write transaction that does not end."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


@contextmanager
def turn_kept(path: Path) -> Iterator[None]:
    """Another process that was stopped just as its turn to write had come."""
    with open(f"{path}-turn", "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield


async def read(log: SqliteLog, count: int, start: int = 0) -> list[str]:
    """At least `count` values of a tail."""
    texts: list[str] = []
    async with asyncio.timeout(WAIT_S), aclosing(log.tail(TOPIC, [start])) as tail:
        while len(texts) < count:
            texts += [(entry.value or b"").decode() for entry in await anext(tail)]
    return texts


def rows(path: Path, sql: str) -> list[tuple]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()
