"""How payloads become rows of a log's file: parts of a write transaction, which the caller owns.

An append of a plain topic becomes *chunks*: one row holds up to 1,000 entries, so that the cost of a row, and of
letting go of the interpreter lock at each of SQLite's steps, is paid once per group instead of once per entry. A
compacted topic has one row per entry, because its rows are superseded one by one. A row that counts no more, but is
still to be read for a while, says in `dies_ms` until when: a tombstone, and what was replaced in a followed topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from sqlite3 import Connection

import msgspec

from statechannel.adapters.sqlite.topics import OFFSET_BITS
from statechannel.errors import RecordTooLarge
from statechannel.ports import Payload

MAX_PAYLOAD_BYTES = 1 << 20
CHUNK_ENTRIES = 1_000
CHUNK_BYTES = 1 << 20
_ENTRY_OVERHEAD_BYTES = 64

# Few steps a transaction: at each of them this thread may have to wait for the interpreter lock, and others for us.
_ADVANCE = "UPDATE partitions SET next_offset = next_offset + ? WHERE id = ?"
_INSERT_CHUNK = f"""
    INSERT INTO chunks (place, appended_ms, entries)
    SELECT (id << {OFFSET_BITS}) + next_offset, ?, ? FROM partitions WHERE id = ?"""
_INSERT_KEYED = "INSERT INTO chunks (place, appended_ms, entries, key, dies_ms) VALUES (?, ?, ?, ?, ?)"
_DELETE_OLDER = "DELETE FROM chunks WHERE key = ? AND place >= ? AND place < ?"
# Older rows of the key than the newest one are dying already.
_LET_NEWEST_DIE = """
    UPDATE chunks SET dies_ms = min(appended_ms, ?) + ? WHERE dies_ms IS NULL AND place = (
        SELECT max(place) FROM chunks WHERE key = ? AND place >= ? AND place < ?)"""
# Behind a tombstone nothing may outlive it, whatever other writers were told.
_LET_ALL_DIE = """
    UPDATE chunks SET dies_ms = min(coalesce(dies_ms, ?1 + ?2), min(appended_ms, ?1) + ?2)
    WHERE key = ?3 AND place >= ?4 AND place < ?5"""
_DROP_DEAD = """
    DELETE FROM chunks WHERE place IN (
        SELECT place FROM chunks WHERE dies_ms < ? ORDER BY dies_ms, place LIMIT ?)"""
DROPPED_AT_ONCE = 2_000

_encode = msgspec.msgpack.Encoder().encode


class Chunk(msgspec.Struct, frozen=True):
    """A row of a plain topic to be: how many entries, and their encoding."""

    count: int
    entries: bytes


def encoded_chunks(payloads: Sequence[Payload]) -> list[Chunk]:
    """Large ones are better encoded before the transaction, which keeps other writers waiting."""
    return [Chunk(len(run), _encode([(p.key, p.value) for p in run])) for run in _runs(payloads)]


def insert_chunks(db: Connection, partition_id: int, chunks: Sequence[Chunk], now_ms: int) -> None:
    """Append to a plain topic's partition."""
    for chunk in chunks:
        db.execute(_INSERT_CHUNK, (now_ms, chunk.entries, partition_id))
        db.execute(_ADVANCE, (chunk.count, partition_id))


class Keeping(msgspec.Struct, frozen=True):
    """How long a compacted topic keeps what counts no more: tombstones, and what was replaced (0: not at all)."""

    tombstone_ms: int
    replaced_ms: int = 0


def insert_keyed(db: Connection, partition_id: int, payloads: Sequence[Payload], now_ms: int, keeping: Keeping) -> None:
    """Append the last entry of each key, and remove, or let die, what it supersedes; unused offsets stay gaps."""
    first = _reserve(db, partition_id, len(payloads))
    last = {payload.key: place for place, payload in enumerate(payloads, first)}
    base = partition_id << OFFSET_BITS
    for place, payload in enumerate(payloads, first):
        key = payload.key
        dies_ms = None
        if key is not None and last[key] != place:
            if not keeping.replaced_ms:
                continue
            dies_ms = now_ms + keeping.replaced_ms
        elif key is not None:
            _supersede(db, payload, (base, first), now_ms, keeping)
            if payload.value is None:
                dies_ms = now_ms + max(keeping.tombstone_ms, keeping.replaced_ms)
        db.execute(_INSERT_KEYED, (place, now_ms, _encode([(key, payload.value)]), key, dies_ms))


def _supersede(db: Connection, payload: Payload, older: tuple[int, int], now_ms: int, keeping: Keeping) -> None:
    """What lies in the places `older`, and has the key. What is deleted must not come back once its tombstone died."""
    lag_ms = keeping.replaced_ms
    if not lag_ms:
        db.execute(_DELETE_OLDER, (payload.key, *older))
    else:
        db.execute(_LET_ALL_DIE if payload.value is None else _LET_NEWEST_DIE, (now_ms, lag_ms, payload.key, *older))


def drop_dead(db: Connection, now_ms: int) -> None:
    """Remove what counts no more and was kept long enough, oldest first; some of it, where there is much."""
    db.execute(_DROP_DEAD, (now_ms, DROPPED_AT_ONCE))


def payload_bytes(payload: Payload) -> int:
    """What a payload takes, about."""
    return len(payload.key or b"") + len(payload.value or b"") + _ENTRY_OVERHEAD_BYTES


def checked_size_bytes(payloads: Sequence[Payload]) -> int:
    """What they take together, about. Raises RecordTooLarge if a single one exceeds what a log takes."""
    size_bytes = sum(map(payload_bytes, payloads))
    if size_bytes > MAX_PAYLOAD_BYTES:  # only then can one of them be
        largest_bytes = max(len(payload.key or b"") + len(payload.value or b"") for payload in payloads)
        if largest_bytes > MAX_PAYLOAD_BYTES:
            raise RecordTooLarge(
                f"a payload of {largest_bytes} bytes exceeds the log's {MAX_PAYLOAD_BYTES}; nothing was written"
            )
    return size_bytes


def _reserve(db: Connection, partition_id: int, count: int) -> int:
    """Take the next offsets of a partition; the place of the first."""
    (end,) = db.execute(_ADVANCE + " RETURNING next_offset", (count, partition_id)).fetchall()[0]
    return (partition_id << OFFSET_BITS) + end - count


def _runs(payloads: Sequence[Payload]) -> Iterator[Sequence[Payload]]:
    """Cut into runs of at most `CHUNK_ENTRIES` entries and, unless a single entry is larger, `CHUNK_BYTES`."""
    start, size_bytes = 0, 0
    for index, payload in enumerate(payloads):
        size_bytes += payload_bytes(payload)
        if index > start and (size_bytes > CHUNK_BYTES or index - start >= CHUNK_ENTRIES):
            yield payloads[start:index]
            start, size_bytes = index, payload_bytes(payload)
    yield payloads[start:]
