"""Layouts of a plain topic in SQLite: a row a record, a row a batch, and a row a batch with an index beside it.

The second is what the log writes. The third adds a table of base offset, count and time. All three hold the same
batches, written with the log's own encoding and its settings of SQLite, in one transaction a batch.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from bench.figures import emit, median
from statechannel.adapters.sqlite import log_tables
from statechannel.adapters.sqlite.log_tables import OFFSET_BITS, SCHEMA, StoredTopic, encoded_chunks, insert_chunks
from statechannel.adapters.sqlite.log_writer import raise_begin
from statechannel.ports import Payload

RECORDS = 200_000
BATCHES = (1, 20, 200)
SIZES = (16, 128, 1_024)
LOOKED_UP = 2_000
INDEX = "CREATE TABLE batch_index (base INTEGER PRIMARY KEY, count INTEGER NOT NULL, appended_ms INTEGER NOT NULL)"
BY_TIME = "CREATE INDEX batch_times ON batch_index (appended_ms)"
BASE = 1 << OFFSET_BITS

_encode = msgspec.msgpack.encode

Insert = Callable[[sqlite3.Connection, list[Payload], int, int], None]
Find = Callable[[sqlite3.Connection, int], object]


def run(kind: str) -> None:
    """All figures of this bench, which has nothing to do with Kafka."""
    for size_bytes in SIZES:
        for batch in BATCHES:
            plain: dict[str, float] = {}
            for name, layout in LAYOUTS.items():
                figures = _measured(layout, bytes(size_bytes), batch)
                plain = plain or figures
                details: dict[str, Any] = {
                    what: round(figure, 2) for what, figure in figures.items() if what != "records_s"
                }
                emit(
                    "batch_rows", f"{name}, {size_bytes} bytes, batches of {batch}", figures["records_s"], "records/s",
                    ratio=round(figures["records_s"] / plain["records_s"], 3), **details,
                )  # fmt: skip


# --- the layouts
def row_a_record(db: sqlite3.Connection, payloads: list[Payload], first: int, now_ms: int) -> None:
    """As the log writes a compacted topic."""
    rows = [(BASE + at, now_ms, _encode([(p.key, p.value)])) for at, p in enumerate(payloads, first)]
    db.executemany("INSERT INTO chunks (place, appended_ms, entries) VALUES (?, ?, ?)", rows)
    db.execute("UPDATE partitions SET next_offset = next_offset + ? WHERE id = 1", (len(payloads),))


def row_a_batch(db: sqlite3.Connection, payloads: list[Payload], first: int, now_ms: int) -> None:
    """As the log writes a plain topic."""
    insert_chunks(db, 1, encoded_chunks(payloads), now_ms)


def with_index(db: sqlite3.Connection, payloads: list[Payload], first: int, now_ms: int) -> None:
    """The same, and a row of the index."""
    row_a_batch(db, payloads, first, now_ms)
    db.execute("INSERT INTO batch_index VALUES (?, ?, ?)", (BASE + first, len(payloads), now_ms))


def chunk_with(db: sqlite3.Connection, offset: int) -> object:
    """The batch of an offset, decoded, by the log's own query."""
    return log_tables.next_batch(db, _TOPIC, 0, offset, offset + 1, aligned=False)


def by_steps(db: sqlite3.Connection, at_ms: int) -> object:
    """The log's own search of a time."""
    return log_tables.offset_at(db, 1, at_ms)


def by_index(db: sqlite3.Connection, at_ms: int) -> object:
    """One look into the index."""
    sql = "SELECT base FROM batch_index WHERE appended_ms >= ? ORDER BY appended_ms LIMIT 1"
    return db.execute(sql, (at_ms,)).fetchone()


LAYOUTS: dict[str, tuple[Insert, Find]] = {
    "a row a batch": (row_a_batch, by_steps),
    "a row a record": (row_a_record, by_steps),
    "a row a batch, and an index": (with_index, by_index),
}


_TOPIC = StoredTopic("bench", 1, 1, compacted=False)


# --- measuring
def _measured(layout: tuple[Insert, Find], value: bytes, batch: int) -> dict[str, float]:
    insert, find_time = layout
    directory = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        with closing(sqlite3.connect(directory / "log.db", isolation_level=None)) as db:
            _prepare(db)
            payloads = [Payload(None, value)] * batch
            count = min(RECORDS, 3_000 * batch)
            began_s, cpu_s = time.perf_counter(), time.process_time()
            for number in range(count // batch):
                db.execute("BEGIN IMMEDIATE")
                insert(db, payloads, number * batch, 1_000 + number)
                db.execute("COMMIT")
            figures = {"records_s": count / (time.perf_counter() - began_s)}
            figures["cpu_us"] = (time.process_time() - cpu_s) / count * 1e6
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            figures["bytes_a_record"] = (directory / "log.db").stat().st_size / count
            figures |= _looked_up(db, count, batch, find_time)
            figures["scan_records_s"] = _scanned(db, count)
            figures["trim_inside_ms"] = _trimmed(db, count)
            return figures
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _prepare(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA journal_mode = WAL").fetchall()
    db.execute("PRAGMA synchronous = FULL").fetchall()
    for statement in (*SCHEMA.split(";"), INDEX, BY_TIME):
        db.execute(statement)
    db.execute("INSERT INTO partitions VALUES (1, 0)")


def _looked_up(db: sqlite3.Connection, count: int, batch: int, find_time: Find) -> dict[str, float]:
    chance = random.Random(1)
    by_offset, by_time = list[float](), list[float]()
    for _ in range(LOOKED_UP):
        offset, at_ms = chance.randrange(count), 1_000 + chance.randrange(count // batch)
        began_s = time.perf_counter()
        chunk_with(db, offset)
        by_offset.append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
        find_time(db, at_ms)
        by_time.append(time.perf_counter() - began_s)
    return {"offset_us": median(by_offset) * 1e6, "time_us": median(by_time) * 1e6}


def _scanned(db: sqlite3.Connection, count: int) -> float:
    began_s, read = time.perf_counter(), 0
    for _, _, entries in log_tables.chunks_between(db, BASE, 0, count):
        read += len(entries)
    assert read == count, read
    return count / (time.perf_counter() - began_s)


def _trimmed(db: sqlite3.Connection, count: int) -> float:
    """Half of the log is trimmed, up to the middle of a batch if it has one, and swept in one step."""
    before = count // 2 + 1
    began_s = time.perf_counter()
    db.execute("BEGIN IMMEDIATE")
    raise_begin(db, 1, before)
    kept = db.execute("SELECT max(place) FROM chunks WHERE place <= ?", (BASE + before,)).fetchone()[0]
    db.execute("DELETE FROM chunks WHERE place < ?", (kept,))
    db.execute("DELETE FROM batch_index WHERE base < ?", (kept,))
    db.execute("COMMIT")
    return (time.perf_counter() - began_s) * 1e3
