"""The channel's part of a batch: the state to replay from, the records, and how the rows are written.

* Records that waited because of a newer format are replayed, out of bronze, by the first release that reads them.
* Where the log was trimmed before it was read, the channel's own snapshots give the state. Such a state is written
before it is used, so that the batch finds the same one when it is run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.diagnostics.topics import CHANNEL_TOPIC, SNAPSHOTS_TOPIC
from loadmanager.history import utc, verdicts
from loadmanager.history.ingest.positions import SILVER, WRITER, Mark, reached
from loadmanager.history.lake import Lake, Once
from loadmanager.history.sources import Source
from loadmanager.history.verdicts import Known, Position
from statechannel.law.codec import NEWEST_VERSION

SEEDER = f"{WRITER}/seed"


class Verdicts(msgspec.Struct, frozen=True):
    """The results of a batch's replay. `partly`: some of it may be written already, under this number or another."""

    folded: verdicts.Folded
    partly: bool

    def write(self, lake: Lake, table: str, once: Once) -> None:
        """Write `channel` or `transition`."""
        rows = self.folded.channel if table == "channel" else self.folded.transition
        if self.partly:
            lake.add_new(table, rows, ("partition", "offset"))
        else:
            lake.append(table, rows, once)


def follow(marks: Iterable[Mark], known: Known) -> bool:
    """Whether a batch with these marks can be replayed from what is known, and nothing has waited for this release."""
    return not _waiting(known) and not _lacking(marks, known)


def replayed_channel(
    lake: Lake,
    batch: int,
    records: DataFrame | None,
    marks: Iterable[Mark],
    source: Source,
    partitions: int,
    known: Known,
    *,
    resumed: bool,
) -> Verdicts | None:
    """Replay a batch's records of the channel, and what has waited for this release; None if there is neither.

    `marks` are the batch's; `known` is where partitions stand. The caller must unpersist the result's `lists`.
    """
    waiting = _waiting(known)
    if records is None and not waiting:
        return None
    rows = _waited(lake, batch, waiting)
    if records is not None:
        if lacking := _lacking(marks, known):
            _seed(lake, batch, lacking, source, known)
            known = verdicts.known(lake.table("channel_state"), batch)
        rows = records.where(~f.col("partition").isin(list(waiting))).unionByName(rows) if waiting else records
    folded = verdicts.fold(rows, known, partitions, batch)
    folded.lists.persist(StorageLevel.MEMORY_AND_DISK)
    return Verdicts(folded, bool(waiting) or resumed)


def _waiting(known: Known) -> dict[int, Position]:
    """Partitions with a record of a format that was too new, and is not for this release."""
    positions = known.positions.items()
    return {number: at for number, at in positions if at.held is not None and at.held <= NEWEST_VERSION}


def _lacking(marks: Iterable[Mark], known: Known) -> dict[int, int]:
    """The first offsets of partitions whose records don't follow what is known.

    A partition that waits lacks nothing: what its replay has not read yet is in bronze.
    """
    firsts = {mark.partition: mark.first for mark in marks if mark.topic == CHANNEL_TOPIC}
    there = known.positions
    begins = {number: there[number].next_offset if number in there else 0 for number in firsts}
    held = {number for number, at in there.items() if at.held is not None}
    return {number: first for number, first in firsts.items() if number not in held and first > begins[number]}


def _waited(lake: Lake, batch: int, waiting: Mapping[int, Position]) -> DataFrame:
    here = f.lit(False)
    for number, at in waiting.items():
        here = here | ((f.col("partition") == number) & (f.col("offset") >= at.next_offset))
    bronze = lake.table("bronze").where((f.col("topic") == CHANNEL_TOPIC) & (f.col("batch") <= batch))
    return bronze.where(here).drop("day", "batch")


def _seed(lake: Lake, batch: int, lacking: Mapping[int, int], source: Source, known: Known) -> None:
    """Write seed states for these partitions."""
    snapshots = source.read(lake.spark, [SNAPSHOTS_TOPIC])
    lake.append("channel_state", verdicts.seed(snapshots, lacking, known.positions), Once(SEEDER, batch))


def settled_states(lake: Lake) -> DataFrame:
    """The states of complete batches: the other tables have everything that these states are made from."""
    return lake.table("channel_state").where(f.col("batch") <= reached(lake, SILVER).batch)


def forget(lake: Lake, complete: int) -> None:
    """Drop the states that no batch after the last complete one starts from.

    The last state of each day stays for as long as `progress` knows the day. A seed is never dropped, because the audit
    begins with it when bronze's older days are gone.
    """
    latest = verdicts.positions(lake.table("channel_state"), complete + 1)
    days = _last_of_days(lake)
    older = [
        f"(partition = {number} AND batch >= 0 AND batch < {at.batch}"
        f" AND batch NOT IN ({', '.join(map(str, days.get(number) or [at.batch]))}))"
        for number, at in latest.items()
    ]
    if older:
        lake.remove("channel_state", " OR ".join(older))


def _last_of_days(lake: Lake) -> dict[int, list[int]]:
    """The last batch that brought records of the channel, by partition, of each day that `progress` has rows of."""
    marks = lake.table("progress").where((f.col("stage") == SILVER) & (f.col("topic") == CHANNEL_TOPIC))
    last = marks.groupBy("partition", utc.day_of(f.col("until")).alias("day")).agg(f.max("batch").alias("batch"))
    by_partition = last.groupBy("partition").agg(f.sort_array(f.collect_list("batch")).alias("batches"))
    return {row["partition"]: row["batches"] for row in by_partition.collect()}
