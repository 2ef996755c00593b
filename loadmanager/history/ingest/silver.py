"""A batch of raw records becomes rows of the silver tables and of the quarantine. Decoding is `decoding`'s and
`folding`'s, what repeats is `repeats`'; here is decided what is written, and in which order.

All is made of bronze's rows, which stay what they are; so a batch that is run again says the same. A table that gets no
rows is not written. The tables and the fold's state are written at once, in no order: a batch that is run again goes on
from the states of batches before it, whatever of its own it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.checking.topics import CHANNEL_TOPIC
from loadmanager.history import decoding
from loadmanager.history.folding import Known
from loadmanager.history.ingest.counting import FOLDED, UNREADABLE, Count, count
from loadmanager.history.ingest.failpoints import Failpoints
from loadmanager.history.ingest.progress import WRITER, Mark, Reached, positions
from loadmanager.history.ingest.repeats import PLACE, Recent, repeats
from loadmanager.history.ingest.verdicts import Verdicts, verdicts
from loadmanager.history.lake import Lake, Once
from loadmanager.history.sources import Source, missing
from loadmanager.history.sources.topics import TOPICS

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
"""A commit is mostly waiting."""


class Memory(msgspec.Struct):
    """What a run knows of the lake without asking it: where the channel's partitions stand, and what came last."""

    known: Known | None = None
    recent: Recent = msgspec.field(default_factory=Recent)


class Batch(msgspec.Struct, frozen=True):
    """The records of a batch that bronze has, and where the ingest was before it.

    `memory` is the run's, if it has begun the batch. If another one has, perhaps of a release that read less, what it
    wrote may be any part, and the lake is asked.
    """

    number: int
    rows: DataFrame
    marks: tuple[Mark, ...]
    before: Reached
    memory: Memory | None

    @property
    def topics(self) -> frozenset[str]:
        """Of which there are records."""
        return frozenset(mark.topic for mark in self.marks)


def write(lake: Lake, batch: Batch, source: Source, partitions: int, failpoints: Failpoints) -> None:
    """Write all that the batch says, except that it is complete. `partitions`: the channel's."""
    once, memory = Once(WRITER, batch.number), batch.memory
    kept: list[DataFrame] = []
    try:
        decoded = decoding.decode(batch.rows.where(f.col("topic") != CHANNEL_TOPIC)).persist(
            StorageLevel.MEMORY_AND_DISK
        )
        kept.append(decoded)
        fold = verdicts(
            lake, batch.number, _channel(batch), batch.marks, source, partitions,
            resumed=memory is None, remembered=memory and memory.known,
        )  # fmt: skip
        if fold is not None:
            kept.append(fold.folded.lists)
        counted = count(decoded, fold.folded if fold is not None else None)
        again = repeats(lake, decoded, counted.spans, memory and memory.recent)
        failpoints.reached("judged")
        bad = _bad(lake, batch, decoded, fold, counted)
        writes = _writes(lake, decoded, again, fold, counted, once)
        if bad:
            writes.append(partial(lake.append, "quarantine", reduce(DataFrame.unionByName, bad), once))
        _all(writes, failpoints)
        failpoints.reached("silver")
        if memory is not None and fold is not None:
            memory.known = fold.known.behind(counted.positions, fold.state)
    finally:
        for rows in kept:
            rows.unpersist()


def _channel(batch: Batch) -> DataFrame | None:
    return batch.rows.where(f.col("topic") == CHANNEL_TOPIC) if CHANNEL_TOPIC in batch.topics else None


def _bad(lake: Lake, batch: Batch, decoded: DataFrame, fold: Verdicts | None, counted: Count) -> list[DataFrame]:
    """What goes to the quarantine; nothing, as a rule."""
    bad: list[DataFrame] = []
    if not batch.before.followed_by(batch.marks):
        bad.append(missing(batch.rows, positions(lake, batch.before)))
    if counted.any(UNREADABLE):
        bad.append(decoding.unreadable(decoded))
    if fold is not None and counted.any(f"{FOLDED}unreadable"):
        bad.append(fold.folded.unreadable)
    return bad


def _writes(
    lake: Lake, decoded: DataFrame, again: DataFrame | None, fold: Verdicts | None, counted: Count, once: Once
) -> list[Callable[[], None]]:
    """One for each table that gets rows, and one for the fold's state; independent of each other."""
    writes: list[Callable[[], None]] = []
    if fold is not None:
        writes += [
            partial(fold.write, lake, table, once)
            for table in TOPICS[CHANNEL_TOPIC].tables
            if counted.any(FOLDED + table)
        ]
        if counted.any(f"{FOLDED}state"):
            writes.append(partial(lake.append, "channel_state", fold.state, once))
    first = without(decoded, again)
    writes += [partial(lake.append, table, make(first), once) for table, make in DECODERS.items() if counted.any(table)]
    return writes


def without(decoded: DataFrame, again: DataFrame | None) -> DataFrame:
    """The decoded records without those that repeat a report."""
    return decoded if again is None else decoded.join(f.broadcast(again), list(PLACE), "left_anti")


def _all(writes: Iterable[Callable[[], None]], failpoints: Failpoints) -> None:
    """Do all of them; none begins once one has failed."""
    with ThreadPoolExecutor(WRITES_AT_ONCE) as pool:
        try:
            for done in [pool.submit(write) for write in writes]:
                done.result()
                failpoints.reached("head")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
