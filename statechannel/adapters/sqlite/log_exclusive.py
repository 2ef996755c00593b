"""Exclusive writers of a SQLite log: each id has a number that a new writer raises and every commit checks.

Both are write transactions of one file, and SQLite runs one at a time: an earlier writer's commits all come before the
number is raised, and none after it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from sqlite3 import Connection

import msgspec

from statechannel.adapters.sqlite.log_inserts import (
    Chunk,
    Keeping,
    drop_dead,
    encoded_chunks,
    insert_chunks,
    insert_keyed,
)
from statechannel.errors import LogUnavailable, WriterFenced
from statechannel.ports import Payload

_RAISE = """
    INSERT INTO writers (id, number) VALUES (?, 1)
    ON CONFLICT (id) DO UPDATE SET number = number + 1 RETURNING number"""


class Claim(msgspec.Struct, frozen=True):
    """The number under which a client became the writer of an id."""

    writer_id: str
    number: int

    def check(self, db: Connection) -> None:
        """Check the number, in the transaction that writes. Raises WriterFenced."""
        rows = db.execute("SELECT number FROM writers WHERE id = ?", (self.writer_id,)).fetchall()
        if rows != [(self.number,)]:
            raise WriterFenced(
                f"somebody else became the exclusive writer of {self.writer_id!r}; nothing was written: stop writing"
            )


def raised(db: Connection, writer_id: str) -> Claim:
    """Fence the previous writer of this id; the body of a write transaction."""
    return Claim(writer_id, db.execute(_RAISE, (writer_id,)).fetchall()[0][0])


class Group:
    """The payloads of one commit. Both steps run in the writing thread; only `write` keeps other writers waiting."""

    def __init__(self, claim: Claim, partition_id: int, payloads: Sequence[Payload], keeping: Keeping | None) -> None:
        """`keeping` is None for a plain topic."""
        self._claim, self._partition_id, self._payloads = claim, partition_id, payloads
        self._keeping = keeping
        self._chunks: Sequence[Chunk] = ()

    def prepare(self) -> None:
        if self._keeping is None:
            self._chunks = encoded_chunks(self._payloads)

    def write(self, db: Connection) -> None:
        """The body of a write transaction. Raises WriterFenced."""
        self._claim.check(db)
        now_ms = time.time_ns() // 1_000_000
        if self._keeping is not None:
            insert_keyed(db, self._partition_id, self._payloads, now_ms, self._keeping)
            drop_dead(db, now_ms)
        else:
            insert_chunks(db, self._partition_id, self._chunks, now_ms)


class SqliteExclusiveWriter:
    """`ports.ExclusiveWriter`; has only its claim, and writes through the log that made it."""

    def __init__(self, claim: Claim, commit: Callable[[Claim, str, int, Sequence[Payload]], Awaitable[None]]) -> None:
        self._claim, self._commit = claim, commit
        self._closed = False

    async def commit(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        if self._closed:
            raise LogUnavailable(f"this writer of {self._claim.writer_id!r} is closed: ask the log for a new one")
        await self._commit(self._claim, topic, partition, payloads)

    async def close(self) -> None:
        self._closed = True
