"""Trims a SQLite log: raises the begin of a partition in one step, then removes the rows below in small steps.

Readers go by the begin alone, so a trim counts as soon as that one row is committed. The rows below are *swept*
afterwards, a few MB in each transaction, so that no append waits for a trim of gigabytes. After a crash the next
process that opens the file goes on with the sweep. SQLite reuses the freed space before the file grows again.
"""

from __future__ import annotations

import sqlite3
import time

from statechannel.adapters.sqlite.file import FileUnavailable, ForeignFile, SqliteFile
from statechannel.adapters.sqlite.topics import OFFSET_BITS

_STEP_BYTES = 4 << 20
_STEP_CHUNKS = 2_000
_STEP_WAIT_S = 1.0
_RETRY_S = 0.5

_RAISE_BEGIN = """
    INSERT INTO begins (id, begin_offset) SELECT id, min(?, next_offset) FROM partitions WHERE id = ?
    ON CONFLICT (id) DO UPDATE SET begin_offset = max(begin_offset, excluded.begin_offset)"""
_EXTENT = "SELECT begin_offset, next_offset FROM begins JOIN partitions USING (id) WHERE id = ?"
_CHUNK_WITH = "SELECT max(place) FROM chunks WHERE place >= ? AND place <= ?"
_STEP_TO = """
    SELECT max(place) FROM (
        SELECT place, sum(size) OVER (ORDER BY place ROWS UNBOUNDED PRECEDING) - size AS bytes_before FROM (
            SELECT place, length(entries) AS size FROM chunks WHERE place >= ? AND place < ? ORDER BY place LIMIT ?))
    WHERE bytes_before < ?"""


def raise_begin(db: sqlite3.Connection, partition_id: int, before: int) -> None:
    """The body of a trim's transaction: raise the begin to `before`, at most to the end."""
    db.execute(_RAISE_BEGIN, (before, partition_id))


class Sweeper:
    """Removes rows below the begins, step by step, for the thread that owns `file`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._pending: list[int] | None = None
        """Partitions that may have rows to sweep; None before the first look at what other processes left."""
        self._not_before_s = 0.0

    def add(self, partition_id: int) -> None:
        if self._pending is not None and partition_id not in self._pending:
            self._pending.append(partition_id)

    @property
    def wait_s(self) -> float | None:
        """How long the thread may be idle before the next step; None if there is nothing to sweep."""
        return None if self._pending == [] else max(0.0, self._not_before_s - time.monotonic())

    def step(self) -> None:
        """One small transaction, if there is something to sweep; a failed step is tried again later."""
        if self.wait_s != 0:
            return
        began_s = time.monotonic()
        try:
            if self._pending is None:
                self._pending = [row[0] for row in self._file.db.execute("SELECT id FROM begins").fetchall()]
            elif not self._sweep(self._pending[0]):
                self._pending.pop(0)
            ended_s = time.monotonic()
            self._not_before_s = ended_s + (ended_s - began_s)  # leaves half of the time to other writers
        except (sqlite3.Error, FileUnavailable, ForeignFile):
            self._not_before_s = time.monotonic() + _RETRY_S

    def _sweep(self, partition_id: int) -> bool:
        """Remove the next rows; whether there were any."""
        to = self._step_to(partition_id)
        if to is None:
            return False
        with self._file.transaction(time.monotonic() + _STEP_WAIT_S, durable=False) as db:
            db.execute("DELETE FROM chunks WHERE place >= ? AND place <= ?", (partition_id << OFFSET_BITS, to))
        return True

    def _step_to(self, partition_id: int) -> int | None:
        """The last place that the next step removes, None if nothing is left."""
        db, base = self._file.db, partition_id << OFFSET_BITS
        begin, end = db.execute(_EXTENT, (partition_id,)).fetchall()[0]
        kept = base + end
        if begin < end:  # the chunk with the entry at `begin` stays whole
            kept = db.execute(_CHUNK_WITH, (base, base + begin)).fetchall()[0][0] or base
        return db.execute(_STEP_TO, (base, kept, _STEP_CHUNKS, _STEP_BYTES)).fetchall()[0][0]
