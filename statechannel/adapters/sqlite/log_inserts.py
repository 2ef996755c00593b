"""Writes payloads as rows of a log's file, inside a write transaction of the caller.

An append of a plain topic becomes *chunks*: one row has up to 1,000 entries. So the cost of a row, and of releasing the
interpreter lock at each of SQLite's steps, is paid once per chunk instead of once per entry. A compacted topic has one
row per entry, because each is replaced on its own. A tombstone, or a replaced entry of a followed topic, stays readable
until `dies_ms`.
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

# Few statements in a transaction: at each this thread may wait for the interpreter lock, and other writers for us.
_ADVANCE = "UPDATE partitions SET next_offset = next_offset + ? WHERE id = ?"
_INSERT_CHUNK = f"""
    INSERT INTO chunks (place, appended_ms, entries)
    SELECT (id << {OFFSET_BITS}) + next_offset, ?, ? FROM partitions WHERE id = ?"""
_INSERT_KEYED = "INSERT INTO chunks (place, appended_ms, entries, key, dies_ms) VALUES (?, ?, ?, ?, ?)"
_DELETE_OLDER = "DELETE FROM chunks WHERE key = ? AND place >= ? AND place < ?"
# Only the newest row of the key: older ones have their `dies_ms` already.
_LET_NEWEST_DIE = """
    UPDATE chunks SET dies_ms = min(appended_ms, ?) + ? WHERE dies_ms IS NULL AND place = (
        SELECT max(place) FROM chunks WHERE key = ? AND place >= ? AND place < ?)"""
# No older row may outlive a tombstone, whatever lag other writers were configured with.
_LET_ALL_DIE = """
    UPDATE chunks SET dies_ms = min(coalesce(dies_ms, ?1 + ?2), min(appended_ms, ?1) + ?2)
    WHERE key = ?3 AND place >= ?4 AND place < ?5"""
_DROP_DEAD = """
    DELETE FROM chunks WHERE place IN (
        SELECT place FROM chunks WHERE dies_ms < ? ORDER BY dies_ms, place LIMIT ?)"""
DROPPED_AT_ONCE = 2_000

_encode = msgspec.msgpack.Encoder().encode


class Chunk(msgspec.Struct, frozen=True):
    """A row to write to a plain topic: the number of entries, and their encoding."""

    count: int
    entries: bytes


def encoded_chunks(payloads: Sequence[Payload]) -> list[Chunk]:
    """Encode the payloads; large ones before the transaction, since that keeps other writers waiting."""
    return [Chunk(len(run), _encode([(p.key, p.value) for p in run])) for run in _runs(payloads)]


def insert_chunks(db: Connection, partition_id: int, chunks: Sequence[Chunk], now_ms: int) -> None:
    """Append to a plain topic's partition."""
    for chunk in chunks:
        db.execute(_INSERT_CHUNK, (now_ms, chunk.entries, partition_id))
        db.execute(_ADVANCE, (chunk.count, partition_id))


class Keeping(msgspec.Struct, frozen=True):
    """How long a compacted topic keeps tombstones, and replaced entries (0: not at all)."""

    tombstone_ms: int
    replaced_ms: int = 0


def insert_keyed(db: Connection, partition_id: int, payloads: Sequence[Payload], now_ms: int, keeping: Keeping) -> None:
    """Append the last entry of each key, and remove those it replaces, now or after a lag; unused offsets stay gaps."""
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
    """Replace the key's rows in the places `older`; none may outlive a tombstone, or the key would come back."""
    lag_ms = keeping.replaced_ms
    if not lag_ms:
        db.execute(_DELETE_OLDER, (payload.key, *older))
    else:
        db.execute(_LET_ALL_DIE if payload.value is None else _LET_NEWEST_DIE, (now_ms, lag_ms, payload.key, *older))


def drop_dead(db: Connection, now_ms: int) -> None:
    """Remove rows whose `dies_ms` has passed, oldest first, at most DROPPED_AT_ONCE."""
    db.execute(_DROP_DEAD, (now_ms, DROPPED_AT_ONCE))


def payload_bytes(payload: Payload) -> int:
    """About how many bytes a payload takes."""
    return len(payload.key or b"") + len(payload.value or b"") + _ENTRY_OVERHEAD_BYTES


def checked_size_bytes(payloads: Sequence[Payload]) -> int:
    """About how many bytes they take together. Raises RecordTooLarge if one exceeds MAX_PAYLOAD_BYTES."""
    size_bytes = sum(map(payload_bytes, payloads))
    if size_bytes > MAX_PAYLOAD_BYTES:  # only then can one of them be too large
        largest_bytes = max(len(payload.key or b"") + len(payload.value or b"") for payload in payloads)
        if largest_bytes > MAX_PAYLOAD_BYTES:
            raise RecordTooLarge(
                f"a payload of {largest_bytes} bytes exceeds the log's {MAX_PAYLOAD_BYTES}, and nothing was written: "
                "write smaller records"
            )
    return size_bytes


def _reserve(db: Connection, partition_id: int, count: int) -> int:
    """Take the next offsets of a partition; returns the place of the first."""
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
