"""The tables of a log's SQLite file, and its topics. The callers own the transactions.

Files of earlier releases lack the tables `begins` and `writers`, and get them when they are opened. A partition that
was never trimmed has no row in `begins`.
"""

from __future__ import annotations

from sqlite3 import Connection

import msgspec

from statechannel.errors import TopicMismatch
from statechannel.ports import TopicSpec

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
