"""Fences and the service's own tables in PostgreSQL, with psycopg 3: `PostgresStore`, `AsyncPostgresStore`.

A write locks the fence at its key (FOR SHARE) until it commits, and a new owner that raises this fence waits for that.
A former owner that hangs within a transaction would block its successor. So the server ends the connection, and rolls
back what was written, after `idle_timeout_s` in which the transaction was idle, or its client left rows unread or
packets unacknowledged. The last two hold over TCP only: a socket file has no such limit.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import TYPE_CHECKING, Any, Self

from loadmanager.broker.serving import Claim
from loadmanager.fencing.fences import DEFAULT_TABLE, Fences, SqlStore, Steps, driver, run
from statechannel.law.bundle import Key

if TYPE_CHECKING:
    from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor

IDLE_TIMEOUT_S = 5.0


class PostgresStore(SqlStore["Cursor[Any]"]):
    """Fences in PostgreSQL, for threads.

    `where` is an address (`postgresql://…`, for a pool of the store's own), or a function that returns a connection as
    a context: `pool.connection`, or `lambda: psycopg.connect(…)`.
    """

    def __init__(
        self,
        where: str | Callable[[], AbstractContextManager[Connection[Any]]],
        *,
        table: str = DEFAULT_TABLE,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
    ) -> None:
        self._fences = _fences(table)
        self._begin = _begin(idle_timeout_s)
        self._pool = _own_pool("ConnectionPool", where)
        self._connecting: Callable[[], AbstractContextManager[Connection[Any]]] = (
            where if callable(where) else self._pool.connection
        )

    def __enter__(self) -> Self:
        if self._pool is not None:
            self._pool.open()
        return self

    def close(self) -> None:
        """Close the own pool."""
        if self._pool is not None:
            self._pool.close()

    @contextmanager
    def transaction(self) -> Generator[Cursor[Any]]:
        """As `SqlStore.transaction`. Its isolation is READ COMMITTED."""
        with self._connecting() as connection, connection.transaction(), connection.cursor() as cursor:
            cursor.execute(self._begin)
            yield cursor

    def _run(self, cursor: Cursor[Any], steps: Steps) -> None:
        with cursor.connection.cursor(row_factory=driver("psycopg.rows", "postgresql").tuple_row) as own:
            run(own, steps)


class AsyncPostgresStore:
    """`PostgresStore` for asyncio, with `await` and `async with`. `async with` opens the store's own pool."""

    def __init__(
        self,
        where: str | Callable[[], AbstractAsyncContextManager[AsyncConnection[Any]]],
        *,
        table: str = DEFAULT_TABLE,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
    ) -> None:
        self._fences = _fences(table)
        self._begin = _begin(idle_timeout_s)
        self._pool = _own_pool("AsyncConnectionPool", where)
        self._connecting: Callable[[], AbstractAsyncContextManager[AsyncConnection[Any]]] = (
            where if callable(where) else self._pool.connection
        )

    async def __aenter__(self) -> Self:
        if self._pool is not None:
            await self._pool.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the own pool."""
        if self._pool is not None:
            await self._pool.close()

    async def create(self) -> None:
        """As `SqlStore.create`."""
        async with self.transaction() as cursor:
            await self._run(cursor, self._fences.creating())

    @asynccontextmanager
    async def raising(self, claim: Claim) -> AsyncGenerator[AsyncCursor[Any]]:
        """As `SqlStore.raising`."""
        async with self.transaction() as cursor:
            await self.raise_fence(cursor, claim)
            yield cursor

    @asynccontextmanager
    async def writing(self, claim: Claim, key: str | Key) -> AsyncGenerator[AsyncCursor[Any]]:
        """As `SqlStore.writing`."""
        async with self.transaction() as cursor:
            await self.check(cursor, claim, key)
            yield cursor

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[AsyncCursor[Any]]:
        """As `PostgresStore.transaction`."""
        async with self._connecting() as connection, connection.transaction(), connection.cursor() as cursor:
            await cursor.execute(self._begin)
            yield cursor

    async def raise_fence(self, cursor: AsyncCursor[Any], claim: Claim) -> None:
        """As `SqlStore.raise_fence`."""
        await self._run(cursor, self._fences.raising(claim))

    async def check(self, cursor: AsyncCursor[Any], claim: Claim, key: str | Key) -> None:
        """As `SqlStore.check`."""
        await self._run(cursor, self._fences.checking(claim, key))

    async def _run(self, cursor: AsyncCursor[Any], steps: Steps) -> None:
        rows: Any = None
        async with cursor.connection.cursor(row_factory=driver("psycopg.rows", "postgresql").tuple_row) as own:
            with suppress(StopIteration):
                while True:
                    statement, parameters = steps.send(rows)
                    await own.execute(statement.encode(), parameters)
                    rows = await own.fetchall() if own.description else []


def _fences(table: str) -> Fences:
    alone = f"SELECT pg_advisory_xact_lock(hashtextextended('{table} ' || %s, 0))"
    return Fences(table, shared="FOR SHARE", alone=alone)


def _begin(idle_timeout_s: float) -> bytes:
    """Begins a transaction: READ COMMITTED, so that each statement sees what a former owner has just committed."""
    timeout_ms = int(1000 * idle_timeout_s)
    return (
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; "
        f"SET LOCAL idle_in_transaction_session_timeout = {timeout_ms}; SET LOCAL tcp_user_timeout = {timeout_ms}"
    ).encode()


def _own_pool(kind: str, where: object) -> Any:
    if not isinstance(where, str):
        return None
    driver("psycopg", "postgresql")
    return getattr(driver("psycopg_pool", "postgresql"), kind)(where, open=False)
