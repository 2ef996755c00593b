"""Fences and the service's own tables in one SQLite file, for several processes of one machine: `SqliteStore`."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from loadmanager.fencing.fences import DEFAULT_TABLE, Fences, SqlStore, Steps, run
from statechannel.runtime.turn import Turn, TurnTaken

BUSY_TIMEOUT_S = 5.0
_RETRY_S = 0.001
"""Our own pause between attempts, since SQLite's waiting sleeps in steps of up to 100 ms."""


class SqliteStore(SqlStore[sqlite3.Cursor]):
    """Fences in a SQLite file, which it creates if missing: with a write-ahead log and durable commits.

    One transaction runs at a time, of any process; writers queue in the kernel (`FILE-turn`). Raises
    sqlite3.OperationalError if another process has the file for `timeout_s`, with its number. An asyncio service calls
    it with `asyncio.to_thread`.
    """

    def __init__(self, path: Path | str, *, table: str = DEFAULT_TABLE, timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self._fences = Fences(table)
        self._path = path
        self._timeout_s = timeout_s
        self._turns: list[Turn] = []
        """Connections that no thread uses."""
        self._idle: list[sqlite3.Connection] = []
        self._within = threading.local()

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()
        while self._turns:
            self._turns.pop().close()

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Cursor]:
        """As `SqlStore.transaction`. Raises RuntimeError if this thread is in a transaction already."""
        if getattr(self._within, "one", False):
            raise RuntimeError("this thread is in a transaction already: use its cursor, with `check` or `raise_fence`")
        deadline_s = time.monotonic() + self._timeout_s
        with self._turn(deadline_s):
            self._within.one = True
            try:
                with self._begun(deadline_s) as cursor:
                    yield cursor
            finally:
                self._within.one = False

    @contextmanager
    def _turn(self, deadline_s: float) -> Generator[None]:
        """Makes waiting quick and fair; SQLite's own lock keeps writers apart."""
        try:
            turn = self._turns.pop()
        except IndexError:
            turn = Turn(f"{self._path}-turn")
        try:
            turn.take(deadline_s)
            yield
        except TurnTaken as error:
            raise sqlite3.OperationalError(f"{self._path}: {error}") from error
        finally:
            turn.end()
            self._turns.append(turn)

    @contextmanager
    def _begun(self, deadline_s: float) -> Generator[sqlite3.Cursor]:
        try:
            db = self._idle.pop()
        except IndexError:
            db = self._connect(deadline_s)
        try:
            _once_unlocked(deadline_s, lambda: db.execute("BEGIN IMMEDIATE"))
            yield db.cursor()
            db.execute("COMMIT")
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")
            self._idle.append(db)

    def _run(self, cursor: sqlite3.Cursor, steps: Steps) -> None:
        run(cursor, steps, "?")

    def _connect(self, deadline_s: float) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            _once_unlocked(deadline_s, lambda: db.execute("PRAGMA journal_mode = WAL"))
            db.execute("PRAGMA synchronous = FULL")
        except BaseException:
            db.close()
            raise
        return db


def _once_unlocked(deadline_s: float, step: Callable[[], object]) -> None:
    while True:
        try:
            step()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline_s:
                raise
            time.sleep(_RETRY_S)
        else:
            return
