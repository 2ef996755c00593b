"""Queries of a log's file, as plain functions on a connection: where partitions begin and end, and their entries.

Each sees the file as of one commit if the caller has opened a read transaction, or if it is a single statement.
"""

from __future__ import annotations

from collections.abc import Generator
from sqlite3 import Connection

import msgspec

from statechannel.adapters.sqlite.log_inserts import CHUNK_BYTES, CHUNK_ENTRIES
from statechannel.adapters.sqlite.topics import OFFSET_BITS, OFFSETS, StoredTopic
from statechannel.ports import LogEntry

_EXTENTS = "SELECT id, coalesce(begin_offset, 0), next_offset FROM partitions LEFT JOIN begins USING (id)"
_NEXT_CHUNKS = "SELECT place, appended_ms, entries FROM chunks WHERE place >= ? AND place <= ? ORDER BY place"
_CHUNK_WITH = "SELECT max(place) FROM chunks WHERE place >= ? AND place <= ?"
_FIRST_CHUNK = "SELECT place, appended_ms FROM chunks WHERE place >= ? AND place <= ? ORDER BY place LIMIT 1"

_decode = msgspec.msgpack.Decoder(list[tuple[bytes | None, bytes | None]]).decode


class Extent(msgspec.Struct, frozen=True, gc=False):
    """The offsets of a partition: `[begin, end)`."""

    begin: int
    end: int


NOTHING = Extent(0, 0)


def extents(db: Connection) -> dict[int, Extent]:
    """The extent of every partition in the file, by its id."""
    return {row[0]: Extent(row[1], row[2]) for row in db.execute(_EXTENTS).fetchall()}


def ends(db: Connection, topic: StoredTopic) -> tuple[int, ...]:
    found = extents(db)
    return tuple(found[topic.first_id + partition].end for partition in range(topic.partitions))


def begins(db: Connection, topic: StoredTopic) -> tuple[int, ...]:
    found = extents(db)
    if not topic.compacted:
        return tuple(found[topic.first_id + partition].begin for partition in range(topic.partitions))
    return tuple(_first(db, topic.first_id + partition, found) for partition in range(topic.partitions))


def _first(db: Connection, partition_id: int, found: dict[int, Extent]) -> int:
    """The first offset that a compacted topic's partition still has, else its end."""
    base = partition_id << OFFSET_BITS
    chunk = db.execute(_FIRST_CHUNK, (base, base + OFFSETS)).fetchone()
    return found[partition_id].end if chunk is None else chunk[0] - base


def offset_at(db: Connection, partition_id: int, at_ms: int) -> int:
    """The first offset that was appended at `at_ms` or later, else the end; some 30 queries, however long the log.

    If the machine's clock was set back, appends around that moment are not in the order of their times: then the result
    is one of several offsets with an earlier time before it and a later one after it.
    """
    extent = extents(db)[partition_id]
    base = partition_id << OFFSET_BITS
    low = db.execute(_CHUNK_WITH, (base, base + extent.begin)).fetchone()[0] or base + extent.begin
    high = base + extent.end
    while low < high:  # all chunks before `low` are earlier than `at_ms`, none from `high` on is
        middle = (low + high) // 2
        chunk = db.execute(_FIRST_CHUNK, (middle, base + OFFSETS)).fetchone()
        if chunk is None or chunk[1] >= at_ms:
            high = middle
        else:
            low = chunk[0] + 1
    chunk = db.execute(_FIRST_CHUNK, (low, base + OFFSETS)).fetchone()
    return extent.end if chunk is None else max(extent.begin, chunk[0] - base)


def chunks_between(
    db: Connection, base: int, start: int, before: int
) -> Generator[tuple[int, int, list[tuple[bytes | None, bytes | None]]]]:
    """First offset, time and entries of each chunk that has entries in `[start, before)`.

    `base` is the place of the partition's offset 0. Close the generator: its statement keeps a snapshot, and SQLite's
    write-ahead log would grow.
    """
    cursor = db.execute(_NEXT_CHUNKS, (_chunk_with(db, base, base + start), base + before - 1))
    try:
        for place, appended_ms, blob in cursor:
            yield place - base, appended_ms, _decode(blob)
    finally:
        cursor.close()


class Batch(msgspec.Struct, gc=False):
    """Entries, the position after them, and whether the partition had no more at that moment."""

    entries: list[LogEntry]
    after: int
    is_last: bool


def next_batch(
    db: Connection, topic: StoredTopic, partition: int, position: int, before: int, *, aligned: bool
) -> Batch:
    """The next batch of entries of a partition in `[position, before)`.

    It ends at a hole of a plain topic; if there is nothing before the hole or at all, `after` equals `position`.
    `aligned` says that no chunk begins before `position` and reaches beyond it.
    """
    base = (topic.first_id + partition) << OFFSET_BITS
    place = base + position if aligned else _chunk_with(db, base, base + position)
    batch = Batch([], position, is_last=True)
    size_bytes = 0
    cursor = db.execute(_NEXT_CHUNKS, (place, base + before - 1))
    try:
        for chunk_place, appended_ms, blob in cursor:
            first, rows = chunk_place - base, _decode(blob)
            full = len(batch.entries) + len(rows) > CHUNK_ENTRIES or size_bytes + len(blob) > CHUNK_BYTES
            hole = first > batch.after and not topic.compacted
            if hole or (batch.entries and full):
                batch.is_last = False
                break
            entries = [LogEntry(partition, at, k, v, appended_ms) for at, (k, v) in enumerate(rows, first)]
            batch.entries += entries[position - first :] if first < position else entries
            size_bytes += len(blob)
            batch.after = max(batch.after, first + len(rows))
    finally:
        cursor.close()  # else the statement keeps its snapshot, and SQLite's write-ahead log grows
    return batch


def _chunk_with(db: Connection, base: int, place: int) -> int:
    """The place of the chunk that a place falls into, else the place itself."""
    found = db.execute(_CHUNK_WITH, (base, place)).fetchone()[0]
    return place if found is None else found
