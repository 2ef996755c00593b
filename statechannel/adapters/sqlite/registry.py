"""The checked writes of `SqliteCoordination` as plain functions: each is the body of one write transaction.

They decide who is fenced, deposed, elected or holds a lease, and which sessions end. They use no threads, no clock (the
time comes with the session) and no retries. Numbers and epochs only grow; their rows are never deleted. Times are
CLOCK_BOOTTIME in ms, and mean nothing in another boot: a session of another boot has ended.
"""

from __future__ import annotations

import secrets
from sqlite3 import Connection

import msgspec

from statechannel.errors import Deposed, Fenced, ForeignRoot, RootLost
from statechannel.law.agreement import check_root, lost, replaced
from statechannel.law.record import BrokerId
from statechannel.ports import Identity, Leadership, Member

SCHEMA = """
CREATE TABLE IF NOT EXISTS identity (
    one INTEGER PRIMARY KEY CHECK (one = 1), cluster TEXT NOT NULL, log TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS root (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS incarnations (name TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, boot TEXT NOT NULL, heard_ms INTEGER NOT NULL, timeout_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS members (
    name TEXT PRIMARY KEY, incarnation INTEGER NOT NULL, data BLOB NOT NULL, session TEXT NOT NULL,
    proofs INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS election (
    one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL, name TEXT, incarnation INTEGER, session TEXT);
CREATE TABLE IF NOT EXISTS offices (
    office TEXT PRIMARY KEY, name TEXT NOT NULL, incarnation INTEGER NOT NULL, session TEXT NOT NULL) WITHOUT ROWID;
INSERT OR IGNORE INTO election VALUES (1, 0, NULL, NULL, NULL)
"""


class Session(msgspec.Struct, frozen=True):
    """One client's session and the present time."""

    id: str
    boot: str
    timeout_ms: int
    now_ms: int


class Snapshot(msgspec.Struct, frozen=True):
    """The watched values."""

    members: dict[str, Member]
    leadership: Leadership | None
    leases: dict[str, BrokerId]


# --- sessions
def hear(db: Connection, session: Session) -> None:
    """Keep the session alive, or begin it again if it had ended (without what it held)."""
    if db.execute("UPDATE sessions SET heard_ms = ? WHERE id = ?", (session.now_ms, session.id)).rowcount:
        return
    # an older release, which knows no leases, may have ended the session and left them
    db.execute("DELETE FROM offices WHERE session = ?", (session.id,))
    row = (session.id, session.boot, session.now_ms, session.timeout_ms)
    db.execute("INSERT INTO sessions VALUES (?, ?, ?, ?)", row)


def has_dead_sessions(db: Connection, session: Session) -> bool:
    """Whether `end_dead_sessions` would end any; a read, which needs no lock."""
    sql = "SELECT EXISTS (SELECT 1 FROM sessions WHERE boot != ? OR heard_ms + timeout_ms < ?)"
    return bool(db.execute(sql, (session.boot, session.now_ms)).fetchone()[0])


def end_dead_sessions(db: Connection, session: Session) -> None:
    """End every session of another boot, and every session without a heartbeat for its time-out."""
    sql = "SELECT id FROM sessions WHERE boot != ? OR heard_ms + timeout_ms < ?"
    for (dead,) in db.execute(sql, (session.boot, session.now_ms)).fetchall():
        end_session(db, dead)


def end_session(db: Connection, session_id: str) -> None:
    """Remove a session with its liveness nodes, its leadership and its leases."""
    db.execute("DELETE FROM members WHERE session = ?", (session_id,))
    db.execute(_NOBODY_LEADS + " WHERE session = ?", (session_id,))
    db.execute("DELETE FROM offices WHERE session = ?", (session_id,))
    db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))


# --- the cluster
def identify(db: Connection, ours: Identity) -> str:
    """The root's identity; creates what is missing if `ours` has no `root`, that is, if the log names none."""
    check_root(identity(db), ours)
    if not ours.root:
        db.execute("INSERT OR IGNORE INTO identity VALUES (1, ?, ?)", (ours.cluster, ours.log))
        db.execute("INSERT OR IGNORE INTO root VALUES (1, ?)", (secrets.token_hex(8),))
    return _root(db)


def identity(db: Connection) -> Identity | None:
    tied = db.execute("SELECT cluster, log FROM identity").fetchone()
    return None if tied is None else Identity(tied[0], tied[1], _root(db))


def check_same_root(db: Connection, root: str) -> None:
    """Raises RootLost or ForeignRoot unless this is the identified root."""
    found = _root(db)
    if not found:
        raise RootLost(lost("this coordination file", root))
    if found != root:
        raise ForeignRoot(replaced("this coordination file", found, root))


def _root(db: Connection) -> str:
    row = db.execute("SELECT id FROM root").fetchone()
    return row[0] if row else ""


# --- incarnations
def start_incarnation(db: Connection, name: str, above: int) -> BrokerId:
    number = max(_number(db, name), above) + 1
    _set_number(db, name, number)
    return BrokerId(name, number)


def raise_incarnation(db: Connection, broker: BrokerId, epoch: int) -> None:
    leading, _ = _election(db)
    if leading is None or leading.epoch != epoch:
        raise Deposed(f"epoch {epoch} no longer leads (now: {_described(leading)}): stop leading")
    if _number(db, broker.name) <= broker.incarnation:
        _set_number(db, broker.name, broker.incarnation + 1)


def register(db: Connection, session: Session, broker: BrokerId, data: bytes) -> None:
    check_current(db, broker)
    hear(db, session)
    db.execute(
        "INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, 0)",
        (broker.name, broker.incarnation, data, session.id),
    )


def prove(db: Connection, session: Session, broker: BrokerId, last_data: bytes) -> None:
    check_current(db, broker)
    hear(db, session)
    written = db.execute(
        "UPDATE members SET proofs = proofs + 1, session = ? WHERE name = ? AND incarnation = ?",
        (session.id, broker.name, broker.incarnation),
    ).rowcount
    if not written:
        register(db, session, broker, last_data)


def unregister(db: Connection, session: Session, broker: BrokerId) -> None:
    sql = "DELETE FROM members WHERE name = ? AND incarnation = ? AND session = ?"
    db.execute(sql, (broker.name, broker.incarnation, session.id))


# --- the election
_NOBODY_LEADS = "UPDATE election SET name = NULL, incarnation = NULL, session = NULL"


def campaign(db: Connection, session: Session, candidate: BrokerId, above: int) -> Leadership | None:
    check_current(db, candidate)
    hear(db, session)
    leading, last_epoch = _election(db)
    if leading is not None:
        return None
    won = Leadership(candidate, max(last_epoch, above) + 1)
    db.execute(
        "UPDATE election SET epoch = ?, name = ?, incarnation = ?, session = ?",
        (won.epoch, candidate.name, candidate.incarnation, session.id),
    )
    return won


def resign(db: Connection, session: Session, leadership: Leadership) -> None:
    db.execute(_NOBODY_LEADS + " WHERE epoch = ? AND session = ?", (leadership.epoch, session.id))


def evict(db: Connection, leadership: Leadership) -> bool:
    """Whether this call ended it."""
    sql = _NOBODY_LEADS + " WHERE epoch = ? AND name = ? AND incarnation = ?"
    leader = leadership.leader
    return db.execute(sql, (leadership.epoch, leader.name, leader.incarnation)).rowcount > 0


# --- leases
def claim(db: Connection, session: Session, lease: str, candidate: BrokerId) -> bool:
    """Whether the lease is the candidate's now, in this session."""
    check_current(db, candidate)
    hear(db, session)
    # a lease of a session that an older release ended
    db.execute("DELETE FROM offices WHERE office = ? AND session NOT IN (SELECT id FROM sessions)", (lease,))
    ours = (lease, candidate.name, candidate.incarnation, session.id)
    db.execute("INSERT OR IGNORE INTO offices VALUES (?, ?, ?, ?)", ours)
    sql = "UPDATE offices SET session = ? WHERE office = ? AND name = ? AND incarnation = ?"
    return db.execute(sql, (session.id, *ours[:3])).rowcount > 0


def vacate(db: Connection, lease: str, holder: BrokerId) -> None:
    sql = "DELETE FROM offices WHERE office = ? AND name = ? AND incarnation = ?"
    db.execute(sql, (lease, holder.name, holder.incarnation))


# --- the watches
def snapshot(db: Connection) -> Snapshot:
    """Members, leadership and leases as of one commit; the caller opens the read transaction."""
    rows = db.execute("SELECT name, incarnation, data FROM members").fetchall()
    members = {name: Member(BrokerId(name, incarnation), data) for name, incarnation, data in rows}
    sql = "SELECT office, name, incarnation FROM offices JOIN sessions ON id = session ORDER BY office"
    leases = {lease: BrokerId(name, incarnation) for lease, name, incarnation in db.execute(sql)}
    return Snapshot(members, _election(db)[0], leases)


def _election(db: Connection) -> tuple[Leadership | None, int]:
    """Who leads, and the last epoch."""
    epoch, name, incarnation = db.execute("SELECT epoch, name, incarnation FROM election").fetchone()
    return (Leadership(BrokerId(name, incarnation), epoch) if name is not None else None), epoch


def _described(leading: Leadership | None) -> str:
    return f"{leading.leader} in epoch {leading.epoch}" if leading else "no leader"


def _number(db: Connection, name: str) -> int:
    row = db.execute("SELECT number FROM incarnations WHERE name = ?", (name,)).fetchone()
    return row[0] if row else 0


def _set_number(db: Connection, name: str, number: int) -> None:
    db.execute("INSERT OR REPLACE INTO incarnations VALUES (?, ?)", (name, number))


def check_current(db: Connection, broker: BrokerId) -> None:
    """Raises Fenced. Under the write lock this check equals a write, since the number cannot be raised meanwhile."""
    number = _number(db, broker.name)
    if number != broker.incarnation:
        raise Fenced(f"{broker} is not current, {broker.name} is at {number}: stop it and start a new incarnation")
