"""One batch of the stream: bronze, then silver, then the replay's state, then progress. And records read again.

Batches have numbers of the lake's own, which only grow, whatever checkpoint Spark has. With a lost checkpoint, or one
of another version of the plan, topics are read again, and records in the lake are skipped by their offsets.

Silver is made from bronze's rows, which never change, so a batch that is run again gives the same rows. A table without
new rows is not written: an empty commit costs as much as any other. The tables, the quarantine and the replay's state
are written concurrently, in no order. A batch that is run again starts from the states of earlier batches, whatever it
has already written itself.

`reread` reads quarantined records of a newer format again, with the decoders of this release. Records of the channel
are not among them: the replay waits before such a record and goes on by itself (`channel.py`); here only its quarantine
row is removed. A killed run is completed by the next one: rows go into silver unless their record is there, and leave
the quarantine afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from functools import partial, reduce

import msgspec
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import LongType

from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.errors import Conflict, Invalid
from loadmanager.history import utc, verdicts
from loadmanager.history.files import File, Files
from loadmanager.history.ingest import records
from loadmanager.history.ingest.channel import follow, forget, replayed_channel
from loadmanager.history.ingest.failpoints import Failpoints
from loadmanager.history.ingest.gold import GOLD
from loadmanager.history.ingest.positions import (
    INSTEAD,
    SILVER,
    WRITER,
    Logs,
    Mark,
    Partition,
    Reached,
    advance,
    arrived,
    positions,
    reached,
    refuse_other_records,
)
from loadmanager.history.ingest.records import NEWER
from loadmanager.history.ingest.repeats import PLACE, Recent, repeats, reports_of
from loadmanager.history.ingest.tasks import Written, fold_files, write_files
from loadmanager.history.lake import ALONE, Lake, Once
from loadmanager.history.schemas import RAW
from loadmanager.history.sources import TOPICS, Source, missing
from loadmanager.history.verdicts import KINDS, Folded, Known

STATES_KEPT = 25
"""Every so many batches, states that no replay starts from any more are dropped, except one a day."""


_FOR_BATCHES = {
    "spark.sql.adaptive.enabled": "false",  # replans each step, for small queries that never change
    "spark.sql.inMemoryColumnarStorage.compressed": "false",  # what is kept for seconds is not worth it
}


class Plan(msgspec.Struct, frozen=True):
    """What batches are made with. `partitions` is how many the channel has."""

    source: Source
    partitions: int
    failpoints: Failpoints


class Batches:
    """For `foreachBatch`. `run` is a name that no other run has; `begun` is where the lake is, if that is known.

    `passed`: see `Order`, by Spark's checkpoint.
    """

    def __init__(
        self,
        root: str,
        plan: Plan,
        run: str,
        begun: Reached | None = None,
        passed: frozenset[Partition] = frozenset(),
    ) -> None:
        self._root = root
        self._plan = plan
        self._run = run
        self._lake: Lake | None = None
        self._reached = begun
        self._memory = Memory()
        self._logs = Logs(plan.source)
        self._order = Order(passed)
        self._version: int | None = None

    def __call__(self, rows: DataFrame, _: int) -> None:
        """Take a batch. Raises Conflict if another ingest writes to the lake, Invalid if a topic was recreated."""
        lake, before = self._ready(rows)
        self._plan.failpoints.reached("begun")
        self._logs.check(lake, before)
        after = before
        with refusing_repeats():
            new = rows.where(self._order.is_new(before))
            if lake.folder:
                written = write_files(new, lake.folder, before.batch + 1)
                kept = self._add(lake, written, before)
            else:
                written, kept = None, self._keep(lake, new, before)
            if kept:
                after = self._reached = finish(lake, before, self._plan, self._memory, written)
        self._order = self._order.behind(before, after)

    def _ready(self, rows: DataFrame) -> tuple[Lake, Reached]:
        if self._lake is not None and self._reached is not None:
            return self._lake, self._reached
        session = rows.sparkSession  # the stream's own session: what is set here holds for its batches only
        for key, value in _FOR_BATCHES.items():
            session.conf.set(key, value)
        self._lake = Lake(session, self._root)
        if self._lake.folder:
            prepare_all(self._lake)
        self._reached = self._reached or complete(self._lake, self._plan)
        if self._reached.next_offsets:
            refuse_other_records(self._lake, first_of(rows.where(self._reached.is_below())))
        return self._lake, self._reached

    def _add(self, lake: Lake, written: Written, before: Reached) -> bool:
        """Commit bronze's files; returns whether there are any."""
        if not written.marks:  # a number that bronze has used for nothing could not be used again
            return False
        # again: a topic may have become another one while its records were read
        self._logs.check(lake, before, {mark.topic for mark in written.marks})
        lake.add("bronze", written.files["bronze"], Once(WRITER, before.batch + 1))
        self._plan.failpoints.reached("bronze")
        return True

    def _keep(self, lake: Lake, new: DataFrame, before: Reached) -> bool:
        """The same on a file system that only Spark writes to."""
        if new.isEmpty():
            return False
        number = before.batch + 1
        note = f"{self._run}/{number}"
        rows = new.select(
            *RAW.names, utc.day_of(f.col("appended_at")).alias("day"), f.lit(number).cast(LongType()).alias("batch")
        )
        lake.append("bronze", rows, Once(WRITER, number), note)
        self._check_alone(lake, number, lake.noted("bronze", note))
        try:
            self._logs.check(lake, before)  # again: a topic may have become another one while its records were read
        except Invalid:
            lake.remove("bronze", f"batch = {number}")
            raise
        self._plan.failpoints.reached("bronze")
        return True

    def _check_alone(self, lake: Lake, number: int, version: int | None) -> None:
        """Raises Conflict where others have written to bronze: this batch, or what a file system cannot keep apart."""
        if version is None:
            raise Conflict(f"another ingest has written batch {number} to {lake.root}: stop one of the two")
        before, self._version = self._version, version
        if before is not None and version != before + 1 and not lake.keeps_writers_apart:
            raise Conflict(f"another job writes to {lake.root}; {ALONE}: stop one of the two")


def prepare_all(lake: Lake) -> None:
    """Make the tables of a batch, before tasks put files there: a folder that has files does not become a table."""
    with ThreadPoolExecutor(WRITES_AT_ONCE) as pool:
        tables = ("bronze", "quarantine", "channel_state", *DECODERS, *TOPICS[CHANNEL_TOPIC].tables)
        list(pool.map(lake.prepare, tables))


class Order(msgspec.Struct, frozen=True):
    """Which records below the lake's position are skipped, as ones that the lake has, and which stop the run.

    Spark gives offsets in order. It gives some again in a run's first batch, if an earlier run was killed before Spark
    knew that this batch was done; and all of them, in many batches and runs, if the checkpoint was lost. `passed` are
    the partitions that Spark has passed the lake's position of, when the first batch is done: an offset of theirs that
    comes again belongs to another record.
    """

    passed: frozenset[Partition] = frozenset()
    begun: bool = False

    def is_new(self, before: Reached) -> Column:
        """Whether a record is new; the job that asks fails for a record that must not come."""
        strict = {key: offset for key, offset in before.next_offsets.items() if self.begun and key in self.passed}
        again = f.concat_ws("/", f.lit(_AGAIN), "topic", "partition", "offset", f.lit(""))
        return f.when(Reached(next_offsets=strict).is_below(), f.raise_error(again)).otherwise(~before.is_below())

    def behind(self, before: Reached, after: Reached) -> Order:
        """Behind a batch that brought the lake from one position to the other: Spark has passed what it moved."""
        moved = {key for key, offset in after.next_offsets.items() if before.next_offsets.get(key) != offset}
        return Order(self.passed | moved, begun=True)


_AGAIN = "loadmanager-again"


@contextmanager
def refusing_repeats() -> Generator[None]:
    """Turn the failure of `Order.is_new` into Invalid."""
    try:
        yield
    except Exception as error:
        found = re.search(rf"{_AGAIN}/([^/]+)/(\d+)/(\d+)/", str(error))
        if found is None:
            raise
        topic, partition, offset = found.groups()
        raise Invalid(
            f"offset {offset} of {topic}/{partition} came again with another record: the topic was created again, or "
            f"Kafka lost the end of its log. {INSTEAD}"
        ) from error


def complete(lake: Lake, plan: Plan) -> Reached:
    """Finish what an earlier run left unfinished, as far as bronze has the records. Returns where the lake is then."""
    return finish(lake, reached(lake, SILVER), plan)


def finish(
    lake: Lake, before: Reached, plan: Plan, memory: Memory | None = None, written: Written | None = None
) -> Reached:
    """Write what follows from the batch behind `before`, if bronze has it. Idempotent.

    Everything is made from bronze's rows: the topics may hold less by now, and a second computation must give the same.
    `memory` belongs to the run that has begun the batch, and so does what it has `written`; None if another run has.
    """
    number = before.batch + 1
    batch = Batch(number, () if written is None else written.marks, before, memory, written)
    if written is None:
        batch = msgspec.structs.replace(batch, marks=tuple(arrived(batch.rows(lake))))
    if not (marks := batch.marks):
        return before
    write(lake, batch, plan.source, plan.partitions, plan.failpoints)
    advance(lake, SILVER, number, marks)
    plan.failpoints.reached("progress")
    if number % STATES_KEPT == STATES_KEPT - 1:
        with suppress(Conflict):  # their files are being joined: there is a next time
            forget(lake, number)
    return before.after(number, marks)


def first_of(rows: DataFrame) -> DataFrame:
    """Topic, partition, offset and `appended_at` of the first record of each partition."""
    first = f.min_by(f.struct("offset", "appended_at"), "offset").alias("first")
    return rows.groupBy("topic", "partition").agg(first).select("topic", "partition", "first.*")


DECODERS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "broker_load": records.broker_load,
    "bundle_load": records.bundle_load,
    "bundle_total": records.bundle_total,
    "decision": records.decision,
    "move": records.move,
    "audit": records.audit,
    "group_lag": records.group_lag,
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
        known = verdicts.known(lake.table("channel_state"), batch.number)
    records = CHANNEL_TOPIC in batch.topics
    if batch.written is not None and follow(batch.marks, known):
        return _of_files(lake, batch, known, partitions) if records else Part()
    fold = replayed_channel(
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
    raw = batch.rows(lake).where(f.col("topic") != CHANNEL_TOPIC)
    decoded = records.decode(raw).persist(StorageLevel.MEMORY_AND_DISK)
    kept.append(decoded)
    counted = count_decoded(decoded)
    if written is None:
        again = repeats(lake, reports_of(decoded), recent)
    first = without(decoded, again)
    return Part(
        [partial(lake.append, table, make(first), batch.once) for table, make in DECODERS.items() if table in counted],
        [records.unreadable(decoded)] if written is None and UNREADABLE in counted else [],
        bad_files,
    )


def without(decoded: DataFrame, again: DataFrame | None) -> DataFrame:
    """The decoded records without those that repeat a report."""
    return decoded if again is None else decoded.join(f.broadcast(again), list(PLACE), "left_anti")


UNREADABLE = "unreadable"
"""Counted beside the tables: records that no decoder could read."""


Count = Mapping[str, int]
"""Rows by table, of those that have any."""


def count_decoded(decoded: DataFrame) -> Count:
    """Count decoded records, without looking for repeats."""
    sizes = records.sizes() | {UNREADABLE: f.col("kind").isNotNull().cast("int")}
    [(rows,)] = decoded.agg(_each(sizes, f.sum)).collect()
    return _some(rows)


def count_folded(folded: Folded) -> Count:
    """Count the rows of a fold, by their kind."""
    lengths = {kind: f.size(f.col(kind)) for kind in KINDS}
    there = {name: f.when(length > 0, length) for name, length in lengths.items()}
    [(rows,)] = folded.lists.agg(_each(there, f.sum)).collect()
    return _some(rows)


def _some(rows: Mapping[str, int | None]) -> Count:
    return {name: number for name, number in rows.items() if number}


def _each(columns: Mapping[str, Column], aggregate: object) -> Column:
    """One aggregate of each column, by name."""
    pairs = [part for name, column in columns.items() for part in (f.lit(name), aggregate(column).cast("long"))]  # type: ignore[operator]
    return (f.create_map(*pairs) if pairs else f.create_map()).cast("map<string,bigint>")


def reread(lake: Lake) -> int:
    """Move what this release can read from the quarantine to silver; returns the number of records."""
    _clear_channel(lake)
    newer = lake.table("quarantine").where((f.col("kind") == NEWER) & (f.col("topic") != CHANNEL_TOPIC))
    if newer.isEmpty():  # as nearly always: decoding would start Python on the executors
        return 0
    decoded = records.decode(newer.select(*RAW.names)).where(f.col("kind").isNull())
    decoded = decoded.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        found = decoded.groupBy("topic", "partition").agg(f.min("offset"), f.count(f.lit(1))).collect()
        if found:
            _take_back_gold(lake, {(row[0], row[1]): row[2] for row in found})
            _insert(lake, decoded, sorted({row[0] for row in found}))
            _clear(lake, decoded)
        return sum(row[3] for row in found)
    finally:
        decoded.unpersist()


def _insert(lake: Lake, decoded: DataFrame, topics: list[str]) -> None:
    first = without(decoded, repeats(lake, reports_of(decoded)))
    for topic in topics:
        for table in TOPICS[topic].tables:
            lake.add_new(table, DECODERS[table](first), ("partition", "offset"))


def _clear(lake: Lake, decoded: DataFrame) -> None:
    """Take records out of the quarantine, by their offsets: few, because a release lags behind for days at most."""
    for row in decoded.groupBy("topic", "partition").agg(f.collect_list("offset").alias("offsets")).collect():
        offsets = ", ".join(map(str, row["offsets"]))
        where = f"kind = '{NEWER}' AND topic = '{row['topic']}' AND partition = {row['partition']}"
        lake.remove("quarantine", f"{where} AND offset IN ({offsets})")


def _clear_channel(lake: Lake) -> None:
    waiting = lake.table("quarantine").where((f.col("kind") == NEWER) & (f.col("topic") == CHANNEL_TOPIC))
    if waiting.isEmpty():
        return
    for partition, at in verdicts.positions(lake.table("channel_state")).items():
        lake.remove(
            "quarantine",
            f"kind = '{NEWER}' AND topic = '{CHANNEL_TOPIC}' AND partition = {partition} AND offset < {at.next_offset}",
        )


def _take_back_gold(lake: Lake, firsts: dict[tuple[str, int], int]) -> None:
    """Make gold count everything from these offsets on as new; before silver has it, so that a kill loses nothing."""
    for gold in GOLD:
        before = reached(lake, gold.table)
        back = {key: first for key, first in firsts.items() if before.next_offsets.get(key, 0) > first}
        if back and before.until_us is not None:
            marks = [Mark(*key, first, 0, before.until_us) for key, first in back.items()]
            advance(lake, gold.table, before.batch + 1, marks)
