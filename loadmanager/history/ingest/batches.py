"""Processes one batch of the stream: bronze, then silver, then the replay's state, then progress.

Batches have numbers of the lake's own, which only grow, whatever checkpoint Spark has. With a lost checkpoint, or one
of another version of the plan, topics are read anew, and records in the lake are skipped by their offsets.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import LongType

from loadmanager.errors import Conflict, Invalid
from loadmanager.history import utc
from loadmanager.history.ingest import silver
from loadmanager.history.ingest.failpoints import Failpoints
from loadmanager.history.ingest.progress import SILVER, WRITER, Reached, advance, arrived, reached
from loadmanager.history.ingest.verdicts import forget
from loadmanager.history.lake import Lake, Once
from loadmanager.history.schemas import RAW
from loadmanager.history.sources import Source

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
    """For `foreachBatch`. `run` is a name that no other run has; `begun` is where the lake is, if that is known."""

    def __init__(self, root: str, plan: Plan, run: str, begun: Reached | None = None) -> None:
        self._root = root
        self._plan = plan
        self._run = run
        self._lake: Lake | None = None
        self._reached = begun
        self._memory = silver.Memory()

    def __call__(self, rows: DataFrame, _: int) -> None:
        """Take a batch. Raises Conflict if another ingest writes to the lake, Invalid if a topic was made anew."""
        lake, before = self._ready(rows)
        self._plan.failpoints.reached("begun")
        new = rows.where(~before.is_below())
        if not new.isEmpty():  # a number that bronze has used for nothing could not be used again
            self._keep(lake, new, before.batch + 1)
            self._reached = finish(lake, before, self._plan, self._memory)

    def _ready(self, rows: DataFrame) -> tuple[Lake, Reached]:
        if self._lake is not None and self._reached is not None:
            return self._lake, self._reached
        session = rows.sparkSession  # the stream's own session: what is set here holds for its batches only
        for key, value in _FOR_BATCHES.items():
            session.conf.set(key, value)
        self._lake = Lake(session, self._root)
        self._reached = self._reached or complete(self._lake, self._plan)
        if self._reached.next_offsets:
            refuse_other_log(self._lake, rows.where(self._reached.is_below()))
        return self._lake, self._reached

    def _keep(self, lake: Lake, new: DataFrame, number: int) -> None:
        note = f"{self._run}/{number}"
        rows = new.select(
            *RAW.names, utc.day_of(f.col("appended_at")).alias("day"), f.lit(number).cast(LongType()).alias("batch")
        )
        lake.append("bronze", rows, Once(WRITER, number), note)
        if not lake.noted("bronze", note):
            raise Conflict(f"another ingest has written batch {number} to {lake.root}: stop one of the two")
        self._plan.failpoints.reached("bronze")


def complete(lake: Lake, plan: Plan) -> Reached:
    """Finish what an earlier run left unfinished, as far as bronze has the records. Returns where the lake is then."""
    return finish(lake, reached(lake, SILVER), plan)


def finish(lake: Lake, before: Reached, plan: Plan, memory: silver.Memory | None = None) -> Reached:
    """Write what follows from the batch behind `before`, if bronze has it. Idempotent.

    Everything is made from bronze's rows: the topics may hold less by now, and a second computation must give the same.
    `memory` belongs to the run that has begun the batch; None if another run has.
    """
    number = before.batch + 1
    rows = lake.table("bronze").where(f.col("batch") == number).select(*RAW.names)
    marks = tuple(arrived(rows))
    if not marks:
        return before
    batch = silver.Batch(number, rows, marks, before, memory)
    silver.write(lake, batch, plan.source, plan.partitions, plan.failpoints)
    advance(lake, SILVER, number, marks)
    plan.failpoints.reached("progress")
    if number % STATES_KEPT == STATES_KEPT - 1:
        with suppress(Conflict):  # their files are being joined: there is a next time
            forget(lake, number)
    return before.after(number, marks)


def refuse_other_log(lake: Lake, known: DataFrame) -> None:
    """Raises Invalid where the lake has other records than `known` at the same offsets."""
    firsts = known.groupBy("topic", "partition").agg(
        f.min_by(f.struct("offset", "appended_at"), "offset").alias("first")
    )
    sought = firsts.select("topic", "partition", "first.offset", f.col("first.appended_at").alias("now"))
    there = lake.table("bronze").select("topic", "partition", "offset", "appended_at")
    other = there.join(f.broadcast(sought), ["topic", "partition", "offset"]).where(
        f.col("appended_at") != f.col("now")
    )
    found = other.first()
    if found is not None:
        raise Invalid(
            f"{found['topic']}/{found['partition']} has another record at offset {found['offset']} than this lake: the "
            "topic was created again, and has another history; give it a new lake"
        )
