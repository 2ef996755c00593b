"""Fences and the service's own tables in one SQLite file, for several processes of one machine: `SqliteStore`."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from loadmanager.fencing.fences import DEFAULT_TABLE, Fences, Steps
from loadmanager.fencing.sql import SqlStore, run
from statechannel.runtime.forking import close_in_children, forget

BUSY_TIMEOUT_S = 5.0
_RETRY_S = 0.001
"""Our own pause between attempts, since SQLite's waiting sleeps in steps of up to 100 ms."""


class SqliteStore(SqlStore[sqlite3.Cursor]):
    """Fences in a SQLite file, which it creates if missing: with a write-ahead log and durable commits.

    One transaction runs at a time, of any process; writers queue in the kernel (`FILE-turn`). Raises
    sqlite3.OperationalError if another program locks the file for `timeout_s`. An asyncio service calls it with
    `asyncio.to_thread`.
    """

    def __init__(self, path: Path | str, *, table: str = DEFAULT_TABLE, timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self._fences = Fences(table)
        self._path = path
        self._timeout_s = timeout_s
        self._idle: list[sqlite3.Connection] = []
        self._within = threading.local()

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Cursor]:
        """As `SqlStore.transaction`. Raises RuntimeError if this thread is in a transaction already."""
        if getattr(self._within, "one", False):
            raise RuntimeError("this thread is in a transaction already: use its cursor, with `check` or `raise_fence`")
        with self._turn():
            self._within.one = True
            try:
                with self._begun() as cursor:
                    yield cursor
            finally:
                self._within.one = False

    @contextmanager
    def _turn(self) -> Generator[None]:
        """Makes waiting quick and fair; SQLite's own lock keeps writers apart."""
        turn = os.open(f"{self._path}-turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        close_in_children(turn)
        try:
            fcntl.flock(turn, fcntl.LOCK_EX)
            yield
        finally:
            forget(turn)
            os.close(turn)

    @contextmanager
    def _begun(self) -> Generator[sqlite3.Cursor]:
        try:
            db = self._idle.pop()
        except IndexError:
            db = self._connect()
        try:
            self._once_unlocked(lambda: db.execute("BEGIN IMMEDIATE"))
            yield db.cursor()
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")
            self._idle.append(db)

    def _run(self, cursor: sqlite3.Cursor, steps: Steps) -> None:
        run(cursor, steps, "?")

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            self._once_unlocked(lambda: db.execute("PRAGMA journal_mode = WAL"))
            db.execute("PRAGMA synchronous = FULL")
        except BaseException:
            db.close()
            raise
        return db

    def _once_unlocked(self, step: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                step()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline_s:
                    raise
                time.sleep(_RETRY_S)
            else:
                return
