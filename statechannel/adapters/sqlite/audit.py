"""Looks at the SQLite files of a cluster: whose they are, on which file system, how much disk is free.

Reads only, and creates nothing: neither a missing file nor, if no process has it open, SQLite's two files beside it.
What a broker does by itself (creating a file, switching on the write-ahead log) is not a finding.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Generator, Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

from statechannel.adapters.sqlite.file import (
    APPLICATION_ID,
    FORMAT_VERSION,
    WAL_LARGE_BYTES,
    wal_bytes,
    wal_is_large,
)
from statechannel.adapters.sqlite.log_tables import OFFSET_BITS
from statechannel.audit import Finding, Severity

FULL_BYTES, TIGHT_BYTES = 64 << 20, 1 << 30
AHEAD_S = 2.0
"""The log is written on this machine: an entry further in the future means that the clock was set back."""
APART_S = 30.0
LOOKED_AT = 100
"""How many of each partition's newest entries are examined, to see whether brokers' clocks differ."""

NETWORK = frozenset({"9p", "afs", "beegfs", "ceph", "drvfs", "gpfs", "lustre", "ncpfs", "vboxsf", "vmhgfs"}) | {
    *("nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs"),
    *("fuse.glusterfs", "fuse.s3fs", "fuse.sshfs"),
}
PASSING = {"tmpfs": "a reboot empties it", "ramfs": "a reboot empties it", "overlay": "it vanishes with its container"}

MountTable = Callable[[], str]


def mount_table() -> str:
    """Linux's mount table, empty on other systems."""
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def audit_log_file(path: Path, *, now_ms: int, mounts: MountTable = mount_table) -> list[Finding]:
    """Findings about the file of a log. `now_ms` is this machine's wall clock."""
    found = list(_audit_file("log file", path, mounts))
    with _opened(path) as db:
        if db is not None:
            found += _content("log file", lambda: list(_audit_topics(db, now_ms)))
    return found


def audit_coordination_file(path: Path, cluster: str, *, mounts: MountTable = mount_table) -> list[Finding]:
    """Findings about the file of a coordination service, which should belong to `cluster`."""
    found = list(_audit_file("coordination file", path, mounts))
    with _opened(path) as db:
        if db is not None:
            found += _content("coordination file", lambda: list(_audit_identity(db, cluster)))
    return found


def _audit_file(subject: str, path: Path, mounts: MountTable) -> Iterator[Finding]:
    directory = path.absolute().parent
    if not directory.is_dir():
        yield Finding(subject, Severity.ERROR, f"{directory} is not a directory", "create it on a local disk")
        return
    yield _presence(subject, path)
    yield _access(subject, path, directory)
    yield _file_system(subject, directory, mounts())
    yield _space(subject, directory)
    if (size := wal_bytes(path)) > WAL_LARGE_BYTES:
        text, _, advice = wal_is_large(path, size).partition("; ")
        yield Finding(subject, Severity.WARNING, text, advice)
    yield _ownership(subject, path)


def _presence(subject: str, path: Path) -> Finding:
    if path.is_file():
        return Finding(subject, Severity.OK, f"{path}, {path.stat().st_size:,} bytes")
    if path.exists():
        return Finding(subject, Severity.ERROR, f"{path} is not a file", "choose another path")
    return Finding(subject, Severity.OK, f"{path} does not exist yet: the first broker creates it")


def _access(subject: str, path: Path, directory: Path) -> Finding:
    needs = [directory, *(beside for beside in (path, Path(f"{path}-wal"), Path(f"{path}-shm")) if beside.exists())]
    closed = [str(one) for one in needs if not os.access(one, os.R_OK | os.W_OK)]
    if closed:
        advice = "make them readable and writable for the user that runs the brokers (the directory too)"
        return Finding(subject, Severity.ERROR, f"not readable and writable here: {', '.join(closed)}", advice)
    if path.exists() and path.stat().st_mode & 0o002:
        return Finding(subject, Severity.WARNING, f"every user may write {path}", f"chmod o-rw {path}*")
    if path.exists() and path.stat().st_mode & 0o004:  # as former releases made it
        return Finding(subject, Severity.WARNING, f"every user may read {path}", f"chmod o-r {path}*")
    return Finding(subject, Severity.OK, "readable and writable for this user, with its directory")


def _file_system(subject: str, directory: Path, mounts: str) -> Finding:
    kind = file_system_of(os.path.realpath(directory), mounts)
    if kind is None:
        return Finding(subject, Severity.OK, "the system does not list its file systems")
    if kind in NETWORK:
        advice = "move it to a local disk: SQLite's write-ahead log needs memory that all its processes share"
        return Finding(subject, Severity.ERROR, f"{directory} is on a network file system ({kind})", advice)
    if kind in PASSING:
        advice = "move it to a lasting disk, unless this is a trial"
        return Finding(subject, Severity.WARNING, f"{directory} is on {kind}: {PASSING[kind]}", advice)
    return Finding(subject, Severity.OK, f"{directory} is on a local file system ({kind})")


def file_system_of(directory: str, mounts: str) -> str | None:
    """The type of the file system that holds a directory (its real path), from the text of `/proc/*/mountinfo`."""
    best, kind = "", None
    for line in mounts.splitlines():
        front, dash, back = line.partition(" - ")
        fields = front.split()
        if not dash or len(fields) < 5 or not back.split():
            continue
        at = fields[4].replace("\\040", " ")
        if (directory + "/").startswith(at.rstrip("/") + "/") and len(at) >= len(best):
            best, kind = at, back.split()[0]
    return kind


def _space(subject: str, directory: Path) -> Finding:
    state = os.statvfs(directory)
    free = state.f_bavail * state.f_frsize
    text = f"{free / (1 << 30):.1f} GiB free"
    if free < FULL_BYTES:
        return Finding(subject, Severity.ERROR, text, "free some space: without it nothing can be written")
    if free < TIGHT_BYTES:
        return Finding(subject, Severity.WARNING, text, "free some space: a full disk stops every move")
    return Finding(subject, Severity.OK, text)


def _ownership(subject: str, path: Path) -> Finding:
    """Judge by the header alone, which a damaged file still has, and which needs no SQLite to read."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except OSError:
        return Finding(subject, Severity.OK, f"format {FORMAT_VERSION} is what this release writes")
    application, version = int.from_bytes(header[68:72], "big"), int.from_bytes(header[60:64], "big")
    if header and (not header.startswith(b"SQLite format 3\0") or application not in (0, APPLICATION_ID)):
        return Finding(subject, Severity.ERROR, f"loadmanager did not write {path}", "choose another path")
    if version > FORMAT_VERSION:
        advice = f"upgrade this release: it reads formats up to {FORMAT_VERSION}"
        return Finding(subject, Severity.ERROR, f"{path} is of format {version}", advice)
    return Finding(subject, Severity.OK, f"format {version or FORMAT_VERSION}, which this release reads")


@contextlib.contextmanager
def _opened(path: Path) -> Generator[sqlite3.Connection | None]:
    """A read-only connection to the file; None if it is missing or not ours.

    Without a write-ahead log beside it no process has it open, and opening it as immutable creates none.
    """
    mode = "mode=ro" if Path(f"{path}-wal").exists() else "immutable=1"
    try:
        db = sqlite3.connect(f"file:{quote(str(path))}?{mode}", uri=True, timeout=1.0) if path.is_file() else None
    except sqlite3.Error:
        db = None
    try:
        yield db
    finally:
        if db is not None:
            db.close()


def _content(subject: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return look()
    except sqlite3.DatabaseError as error:
        damaged = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        advice = "run the check again; if it fails again, check that loadmanager wrote this file"
        advice = "restore it from a backup" if damaged else advice
        return [Finding(subject, Severity.ERROR if damaged else Severity.WARNING, f"cannot be read: {error}", advice)]


def _tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}


def _audit_topics(db: sqlite3.Connection, now_ms: int) -> Iterator[Finding]:
    if not {"topics", "chunks"} <= _tables(db):
        return
    topics = db.execute("SELECT name, first_id, partitions, compacted FROM topics").fetchall()
    for name, _, partitions, compacted in topics:
        if name == "bundle-state" and compacted:
            advice = "this is not a channel: choose another file"
            yield Finding(f"topic {name}", Severity.ERROR, "it is compacted, and so may lose records", advice)
        elif name == "bundle-state":
            yield Finding(f"topic {name}", Severity.OK, f"{partitions} partitions, complete")
    ids = [first + i for _, first, partitions, _ in topics for i in range(partitions)]
    times = [_newest_ms(db, partition) for partition in ids]
    newest = max((each[0] for each in times if each), default=0)
    if newest:
        yield _clock(newest, now_ms)
    back_ms = max((older - newer for each in times for newer, older in pairwise(each)), default=0)
    if back_ms > APART_S * 1000:
        text = f"among the newest entries, one is {back_ms / 1000:.0f} s older than the entry before it"
        advice = "clocks of brokers differ, or one was set: correct the wrong one; 30 s apart is well"
        yield Finding("clocks of brokers", Severity.WARNING, text, advice)


def _newest_ms(db: sqlite3.Connection, partition_id: int) -> list[int]:
    """The times of a partition's newest entries, the newest first: by the clocks of the brokers that wrote them."""
    sql = f"SELECT appended_ms FROM chunks WHERE place BETWEEN ? AND ? ORDER BY place DESC LIMIT {LOOKED_AT}"
    first = partition_id << OFFSET_BITS
    return [int(ms) for (ms,) in db.execute(sql, (first, first + (1 << OFFSET_BITS) - 1))]


def _clock(newest_ms: int, now_ms: int) -> Finding:
    ahead_s = (newest_ms - now_ms) / 1000
    if ahead_s > AHEAD_S:
        advice = "the wall clock was set back: correct it; until then ages of loads and times in the history are wrong"
        return Finding("clock", Severity.WARNING, f"the log's newest entry lies {ahead_s:.0f} s ahead", advice)
    return Finding("clock", Severity.OK, f"the log's newest entry is {max(0.0, -ahead_s):.0f} s old")


def _audit_identity(db: sqlite3.Connection, cluster: str) -> Iterator[Finding]:
    if "identity" not in _tables(db):
        return
    row = db.execute("SELECT cluster FROM identity").fetchone()
    if row is None:
        yield Finding("coordination file", Severity.OK, "it belongs to no cluster yet")
    elif row[0] != cluster:
        advice = "correct --cluster, or choose another file"
        yield Finding("coordination file", Severity.ERROR, f"it belongs to cluster {row[0]!r}, not {cluster!r}", advice)
    else:
        yield Finding("coordination file", Severity.OK, f"it belongs to cluster {cluster!r}")
