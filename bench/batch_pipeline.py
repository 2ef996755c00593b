"""Would a start be faster in parallel stages? A log of 200,000 records is read, decoded and folded in several ways.

The stages hand over in order through a bounded queue, and a part that fails stops the pipeline. *As it is* is the
replica's own way: a thread reads ahead, up to 16 batches, and the loop decodes and folds.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import uvloop

from bench.channel_log import ChannelLog
from bench.figures import emit, median
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.adapters.sqlite.log_tables import OFFSET_BITS, chunks_between
from statechannel.errors import CorruptRecord
from statechannel.law import codec
from statechannel.law.record import Record
from statechannel.law.table import OwnershipTable
from statechannel.ports import LogEntry, Payload, TopicSpec
from statechannel.runtime.channel import Replica

RECORDS = 200_000
ROUNDS = 3
AHEAD = 16
TOPIC = "bundle-state"

Batch = list[LogEntry]
Decoded = list[tuple[LogEntry, Record | None]]


def run(kind: str) -> None:
    """All figures of this bench, which reads the SQLite log."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        path = Path(directory) / "log.db"
        uvloop.run(_write(path))
        ways: dict[str, Callable[[Path], OwnershipTable]] = {
            "one thread": one_thread,
            "a thread reads ahead": reading_ahead,
            "a thread reads and decodes ahead": decoding_ahead,
            "two threads decode": lambda where: decoding_in_parallel(where, 2),
            "four threads decode": lambda where: decoding_in_parallel(where, 4),
            "as it is": replica,
        }
        took: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                began_s = time.perf_counter()
                table = way(path)
                took[name].append(time.perf_counter() - began_s)
                assert table.next_offset(0) == RECORDS, table.next_offset(0)
                del table
        base = median(took["one thread"])
        for name, each in took.items():
            emit(
                "batch_pipeline", f"{RECORDS:,} records read, decoded and folded, {name}", median(each), "s",
                ratio=round(median(each) / base, 3), least_s=round(min(each), 3), most_s=round(max(each), 3),
            )  # fmt: skip
        _stages(path)


async def _write(path: Path) -> None:
    log = SqliteLog(path)
    await log.start(30)
    await log.open_topic(TopicSpec(TOPIC, 1))
    part = ChannelLog(1, 1_000).part(0)
    for begin in range(0, RECORDS, 1_000):
        await log.append(TOPIC, 0, [Payload(None, part.value(offset)) for offset in range(begin, begin + 1_000)])
    await log.close()


def _stages(path: Path) -> None:
    """What each stage takes by itself: no pipeline is faster than its longest one."""
    began_s = time.perf_counter()
    batches = list(read(path))
    read_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    decoded = [decode(batch) for batch in batches]
    decode_s = time.perf_counter() - began_s
    table = OwnershipTable(1)
    began_s = time.perf_counter()
    for each in decoded:
        fold(table, each)
    fold_s = time.perf_counter() - began_s
    for name, took_s in (("read", read_s), ("decode", decode_s), ("fold", fold_s)):
        emit(
            "batch_pipeline",
            f"the stage `{name}` by itself",
            took_s,
            "s",
            ratio=round(took_s / (read_s + decode_s + fold_s), 3),
        )


# --- the stages
def read(path: Path) -> Iterator[Batch]:
    """The entries, in batches as they stand in the file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for first, appended_ms, rows in chunks_between(db, 1 << OFFSET_BITS, 0, RECORDS):
            yield [LogEntry(0, at, key, value, appended_ms) for at, (key, value) in enumerate(rows, first)]


def decode(batch: Batch) -> Decoded:
    """The records of the entries, None for what is none."""
    return [(entry, _decoded(entry)) for entry in batch]


def _decoded(entry: LogEntry) -> Record | None:
    try:
        return codec.decode(entry.value)
    except CorruptRecord:
        return None


def fold(table: OwnershipTable, decoded: Decoded) -> None:
    """Apply the records in order."""
    for entry, record in decoded:
        if record is None:
            table.skip(entry.partition, entry.offset)
        else:
            table.replay(entry.partition, entry.offset, record)


# --- the pipelines
def one_thread(path: Path) -> OwnershipTable:
    """Each batch through all stages."""
    table = OwnershipTable(1)
    for batch in read(path):
        fold(table, decode(batch))
    return table


def reading_ahead(path: Path) -> OwnershipTable:
    """A thread reads; this one decodes and folds."""
    table = OwnershipTable(1)
    for batch in ahead(read(path)):
        fold(table, decode(batch))
    return table


def decoding_ahead(path: Path) -> OwnershipTable:
    """A thread reads and decodes; this one folds."""
    table = OwnershipTable(1)
    for decoded in ahead(decode(batch) for batch in read(path)):
        fold(table, decoded)
    return table


def decoding_in_parallel(path: Path, threads: int) -> OwnershipTable:
    """This thread reads and folds, others decode; at most AHEAD batches are between the two, in their order."""
    table, under_way = OwnershipTable(1), deque[Future[Decoded]]()
    with ThreadPoolExecutor(threads) as pool:
        for batch in read(path):
            under_way.append(pool.submit(decode, batch))
            if len(under_way) == AHEAD:
                fold(table, under_way.popleft().result())  # raises what the part raised
        while under_way:
            fold(table, under_way.popleft().result())
    return table


def ahead(items: Iterator[object]) -> Iterator:  # type: ignore[type-arg]
    """The items, made by a thread of its own, at most AHEAD before they are taken; its error is raised here."""
    made: queue.Queue[tuple[object, BaseException | None] | None] = queue.Queue(AHEAD)

    def make() -> None:
        try:
            for item in items:
                made.put((item, None))
            made.put(None)
        except BaseException as error:  # noqa: BLE001 - it is raised where the items are taken
            made.put((None, error))

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    while (taken := made.get()) is not None:
        item, error = taken
        if error is not None:
            raise error
        yield item
    thread.join()


def replica(path: Path) -> OwnershipTable:
    """What a broker does."""
    return uvloop.run(_followed(path))


async def _followed(path: Path) -> OwnershipTable:
    log = SqliteLog(path)
    await log.start(30)
    follower = Replica(log, TOPIC)
    await follower.open(1)
    following = asyncio.create_task(follower.follow())
    while follower.table.next_offset(0) < RECORDS:
        follower.progress.clear()
        await follower.progress.wait()
    following.cancel()
    await asyncio.wait([following])
    await log.close()
    return follower.table
