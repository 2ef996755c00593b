"""Processes one batch of the stream: bronze, then silver, then the replay's state, then progress.

Batches have numbers of the lake's own, which only grow, whatever checkpoint Spark has. With a lost checkpoint, or one
of another version of the plan, topics are read again, and records in the lake are skipped by their offsets.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import LongType

from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.errors import Conflict, Invalid
from loadmanager.history import utc
from loadmanager.history.ingest import silver
from loadmanager.history.ingest.failpoints import Failpoints
from loadmanager.history.ingest.logs import INSTEAD, Logs, refuse_other_records
from loadmanager.history.ingest.progress import SILVER, WRITER, Partition, Reached, advance, arrived, reached
from loadmanager.history.ingest.verdicts import forget
from loadmanager.history.ingest.writing import Written, write_files
from loadmanager.history.lake import ALONE, Lake, Once
from loadmanager.history.schemas import RAW
from loadmanager.history.sources import TOPICS, Source

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
        self._memory = silver.Memory()
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
    with ThreadPoolExecutor(silver.WRITES_AT_ONCE) as pool:
        tables = ("bronze", "quarantine", "channel_state", *silver.DECODERS, *TOPICS[CHANNEL_TOPIC].tables)
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
    lake: Lake, before: Reached, plan: Plan, memory: silver.Memory | None = None, written: Written | None = None
) -> Reached:
    """Write what follows from the batch behind `before`, if bronze has it. Idempotent.

    Everything is made from bronze's rows: the topics may hold less by now, and a second computation must give the same.
    `memory` belongs to the run that has begun the batch, and so does what it has `written`; None if another run has.
    """
    number = before.batch + 1
    batch = silver.Batch(number, () if written is None else written.marks, before, memory, written)
    if written is None:
        batch = msgspec.structs.replace(batch, marks=tuple(arrived(batch.rows(lake))))
    if not (marks := batch.marks):
        return before
    silver.write(lake, batch, plan.source, plan.partitions, plan.failpoints)
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
