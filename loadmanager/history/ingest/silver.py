"""A batch of raw records becomes rows of the silver tables and of the quarantine. Decoding is `decoding`'s and
`folding`'s; here is decided what is written, and in which order.

A report that stands in the log twice (its writer did not learn that the first was taken) counts once, as of its first
offset: whose it is and when it was measured is its identity. Which of the records of a batch repeat an earlier one is
found among the reports that were measured in the same span of time; where there is none, nothing is joined.

The fold's state is written when all that it says is written: so a batch that is run again finds the state from before
it, and if it finds a later one, there is nothing left to write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import Window as Over
from pyspark.sql import functions as f

from loadmanager.checking.topics import CHANNEL_TOPIC
from loadmanager.decisions.log import DECISIONS_TOPIC
from loadmanager.history import decoding
from loadmanager.history.ingest.failpoints import Failpoints
from loadmanager.history.ingest.progress import WRITER, Reached, positions
from loadmanager.history.ingest.verdicts import verdicts
from loadmanager.history.lake import Lake, Once
from loadmanager.history.sources import Source, missing
from loadmanager.history.sources.topics import TOPICS
from loadmanager.load.model import BROKERS_TOPIC, BUNDLES_TOPIC

DECODERS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "broker_load": decoding.broker_load,
    "bundle_load": decoding.bundle_load,
    "bundle_total": decoding.bundle_total,
    "decision": decoding.decision,
    "move": decoding.move,
    "audit": decoding.audit,
    "group_lag": decoding.group_lag,
}
WRITES_AT_ONCE = 3
"""A commit is mostly waiting; more at once only compete for the cores."""


class Head(msgspec.Struct, frozen=True):
    """The table with one row a record of a topic, and the columns that make two records the same report."""

    topic: str
    table: str
    key: tuple[str, ...]


HEADS = (
    Head(BROKERS_TOPIC, "broker_load", ("broker", "incarnation", "at")),
    Head(BUNDLES_TOPIC, "bundle_total", ("broker", "incarnation", "at")),
    Head(DECISIONS_TOPIC, "decision", ("id", "at")),
)


class Batch(msgspec.Struct, frozen=True):
    """The records of a batch that bronze has, and where the ingest was before it. `topics`: of which there are any."""

    number: int
    rows: DataFrame
    topics: frozenset[str]
    before: Reached


def write(lake: Lake, batch: Batch, source: Source, partitions: int, failpoints: Failpoints) -> None:
    """Write all that the batch says, except that it is complete. `partitions`: the channel's."""
    once = Once(WRITER, batch.number)
    channel = batch.rows.where(f.col("topic") == CHANNEL_TOPIC) if CHANNEL_TOPIC in batch.topics else None
    kept: list[DataFrame] = []
    try:
        decoded = decoding.decode(batch.rows).persist(StorageLevel.MEMORY_AND_DISK)
        kept.append(decoded)
        fold = verdicts(lake, batch.number, channel, source, partitions)
        bad = [missing(batch.rows, positions(lake, batch.before)), decoding.unreadable(decoded)]
        writes: list[Callable[[], None]] = []
        if fold is not None:
            kept.append(fold.folded.lists)
            bad.append(fold.folded.unreadable)
            writes += [partial(fold.write, lake, table, once) for table in ("channel", "transition")]
        first = without_repeats(lake, decoded, batch.topics)
        writes += [
            partial(lake.append, table, DECODERS[table](first), once)
            for topic in sorted(batch.topics - {CHANNEL_TOPIC})
            for table in TOPICS[topic].tables
        ]
        lake.append("quarantine", reduce(DataFrame.unionByName, bad), once)
        failpoints.reached("quarantine")
        _all(writes, failpoints)
        failpoints.reached("silver")
        if fold is not None:
            lake.append("channel_state", fold.folded.state, once)
            failpoints.reached("state")
    finally:
        for rows in kept:
            rows.unpersist()


def without_repeats(lake: Lake, decoded: DataFrame, topics: Iterable[str]) -> DataFrame:
    """The decoded records without those that repeat a report, of this batch or of the lake. Deletions never do."""
    found = [_repeats(lake, decoded, head) for head in HEADS if head.topic in topics]
    repeats = [rows for rows in found if rows is not None]
    if not repeats:
        return decoded
    again = reduce(DataFrame.unionByName, repeats)
    return decoded.join(f.broadcast(again), ["topic", "partition", "offset"], "left_anti")


def _repeats(lake: Lake, decoded: DataFrame, head: Head) -> DataFrame | None:
    """Topic, partition and offset of the records that are to be left out; None where there are none."""
    reports = DECODERS[head.table](decoded).where(f.col("at").isNotNull()).select(*head.key, "partition", "offset")
    bounds = reports.agg(f.unix_micros(f.min("at")), f.unix_micros(f.max("at"))).first()
    if bounds is None or bounds[0] is None:
        return None
    there = _measured(lake, head, *bounds)
    order = Over.partitionBy(*head.key).orderBy("partition", "offset")
    ranked = reports.withColumn("place", f.row_number().over(order))
    known = ranked.join(there.withColumn("known", f.lit(True)), list(head.key), "left")
    again = known.where((f.col("place") > 1) | f.col("known")).select(
        f.lit(head.topic).alias("topic"), "partition", "offset"
    )
    return None if again.isEmpty() else again


def _measured(lake: Lake, head: Head, begin_us: int, end_us: int) -> DataFrame:
    """The keys in the lake from `begin_us` to `end_us`, both included."""
    begin, end = (f.timestamp_micros(f.lit(time)) for time in (begin_us, end_us))
    rows = lake.table(head.table).where(f.col("at").between(begin, end))
    return rows.where(f.col("day").between(f.to_date(begin), f.to_date(end))).select(*head.key).distinct()


def _all(writes: Iterable[Callable[[], None]], failpoints: Failpoints) -> None:
    with ThreadPoolExecutor(WRITES_AT_ONCE) as pool:
        pending = [pool.submit(write) for write in writes]
        for done in pending:
            done.result()
            failpoints.reached("head")
