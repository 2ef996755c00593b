"""The counters' storage: one SQLite file for all brokers, written in group commits by one thread in each of them.

Exactly once: an increment and its request id are one row, so a repeated request finds the first answer.

Fenced: an owner that was replaced may not know it yet, and its writes must not count. `SqliteStore` ensures that: a new
owner raises the fence of its range before it reads a single counter, and each increment is checked in the transaction
that stores it.

A planned move need not read the file: `close` ends the old ownership in this process, after all earlier requests, and
returns the counters for the hand-off.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from loadmanager import Bundle, Claim, FencedOut, Key, NotServing, Token
from loadmanager.fencing import SqliteStore

SCHEMA = """
CREATE TABLE IF NOT EXISTS counter (
    namespace TEXT, position INTEGER, topic TEXT, value INTEGER NOT NULL,
    PRIMARY KEY (namespace, position, topic)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS increment (
    topic TEXT, request_id TEXT, value INTEGER NOT NULL, token TEXT NOT NULL, broker TEXT NOT NULL,
    PRIMARY KEY (topic, request_id)) WITHOUT ROWID;
"""

BATCH = 256
WAITING = 10_000


class LedgerUnavailable(NotServing):
    """The file takes no write now (full disk, lock held for too long); nothing was written."""


class Held(msgspec.Struct):
    """A bundle's counters in memory, under the ownership that loaded them. Changed by the ledger's thread only."""

    claim: Claim
    values: dict[str, int]
    closed: bool = False


class Stored(msgspec.Struct, frozen=True):
    """A stored increment: its value, by which broker, under which token."""

    value: int
    broker: str
    token: str


class _Increment(msgspec.Struct, frozen=True):
    held: Held
    topic: Key
    request_id: str
    answer: asyncio.Future[Stored]


class _Opening(msgspec.Struct, frozen=True):
    claim: Claim
    handed: dict[str, int] | None
    answer: asyncio.Future[Held]


class _Closing(msgspec.Struct, frozen=True):
    held: Held
    answer: asyncio.Future[dict[str, int]]


_Job = _Increment | _Opening | _Closing


class Ledger:
    """Use: `async with`. Belongs to the loop that entered it."""

    def __init__(self, path: Path, broker: str = "") -> None:
        self.path = path
        self.broker = broker
        self._store = SqliteStore(path)
        self._jobs: queue.Queue[_Job | None] = queue.Queue(WAITING)

    async def __aenter__(self) -> Ledger:
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._create)
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._jobs.put, None)
        await asyncio.to_thread(self._thread.join)
        self._store.close()

    def _create(self) -> None:
        self._store.create()
        with self._store.transaction() as cursor:
            for statement in filter(str.strip, SCHEMA.split(";")):
                cursor.execute(statement)

    async def open(self, bundle: Bundle, token: Token, handed: dict[str, int] | None = None) -> Held:
        """Raise the fence of the bundle's range, then load its counters, unless the last owner has handed them over.

        Raises FencedOut, LedgerUnavailable.
        """
        answer: asyncio.Future[Held] = self._loop.create_future()
        self._put(_Opening(Claim(bundle, token), handed, answer))
        return await answer

    async def increment(self, held: Held, topic: Key, request_id: str) -> Stored:
        """Add one and return when that is stored; a repeated request id gets its first answer.

        Raises FencedOut, LedgerUnavailable: then nothing was stored.
        """
        answer: asyncio.Future[Stored] = self._loop.create_future()
        self._put(_Increment(held, topic, request_id, answer))
        return await answer

    async def close(self, held: Held) -> dict[str, int]:
        """Write nothing more under this ownership; returns its counters as stored. Raises LedgerUnavailable."""
        answer: asyncio.Future[dict[str, int]] = self._loop.create_future()
        self._put(_Closing(held, answer))
        return await answer

    def _put(self, job: _Job) -> None:
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise LedgerUnavailable(f"{WAITING} writes are waiting already; try again") from None

    # --- on the ledger's thread

    def _work(self) -> None:
        while (first := self._jobs.get()) is not None:
            batch, ending = [first], False
            while len(batch) < BATCH and not ending:
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
                ending = job is None
                batch += [] if job is None else [job]
            outcomes = self._commit(batch)
            self._loop.call_soon_threadsafe(_answer, batch, outcomes)
            if ending:
                return

    def _commit(self, batch: Sequence[_Job]) -> list[Any]:
        """Commit a batch in one transaction; returns each job's result: a value, or an exception."""
        made = _Made()
        writes = any(not isinstance(job, _Closing) for job in batch)
        try:
            with self._store.transaction() if writes else contextlib.nullcontext() as db:
                outcomes = [self._one(db, job, made) for job in batch]
        except (sqlite3.Error, OSError) as error:
            return [LedgerUnavailable(f"{self.path}: {error}")] * len(batch)
        made.keep()
        return outcomes

    def _one(self, db: Any, job: _Job, made: _Made) -> object:
        try:
            match job:
                case _Opening():
                    self._store.raise_fence(db, job.claim)
                    return Held(job.claim, load(db, job.claim.bundle) if job.handed is None else job.handed)
                case _Closing():
                    job.held.closed = True
                    return made.values(job.held)
                case _Increment():
                    return self._increment(db, job, made)
        except FencedOut as refusal:
            return refusal

    def _increment(self, db: sqlite3.Cursor, job: _Increment, made: _Made) -> Stored:
        held, topic, token = job.held, job.topic, str(job.held.claim.token)
        if held.closed:
            raise FencedOut(f"{held.claim.bundle} is handed over")
        self._store.check(db, held.claim, topic)
        value = made.value(held, topic.full_name) + 1
        row = (topic.full_name, job.request_id, value, token, self.broker)
        if not db.execute("INSERT OR IGNORE INTO increment VALUES (?, ?, ?, ?, ?)", row).rowcount:
            question = "SELECT value, broker, token FROM increment WHERE topic = ? AND request_id = ?"
            return Stored(*db.execute(question, row[:2]).fetchone())
        db.execute(
            "INSERT INTO counter VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
            (topic.namespace, topic.position, topic.full_name, value),
        )
        made.put(held, topic.full_name, value)
        return Stored(value, self.broker, token)


class _Made:
    """Changes of a transaction to the counters in memory; applied once it is committed."""

    def __init__(self) -> None:
        self._new: dict[int, tuple[Held, dict[str, int]]] = {}

    def value(self, held: Held, topic: str) -> int:
        new = self._new.get(id(held))
        return new[1][topic] if new is not None and topic in new[1] else held.values.get(topic, 0)

    def put(self, held: Held, topic: str, value: int) -> None:
        self._new.setdefault(id(held), (held, {}))[1][topic] = value

    def values(self, held: Held) -> dict[str, int]:
        new = self._new.get(id(held))
        return {**held.values, **(new[1] if new is not None else {})}

    def keep(self) -> None:
        for held, values in self._new.values():
            held.values.update(values)


def _answer(batch: Sequence[_Job], outcomes: Sequence[Any]) -> None:
    for job, outcome in zip(batch, outcomes, strict=True):
        if job.answer.done():
            continue  # the caller gave up
        if isinstance(outcome, Exception):
            job.answer.set_exception(outcome)
        else:
            job.answer.set_result(outcome)


def load(db: sqlite3.Cursor, bundle: Bundle) -> dict[str, int]:
    """The stored counters of a range."""
    question = "SELECT topic, value FROM counter WHERE namespace = ? AND position >= ? AND position < ?"
    return dict(db.execute(question, (bundle.namespace, *bundle.bounds)).fetchall())
