"""The tables of a log's file, and their reads and writes as plain functions on a connection.

An append of a plain topic becomes *chunks*: one row has up to 1,000 entries. So the cost of a row, and of releasing the
interpreter lock at each of SQLite's steps, is paid once per chunk instead of once per entry. A compacted topic has one
row per entry, because each is replaced on its own. A tombstone, or a replaced entry of a followed topic, stays readable
until `dies_ms`. Writes run in a transaction of the caller. A query sees the file as of one commit if the caller has
opened a read transaction, or if it is a single statement.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from sqlite3 import Connection

import msgspec

from statechannel.errors import RecordTooLarge, TopicMismatch
from statechannel.ports import LogEntry, Payload, TopicSpec

SCHEMA = """
CREATE TABLE IF NOT EXISTS topics (
    name TEXT PRIMARY KEY, first_id INTEGER NOT NULL, partitions INTEGER NOT NULL, compacted INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS partitions (id INTEGER PRIMARY KEY, next_offset INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS begins (id INTEGER PRIMARY KEY, begin_offset INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS writers (id TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS chunks (
    place INTEGER PRIMARY KEY, appended_ms INTEGER NOT NULL, entries BLOB NOT NULL, key BLOB, dies_ms INTEGER);
CREATE INDEX IF NOT EXISTS chunk_keys ON chunks (key, place) WHERE key IS NOT NULL;
CREATE INDEX IF NOT EXISTS dying_chunks ON chunks (dies_ms) WHERE dies_ms IS NOT NULL
"""
OFFSET_BITS = 40
"""A chunk's place is its partition's id, shifted by this, plus the offset of its first entry."""
OFFSETS = (1 << OFFSET_BITS) - 1


class StoredTopic(msgspec.Struct, frozen=True):
    """A topic in the file; its partitions have the ids `first_id`, `first_id + 1`, …"""

    name: str
    first_id: int
    partitions: int
    compacted: bool

    def partition_id(self, partition: int) -> int:
        """The id of a partition. Raises TopicMismatch if the topic has no such partition."""
        if not 0 <= partition < self.partitions:
            raise TopicMismatch(f"topic {self.name!r} has partitions 0 to {self.partitions - 1}, not {partition}")
        return self.first_id + partition


def find_topic(db: Connection, name: str) -> StoredTopic | None:
    sql = "SELECT name, first_id, partitions, compacted FROM topics WHERE name = ?"
    row = db.execute(sql, (name,)).fetchone()
    return StoredTopic(row[0], row[1], row[2], bool(row[3])) if row else None


def create_topic(db: Connection, spec: TopicSpec, default_partitions: int) -> StoredTopic:
    """Create the topic, in a write transaction; returns the existing one if another process was first."""
    found = find_topic(db, spec.name)
    if found is not None:
        return found
    first_id = db.execute("SELECT coalesce(max(id), 0) + 1 FROM partitions").fetchone()[0]
    topic = StoredTopic(spec.name, first_id, spec.partitions or default_partitions, spec.compacted)
    db.execute("INSERT INTO topics VALUES (?, ?, ?, ?)", (topic.name, first_id, topic.partitions, topic.compacted))
    for partition in range(topic.partitions):
        db.execute("INSERT INTO partitions VALUES (?, 0)", (first_id + partition,))
    return topic


def check_topic(topic: StoredTopic, spec: TopicSpec) -> None:
    """Raises TopicMismatch if the stored topic does not fit the specification."""
    if topic.compacted != spec.compacted:
        has, wants = ("is", "is not") if topic.compacted else ("is not", "is")
        raise TopicMismatch(
            f"topic {spec.name!r} {has} compacted, but one that {wants} compacted is needed: choose another name"
        )
    if spec.partitions is not None and spec.partitions != topic.partitions:
        raise TopicMismatch(
            f"topic {spec.name!r} has {topic.partitions} partitions, not {spec.partitions}; their number is fixed at "
            f"creation: set partitions to {topic.partitions}, or choose another name"
        )


MAX_PAYLOAD_BYTES = 1 << 20
CHUNK_ENTRIES = 1_000
CHUNK_BYTES = 1 << 20
CHUNKS_AT_ONCE = 16
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
    """Encode the payloads. Encode large ones before the transaction, which keeps other writers waiting."""
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

    `base` is the place of the partition's offset 0. No statement is open while the caller works: it would keep a
    snapshot, and SQLite's write-ahead log would grow for as long as the caller is slow or stopped.
    """
    place, last = _chunk_with(db, base, base + start), base + before - 1
    while rows := db.execute(f"{_NEXT_CHUNKS} LIMIT {CHUNKS_AT_ONCE}", (place, last)).fetchall():
        for chunk_place, appended_ms, blob in rows:
            yield chunk_place - base, appended_ms, _decode(blob)
        place = rows[-1][0] + 1


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
