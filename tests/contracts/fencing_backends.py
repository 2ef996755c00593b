"""A counter by key in each fenced store, behind one small face: what a service that keeps its state in memory does.

`raise_and_load` gives the counters of the bundle's range as they are stored, `write` stores the next value. In
`racing` a write stops at each step until somebody else has done something.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import pytest
import redis

from loadmanager.broker.serving import Claim
from loadmanager.fencing import AsyncPostgresStore, AsyncRedisStore, PostgresStore, RedisStore, SqliteStore
from loadmanager.fencing.fences import SqlStore
from statechannel.law.bundle import Key

T = TypeVar("T")
Step = Callable[[str], None]
"""Told the name of each step of a write when it is done."""

CREATE = (
    "CREATE TABLE IF NOT EXISTS {} (namespace TEXT, position BIGINT, value BIGINT, PRIMARY KEY (namespace, position))"
)
LOAD = "SELECT position, value FROM {} WHERE namespace = %s AND position >= %s AND position < %s"
STORE = (
    "INSERT INTO {0} (namespace, position, value) VALUES (%s, %s, %s) "
    "ON CONFLICT (namespace, position) DO UPDATE SET value = excluded.value"
)


class Backend(Protocol):
    def raise_and_load(self, claim: Claim) -> dict[int, int]: ...

    def write(self, claim: Claim, key: str, value: int, step: Step = ...) -> None: ...


def _ignored(_: str) -> None:
    """No race."""


class SqlBackend:
    def __init__(self, store: SqlStore[Any], mark: str, table: str) -> None:
        self.store = store
        self._statements = [text.format(table).replace("%s", mark) for text in (CREATE, LOAD, STORE)]
        store.create()
        with store.transaction() as cursor:
            cursor.execute(self._statements[0])

    def raise_and_load(self, claim: Claim) -> dict[int, int]:
        with self.store.raising(claim) as cursor:
            cursor.execute(self._statements[1], (claim.bundle.namespace, *claim.bundle.bounds))
            return dict(cursor.fetchall())

    def write(self, claim: Claim, key: str, value: int, step: Step = _ignored) -> None:
        if step is _ignored:
            with self.store.writing(claim, key) as cursor:
                cursor.execute(self._statements[2], _row(key, value))
            return
        with self.store.transaction() as cursor:
            step("begun")
            self.store.check(cursor, claim, key)
            step("checked")
            cursor.execute(self._statements[2], _row(key, value))
            step("written")


class Loop:
    """An event loop on a thread, for stores of asyncio."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class AsyncSqlBackend:
    def __init__(self, store: AsyncPostgresStore, loop: Loop, table: str) -> None:
        self.store = store
        self._loop = loop
        self._statements = [text.format(table).encode() for text in (CREATE, LOAD, STORE)]
        loop.run(self._open())

    async def _open(self) -> None:
        await self.store.__aenter__()
        await self.store.create()
        async with self.store.transaction() as cursor:
            await cursor.execute(self._statements[0])

    def raise_and_load(self, claim: Claim) -> dict[int, int]:
        async def work() -> dict[int, int]:
            async with self.store.raising(claim) as cursor:
                await cursor.execute(self._statements[1], (claim.bundle.namespace, *claim.bundle.bounds))
                return dict(await cursor.fetchall())

        return self._loop.run(work())

    def write(self, claim: Claim, key: str, value: int, step: Step = _ignored) -> None:
        async def work() -> None:
            async with self.store.writing(claim, key) as cursor:
                await asyncio.to_thread(step, "checked")
                await cursor.execute(self._statements[2], _row(key, value))
                await asyncio.to_thread(step, "written")

        self._loop.run(work())


class RedisBackend:
    """A hash of each namespace: position to value."""

    def __init__(self, store: RedisStore | AsyncRedisStore, loop: Loop | None, client: redis.Redis) -> None:
        self.store: Any = store
        self._client: Any = client
        self._run: Callable[[Any], Any] = loop.run if loop is not None else lambda done: done

    def raise_and_load(self, claim: Claim) -> dict[int, int]:
        self._run(self.store.raise_fence(claim))
        stored = self._client.hgetall(_hash(claim.bundle.namespace))
        return {int(key): int(value) for key, value in stored.items() if int(key) in claim.bundle}

    def write(self, claim: Claim, key: str, value: int, step: Step = _ignored) -> None:
        topic = Key.parse(key)
        self._run(self.store.command(claim, key, "HSET", _hash(topic.namespace), topic.position, value))
        step("written")


def _hash(namespace: str) -> str:
    return f"counters:{{{namespace}}}"


def _row(key: str, value: int) -> tuple[str, int, int]:
    topic = Key.parse(key)
    return topic.namespace, topic.position, value


@contextmanager
def sqlite(request: pytest.FixtureRequest) -> Generator[SqlBackend]:
    path = request.getfixturevalue("tmp_path") / "service.db"
    with SqliteStore(path, timeout_s=30) as store:
        yield SqlBackend(store, "?", "counter")


@contextmanager
def postgresql(request: pytest.FixtureRequest) -> Generator[SqlBackend]:
    table = f"counter_{uuid.uuid4().hex[:8]}"
    url = request.getfixturevalue("postgres_server").url
    with PostgresStore(url, table=f"fence_{table}") as store:
        yield SqlBackend(store, "%s", table)


@contextmanager
def async_postgresql(request: pytest.FixtureRequest) -> Generator[AsyncSqlBackend]:
    table, loop = f"counter_{uuid.uuid4().hex[:8]}", Loop()
    store = AsyncPostgresStore(request.getfixturevalue("postgres_server").url, table=f"fence_{table}")
    try:
        yield AsyncSqlBackend(store, loop, table)
    finally:
        loop.run(store.close())
        loop.close()


@contextmanager
def redis_(request: pytest.FixtureRequest) -> Generator[RedisBackend]:
    url = request.getfixturevalue("redis_server").url
    with RedisStore(url) as store, redis.Redis.from_url(url) as client:
        client.flushall()
        yield RedisBackend(store, None, client)


@contextmanager
def async_redis(request: pytest.FixtureRequest) -> Generator[RedisBackend]:
    url, loop = request.getfixturevalue("redis_server").url, Loop()
    store = AsyncRedisStore(url)
    try:
        with redis.Redis.from_url(url) as client:
            client.flushall()
            yield RedisBackend(store, loop, client)
    finally:
        loop.run(store.close())
        loop.close()


BACKENDS = [
    pytest.param(sqlite, id="sqlite"),
    pytest.param(postgresql, id="postgresql", marks=pytest.mark.postgresql),
    pytest.param(async_postgresql, id="postgresql-async", marks=pytest.mark.postgresql),
    pytest.param(redis_, id="redis", marks=pytest.mark.redis),
    pytest.param(async_redis, id="redis-async", marks=pytest.mark.redis),
]
