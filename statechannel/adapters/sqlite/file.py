"""One SQLite file that several processes of one machine share: opens it, checks whose it is, runs transactions.

Knows nothing of logs or sessions. Raises only `FileUnavailable` (transient: try again) and `ForeignFile` (permanent: an
operator must act), both with the path and what to do; the adapters translate them into the errors of the ports.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sqlite3
import stat
import time
from collections.abc import Callable, Generator
from pathlib import Path

from statechannel.errors import LogError, LogUnavailable, TopicMismatch
from statechannel.runtime.turn import Turn, TurnTaken, holders_of

_log = logging.getLogger(__name__)

APPLICATION_ID = 0x4C4D5343  # "LMSC"
FORMAT_VERSION = 1
_FIRST_RETRY_S, _LAST_RETRY_S = 0.0003, 0.002
_CHECKPOINT_PAGES = 1_000
_WAL_KEPT_BYTES = 8 << 20  # a larger write-ahead log is truncated to this after a commit
WAL_LARGE_BYTES = 64 << 20
"""A write-ahead log larger than this is one that SQLite cannot empty: a reader does not end its transaction."""
_WAL_LOOKED_AT = 1_000
"""How many transactions pass between two looks at the size of the write-ahead log."""
_WRITER, _READERS = range(120, 121), range(123, 128)
"""The bytes of the file `-shm` that a writer, and readers, lock within a transaction: SQLite's wal.c."""
_QUIET_S = 2.0
"""A start that waits longer than this logs what it waits for."""

_ADVICE = {
    sqlite3.SQLITE_FULL: "the disk is full; free some space, writing resumes by itself",
    sqlite3.SQLITE_IOERR: "the disk reports an error; check its space, quota and health",
    sqlite3.SQLITE_READONLY: "it is read-only; make the file and its directory writable for this user",
    sqlite3.SQLITE_BUSY: "another process keeps it locked; look for one that is stopped or very slow",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; create its directory and make it writable for this user",
    sqlite3.SQLITE_CORRUPT: "it is damaged; restore it from a backup",
    sqlite3.SQLITE_NOTADB: "it is not an SQLite database; choose another path",
}
_PERMANENT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class FileUnavailable(Exception):
    """The file cannot be read or written at present."""


class FileFull(FileUnavailable):
    """The disk takes no further write. Locking and reading still work."""


class ForeignFile(Exception):
    """The file is not ours, is damaged, or is of a newer release."""


def translated(path: Path, error: sqlite3.Error) -> FileUnavailable | ForeignFile:
    """SQLite's error as one of ours, with the path and what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    advice = _ADVICE.get(code, "SQLite refuses")
    if code == sqlite3.SQLITE_BUSY and (writers := holders_of(f"{path}-shm", _WRITER)):
        advice = f"{', '.join(writers)} keeps it locked: end its transaction, or resume or end the process"
    text = f"{path}: {advice} ({error})"
    if code in _PERMANENT:
        return ForeignFile(text)
    return FileFull(text) if code == sqlite3.SQLITE_FULL else FileUnavailable(text)


class SqliteFile:
    """One connection to the file, for the thread that made it.

    Creates a missing file, readable by this user alone, with `schema`; SQLite's files beside it get the same mode.
    Takes other users' access from a file of an earlier release. Does not touch a file of another application.
    `check_same` refuses a file that was removed or replaced after it was opened: processes would diverge.
    """

    def __init__(self, path: Path, schema: str, deadline_s: float) -> None:
        self.path = path
        self._durable: bool | None = None
        self._large = False
        self._turn = Turn(f"{path}-turn")
        self._transactions = 0
        self._warned_bytes = 0
        _make_private(path)
        try:
            self.db = sqlite3.connect(path, timeout=0, isolation_level=None, cached_statements=256)
        except sqlite3.Error as error:
            raise translated(path, error) from error
        try:
            self._prepare_aloud(schema, deadline_s)
        except BaseException:
            self.close()
            raise

    def _prepare_aloud(self, schema: str, deadline_s: float) -> None:
        quiet_until_s = time.monotonic() + _QUIET_S
        try:
            self._prepare(schema, min(quiet_until_s, deadline_s))
        except FileUnavailable as error:
            if time.monotonic() < min(quiet_until_s, deadline_s) or (left_s := deadline_s - time.monotonic()) <= 0:
                raise
            _log.warning("starting: %s; waits for it for another %.0f s", error, left_s)
            self._prepare(schema, deadline_s)

    def _prepare(self, schema: str, deadline_s: float) -> None:
        db = self.db
        try:
            _until(deadline_s, self._check_ours)
            _until(deadline_s, lambda: db.execute("PRAGMA journal_mode = WAL").fetchall())
            db.execute("PRAGMA secure_delete = OFF").fetchall()  # some builds overwrite deleted rows by default
            db.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT_BYTES}").fetchall()
            with self.transaction(deadline_s):
                self._check_ours()
                for statement in schema.split(";"):
                    db.execute(statement)
                if _pragma(db, "application_id") != APPLICATION_ID:
                    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    db.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
            found = os.stat(self.path)
        except sqlite3.Error as error:
            raise translated(self.path, error) from error
        except OSError as error:
            raise FileUnavailable(f"{self.path}: {error}") from error
        _close_to_others(self.path)
        self._inode = (found.st_dev, found.st_ino)

    def _check_ours(self) -> None:
        # in this order: another process may make the file ours between two of these queries
        tables = self.db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        application, version = _pragma(self.db, "application_id"), _pragma(self.db, "user_version")
        if application != APPLICATION_ID and (application or tables):
            raise ForeignFile(f"{self.path} is a database of another application; choose another path")
        if version > FORMAT_VERSION:
            raise ForeignFile(f"{self.path} was written by a newer release (format {version}); upgrade this one")

    def check_same(self) -> None:
        """Raises FileUnavailable if the path does not lead to the file that was opened."""
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise FileUnavailable(f"{self.path}: the file was removed; put it back ({error})") from error
        if (found.st_dev, found.st_ino) != self._inode:
            raise FileUnavailable(f"{self.path}: the file was replaced by another; restart this process")

    @contextlib.contextmanager
    def transaction(
        self, deadline_s: float, *, durable: bool = True, large: bool = False
    ) -> Generator[sqlite3.Connection]:
        """One write transaction: all of it, or nothing. `durable` says whether it must survive a power cut.

        After a `large` one the caller must call `checkpoint`, which takes longer than the commit: SQLite itself would
        run it while other writers wait for their turn.

        Waits for the lock until `deadline_s` (monotonic clock). Raises FileUnavailable.
        """
        db = self.db
        try:
            if durable is not self._durable:
                db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._durable = durable
            if large is not self._large:
                db.execute(f"PRAGMA wal_autocheckpoint = {0 if large else _CHECKPOINT_PAGES}")
                self._large = large
            self._turn.take(deadline_s)
            _until(deadline_s, lambda: db.execute("BEGIN IMMEDIATE"))
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:  # on a full disk SQLite has rolled back by itself
                    with contextlib.suppress(sqlite3.Error):
                        db.execute("ROLLBACK")
                raise
        except TurnTaken as error:
            raise FileUnavailable(f"{self.path}: {error}") from error
        except sqlite3.Error as error:
            raise translated(self.path, error) from error
        finally:
            self._turn.end()
        self._transactions += 1
        if self._transactions % _WAL_LOOKED_AT == 0:
            size = wal_bytes(self.path)
            if size <= WAL_LARGE_BYTES:
                self._warned_bytes = 0
            elif size > 2 * self._warned_bytes:
                _log.warning("%s", wal_is_large(self.path, size))
                self._warned_bytes = size

    def checkpoint(self) -> None:
        """Copy committed pages into the file, as far as readers allow; others may write meanwhile."""
        with contextlib.suppress(sqlite3.Error):  # a later checkpoint catches up
            self.db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    @contextlib.contextmanager
    def reading(self) -> Generator[sqlite3.Connection]:
        """Read the file as of one commit. Be quick: SQLite can't truncate its log meanwhile. Raises FileUnavailable."""
        db = self.db
        try:
            db.execute("BEGIN")
            try:
                yield db
            finally:
                db.execute("COMMIT")
        except sqlite3.Error as error:
            raise translated(self.path, error) from error

    def data_version(self) -> int:
        """Changes whenever another connection has committed."""
        return _pragma(self.db, "data_version")

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self.db.close()
        self._turn.close()


def _make_private(path: Path) -> None:
    """Create the file if it is missing, without opening it.

    Opening and closing it here would drop the locks of this process's other connections.
    """
    with contextlib.suppress(OSError):  # it exists, or SQLite will say what is wrong
        os.mknod(os.path.realpath(path), stat.S_IFREG | 0o600)


def _close_to_others(path: Path) -> None:
    """Take other users' access to this user's files, which an earlier release created open to all.

    A group other than this user's own keeps its access: it was set on purpose (`chgrp`).
    """
    for file in (os.path.realpath(path) + end for end in ("", "-wal", "-shm", "-turn")):
        with contextlib.suppress(OSError):  # missing, or another user's, which `loadmanager check` reports
            found = os.lstat(file)
            if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode) or not found.st_mode & 0o007:
                continue
            kept = 0o700 if found.st_gid == os.getegid() else 0o770
            os.chmod(file, stat.S_IMODE(found.st_mode) & kept)
            _log.warning("%s was open to every user of this machine; it is not any more", file)


def wal_bytes(path: Path) -> int:
    """The size of the write-ahead log beside the file."""
    try:
        return os.stat(f"{path}-wal").st_size
    except OSError:
        return 0


def wal_is_large(path: Path, size_bytes: int) -> str:
    """Names the readers that keep SQLite from emptying the write-ahead log, and says what to do.

    Writers go on, and the file grows until the reader ends: SQLite keeps every page since its snapshot.
    """
    readers = holders_of(f"{path}-shm", _READERS) or ["some process"]
    return (
        f"{path}-wal has {size_bytes >> 20:,} MiB and grows: {', '.join(readers)} reads within a transaction that does "
        "not end; end that transaction or process (`kill -CONT PID` resumes a stopped one, `kill -KILL PID` ends it): "
        "SQLite cuts the file back only then"
    )


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def _until(deadline_s: float, step: Callable[[], object]) -> None:
    """Repeat a step while the file is locked. SQLite's own back-off sleeps up to 100 ms, too coarse for this."""
    wait_s = _FIRST_RETRY_S
    while True:
        try:
            step()
        except sqlite3.OperationalError as error:
            busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() >= deadline_s:
                raise
            time.sleep(wait_s * (0.5 + random.random()))
            wait_s = min(wait_s * 1.1, _LAST_RETRY_S)
        else:
            return


def log_error(error: FileUnavailable | ForeignFile) -> LogError:
    """The error as one of the port's."""
    return TopicMismatch(str(error)) if isinstance(error, ForeignFile) else LogUnavailable(str(error))
