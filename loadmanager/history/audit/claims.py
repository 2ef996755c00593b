"""Claims about the state at an offset, as rows: snapshots of the channel, and the states that the ingest kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from loadmanager.history.audit.segments import Claim
from loadmanager.history.folding import states
from loadmanager.history.folding.lists import ArrowBatch, structs
from loadmanager.history.folding.seeding import read

CLAIM = StructType(
    [
        StructField("partition", IntegerType()),
        StructField("who", StringType()),
        StructField("next_offset", LongType()),
        StructField("chunk", IntegerType()),
        StructField("data", BinaryType()),
        StructField("problem", StringType()),
    ]
)
"""One chunk of a claim, as in `schemas.CHANNEL_STATE`; or the problem of a damaged one."""


def of_snapshots(raw_snapshots: DataFrame) -> DataFrame:
    """All snapshots that are kept; `raw_snapshots` are rows of `schemas.RAW`, all of their topic."""
    entries = raw_snapshots.select("partition", "offset", "key", "value").repartition("partition")
    return entries.sortWithinPartitions("partition", "offset").mapInArrow(claims_task, CLAIM)


def claims_task(batches: Iterable[ArrowBatch]) -> Iterator[ArrowBatch]:
    """Run as a task: batches of (partition, offset, key, value) of whole partitions in order, into CLAIM."""
    for partition, kept in read(batches):
        for each in kept:
            who, at = f"snapshot {each.info.snapshot_id}", each.info.next_offset
            if each.problem:
                yield _batch((partition, who, at, 0, None, each.problem))
                continue
            for _, _, _, number, _, data, _ in states.rows(partition, states.SEEDED, each.info, each.chunks):
                yield _batch((partition, who, at, number, data, None))


def _batch(row: tuple[object, ...]) -> ArrowBatch:
    return pa.RecordBatch.from_struct_array(structs(CLAIM, [row]))


def of_states(kept: DataFrame, apart: int) -> DataFrame:
    """The last state of `schemas.CHANNEL_STATE` within each `apart` offsets: there is one per batch."""
    stretch = f.floor(f.col("next_offset") / f.lit(apart))
    last = f.max(f.struct("next_offset", "batch")).alias("last")
    heads = kept.where(f.col("chunk") == 0).groupBy("partition", stretch).agg(last).select("partition", "last.*")
    return kept.join(f.broadcast(heads), ["partition", "next_offset", "batch"], "left_semi").select(
        "partition",
        f.concat(f.lit("the state of batch "), f.col("batch")).alias("who"),
        "next_offset",
        "chunk",
        "data",
        f.lit(None).cast("string").alias("problem"),
    )


def listed(claims: DataFrame) -> list[Claim]:
    """All claims, without their chunks."""
    heads = claims.where(f.col("chunk") == 0).select("partition", "next_offset", "who", "problem").collect()
    return [Claim(row["partition"], row["next_offset"], row["who"], row["problem"] or "") for row in heads]
