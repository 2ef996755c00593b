"""The replay as a DataFrame job: brings each log partition to one task in offset order, and streams it through Python.

A task keeps one partition's table and some thousand rows; never a whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from loadmanager.errors import Invalid
from loadmanager.history.cycles import unsearched
from loadmanager.history.folding.lists import ArrowBatch, Rows
from loadmanager.history.folding.rows import KINDS, LISTS
from loadmanager.history.folding.spreading import spread
from loadmanager.history.folding.states import Known
from loadmanager.history.folding.verdicts import PartitionFold


class Folded(msgspec.Struct, frozen=True):
    """The results of a replay.

    Every table is made from `lists`: persist that before you use more than one, because the replay takes the time.
    """

    lists: DataFrame

    @property
    def channel(self) -> DataFrame:
        """Rows of `schemas.CHANNEL`: every readable record, with its verdict."""
        return self._of("channel")

    @property
    def transition(self) -> DataFrame:
        """Rows of `schemas.TRANSITION`."""
        return self._of("transition")

    @property
    def state(self) -> DataFrame:
        """Rows of `schemas.CHANNEL_STATE`, of partitions whose state changed."""
        return self._of("state")

    @property
    def unreadable(self) -> DataFrame:
        """Rows of `schemas.QUARANTINE`."""
        return self._of("unreadable")

    def _of(self, kind: str) -> DataFrame:
        return self.lists.where(f.col(kind).isNotNull()).select(f.inline(kind))


def fold(raw_channel: DataFrame, known: Known, partitions: int, batch: int) -> Folded:
    """Replay the records of a batch (rows of `schemas.RAW`, in any order) behind what was replayed before.

    `partitions` is how many the channel has. `known` are the states of earlier batches only, so that a batch that is
    run again gives the same rows. A partition that waits before a record of a newer format goes on when a release that
    reads it gets all records from `Position.next_offset` on; until then its records yield no rows. Raises Invalid.
    """
    if partitions < 1:
        raise Invalid(f"a channel has 1 partition or more, not {partitions}")
    task_limit = int(raw_channel.sparkSession.conf.get("spark.sql.shuffle.partitions") or partitions)
    records = raw_channel.select(
        "partition", "offset", "key", f.col("value").alias("data"), f.unix_micros("appended_at").alias("appended_us")
    )
    ordered = spread(records, f.col("partition"), min(partitions, task_limit))
    ordered = ordered.sortWithinPartitions("partition", "offset")
    task = partial(fold_task, partitions=partitions, batch=batch, known=known)
    return Folded(ordered.mapInArrow(task, LISTS))


Entry = tuple[int, int, bytes | None, bytes | None, int]
"""partition, offset, key, data, appended_us."""


def entries(batches: Iterable[ArrowBatch]) -> Iterator[Entry]:
    """The rows of Arrow batches as tuples, a batch at a time."""
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def fold_task(batches: Iterable[ArrowBatch], partitions: int, batch: int, known: Known) -> Iterator[ArrowBatch]:
    """Run as a task: batches of entries of whole partitions, ordered by partition and offset, into LISTS."""
    rows = Rows(KINDS)
    with unsearched():
        for partition, of_partition in groupby(entries(batches), key=itemgetter(0)):
            if partition >= partitions:
                raise Invalid(f"a record is of partition {partition}, but the channel is said to have {partitions}")
            folding = PartitionFold(partition, partitions, batch, rows)
            if partition in known.positions:
                folding.resume(known.positions[partition], known.chunks[partition])
            for _, offset, key, data, appended_us in of_partition:
                folding.take(offset, key, data, appended_us)
                if rows.full:
                    yield from rows.drain()
            folding.finish()
            yield from rows.drain()
