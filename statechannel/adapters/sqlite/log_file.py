"""Reads a log's file without being a client of the log: as of now, read-only, from any thread or process.

Creates nothing if the file belongs to another user, waits for no other process, and keeps no broker from writing.
Topics, extents and chunks are read by the same functions as in brokers.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Generator, Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec

from statechannel.adapters.sqlite.file import APPLICATION_ID, FORMAT_VERSION, FileUnavailable, ForeignFile, translated
from statechannel.adapters.sqlite.log_tables import OFFSET_BITS, StoredTopic, begins, chunks_between, find_topic

_BUSY_S = 5.0


class Run(msgspec.Struct, frozen=True, gc=False):
    """Consecutive entries that the log took at one moment; the first has the offset `first`."""

    first: int
    appended_ms: int
    payloads: list[tuple[bytes | None, bytes | None]]
    """Key and value of each."""


@contextlib.contextmanager
def opened(path: Path) -> Generator[sqlite3.Connection]:
    """A read-only connection. Raises FileUnavailable or ForeignFile, also for SQLite's errors in the body."""
    unchanging = not (_is_open(path) or _is_ours(path))
    try:
        mode = "immutable=1" if unchanging else "mode=ro"
        uri = f"file:{quote(str(path))}?{mode}"
        db = sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None)
        with contextlib.closing(db):
            _check_format(db, path)
            yield db
    except sqlite3.Error as error:
        raise translated(path, error) from error
    if unchanging and _is_open(path):
        raise FileUnavailable(f"{path}: a broker opened it during the reading; read it again")


def stored_topic(db: sqlite3.Connection, name: str) -> StoredTopic | None:
    """The topic of this name, None if the file has none (yet)."""
    there = db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'topics'").fetchone()[0]
    return find_topic(db, name) if there else None


def runs(db: sqlite3.Connection, topic: StoredTopic, partition: int, start: int, before: int) -> Iterator[Run]:
    """The entries of a partition in `[start, before)`, in order, in runs of up to 1,000.

    Trimmed and replaced entries are not there. Raises ForeignFile for a damaged chunk.
    """
    base = topic.partition_id(partition) << OFFSET_BITS
    start = max(start, begins(db, topic)[partition])
    try:
        for first, appended_ms, rows in chunks_between(db, base, start, before):
            low, high = max(0, start - first), before - first
            if low < len(rows):
                yield Run(first + low, appended_ms, rows[low:high])
    except msgspec.DecodeError as error:
        raise ForeignFile(f"a chunk of {topic.name}/{partition} is damaged: {error}; restore the file") from error


def _is_open(path: Path) -> bool:
    return Path(f"{path}-wal").exists()


def _is_ours(path: Path) -> bool:
    """Whether this user owns the file; then SQLite's files beside it are ours too and block no broker."""
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError as error:
        raise FileUnavailable(f"{path}: {error}; check that this is the brokers' log") from error


def _check_format(db: sqlite3.Connection, path: Path) -> None:
    application = db.execute("PRAGMA application_id").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION_ID:
        raise ForeignFile(f"{path} is not a log of ours; choose another path")
    if version > FORMAT_VERSION:
        raise ForeignFile(f"{path} was written by a newer release (format {version}); upgrade this one")
