"""Turns a batch of raw records into rows of the silver tables and of the quarantine.

`decoding` and `folding` decode, `repeats` finds repeated reports; this module decides what is written, and in which
order. Everything is made from bronze's rows, which never change, so a batch that is run again gives the same rows. A
table without new rows is not written. The tables, the quarantine and the replay's state are written concurrently, in no
order. A batch that is run again starts from the states of earlier batches, whatever it has already written itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial, reduce

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.history import decoding, folding
from loadmanager.history.files import File, Files
from loadmanager.history.folding import Known
from loadmanager.history.ingest.counting import UNREADABLE, count_decoded, count_folded
from loadmanager.history.ingest.failpoints import Failpoints
from loadmanager.history.ingest.progress import WRITER, Mark, Reached, positions
from loadmanager.history.ingest.repeats import PLACE, Recent, repeats, reports_of
from loadmanager.history.ingest.replaying import fold_files
from loadmanager.history.ingest.verdicts import follow, verdicts
from loadmanager.history.ingest.writing import Written
from loadmanager.history.lake import Lake, Once
from loadmanager.history.schemas import RAW
from loadmanager.history.sources import TOPICS, Source, missing

DECODERS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "broker_load": decoding.broker_load,
    "bundle_load": decoding.bundle_load,
    "bundle_total": decoding.bundle_total,
    "decision": decoding.decision,
    "move": decoding.move,
    "audit": decoding.audit,
    "group_lag": decoding.group_lag,
}
WRITES_AT_ONCE = 6
"""Concurrent commits; a commit mostly waits."""


class Memory(msgspec.Struct):
    """What a run knows of the lake without asking it: where the channel's partitions stand, and the last reports."""

    known: Known | None = None
    recent: Recent = msgspec.field(default_factory=Recent)


class Batch(msgspec.Struct, frozen=True):
    """The records of a batch that bronze has, and where the ingest was before it.

    `memory` is the run's, if that run has begun the batch, and so are the files that it has `written`, if it writes
    files. If another run has begun it, perhaps of an older release, any part of the batch may be in the lake already,
    and the lake is asked.
    """

    number: int
    marks: tuple[Mark, ...]
    before: Reached
    memory: Memory | None
    written: Written | None = None

    @property
    def once(self) -> Once:
        """The writer's name and number for each table's commit."""
        return Once(WRITER, self.number)

    def rows(self, lake: Lake) -> DataFrame:
        """Its records."""
        return lake.table("bronze").where(f.col("batch") == self.number).select(*RAW.names)

    @property
    def topics(self) -> frozenset[str]:
        """Topics with records in this batch."""
        return frozenset(mark.topic for mark in self.marks)


def write(lake: Lake, batch: Batch, source: Source, partitions: int, failpoints: Failpoints) -> None:
    """Write everything of the batch except its progress. `partitions`: the channel's.

    The channel's records and the others are independent: both are judged concurrently, and the rows of one are written
    while the other is judged. After a failure no further write begins.
    """
    kept: list[DataFrame] = []
    followed = batch.before.followed_by(batch.marks)
    bad = Part() if followed else Part(bad=[missing(batch.rows(lake), positions(lake, batch.before))])
    with _kept_meanwhile(kept), ThreadPoolExecutor(WRITES_AT_ONCE) as pool:
        try:
            judging = [
                pool.submit(_of_channel, lake, batch, source, partitions, kept),
                pool.submit(_of_others, lake, batch, kept),
            ]
            writing: list[Future[None]] = []
            for judged in as_completed(judging):
                part = judged.result()
                bad.bad += part.bad
                bad.bad_files += part.bad_files
                writing += map(pool.submit, part.writes)
            failpoints.reached("judged")
            if bad.bad or bad.bad_files:
                writing.append(pool.submit(_quarantine, lake, batch, bad))
            for written in as_completed(writing):
                written.result()
                failpoints.reached("head")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        failpoints.reached("silver")


@contextmanager
def _kept_meanwhile(kept: list[DataFrame]) -> Generator[None]:
    try:
        yield
    finally:
        for rows in kept:
            rows.unpersist()


class Part(msgspec.Struct):
    """The writes of one part of the records, independent of each other, and what goes to quarantine (rarely any).

    That is one commit for all parts: `bad` are rows, `bad_files` are written already.
    """

    writes: list[Callable[[], None]] = []
    bad: list[DataFrame] = []
    bad_files: list[File] = []


def _quarantine(lake: Lake, batch: Batch, part: Part) -> None:
    if batch.written is None:
        lake.append("quarantine", reduce(DataFrame.unionByName, part.bad), batch.once)
        return
    files = Files(lake.folder)
    for rows in part.bad:
        found = rows.toArrow()
        files.add("quarantine", dict(zip(found.column_names, found.columns, strict=True)))
    if every := [*part.bad_files, *files.close()]:
        lake.add("quarantine", every, batch.once)


def _of_channel(lake: Lake, batch: Batch, source: Source, partitions: int, kept: list[DataFrame]) -> Part:
    memory = batch.memory
    if memory is not None and memory.known is not None:
        known = memory.known
    else:
        known = folding.known(lake.table("channel_state"), batch.number)
    records = CHANNEL_TOPIC in batch.topics
    if batch.written is not None and follow(batch.marks, known):
        return _of_files(lake, batch, known, partitions) if records else Part()
    fold = verdicts(
        lake, batch.number, batch.rows(lake).where(f.col("topic") == CHANNEL_TOPIC) if records else None, batch.marks,
        source, partitions, known, resumed=memory is None,
    )  # fmt: skip
    if fold is None:
        return Part()
    kept.append(fold.folded.lists)
    counted = count_folded(fold.folded)
    part = Part(bad=[fold.folded.unreadable] if "unreadable" in counted else [])
    tables = [table for table in TOPICS[CHANNEL_TOPIC].tables if table in counted]
    part.writes += [partial(fold.write, lake, table, batch.once) for table in tables]
    if "state" in counted:
        part.writes.append(partial(lake.append, "channel_state", fold.folded.state, batch.once))
    if memory is not None:
        memory.known = None  # read again: a seed may have become known
    return part


def _of_files(lake: Lake, batch: Batch, known: Known, partitions: int) -> Part:
    assert batch.written is not None
    folded = fold_files(lake.spark, lake.folder, batch.written.files["bronze"], known, partitions, batch.number)
    if batch.memory is not None:
        batch.memory.known = known.behind(folded.known)
    files = dict(folded.files)
    bad = files.pop("quarantine", [])
    return Part([partial(lake.add, table, each, batch.once) for table, each in files.items()], bad_files=bad)


def _of_others(lake: Lake, batch: Batch, kept: list[DataFrame]) -> Part:
    if batch.topics <= {CHANNEL_TOPIC}:
        return Part()
    written, recent = batch.written, batch.memory and batch.memory.recent
    files = {} if written is None else dict(written.files)
    bad_files = files.pop("quarantine", [])
    again = None if written is None else repeats(lake, written.reports, recent)
    if written is not None and again is None:
        writes = [partial(lake.add, table, each, batch.once) for table, each in files.items() if table != "bronze"]
        return Part(writes, bad_files=bad_files)
    records = batch.rows(lake).where(f.col("topic") != CHANNEL_TOPIC)
    decoded = decoding.decode(records).persist(StorageLevel.MEMORY_AND_DISK)
    kept.append(decoded)
    counted = count_decoded(decoded)
    if written is None:
        again = repeats(lake, reports_of(decoded), recent)
    first = without(decoded, again)
    return Part(
        [partial(lake.append, table, make(first), batch.once) for table, make in DECODERS.items() if table in counted],
        [decoding.unreadable(decoded)] if written is None and UNREADABLE in counted else [],
        bad_files,
    )


def without(decoded: DataFrame, again: DataFrame | None) -> DataFrame:
    """The decoded records without those that repeat a report."""
    return decoded if again is None else decoded.join(f.broadcast(again), list(PLACE), "left_anti")
