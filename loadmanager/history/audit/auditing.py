"""The audit of a channel's whole log: plans it, runs it, and combines the findings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.storagelevel import StorageLevel

from loadmanager.channel.audit.auditor import Invariant
from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.errors import Invalid
from loadmanager.history.audit import claims as claiming
from loadmanager.history.audit import job
from loadmanager.history.audit.findings import COUNTS, SUMMARY, VIOLATION
from loadmanager.history.audit.segments import Claim, Extent, plan, without
from loadmanager.history.folding.states import positions
from loadmanager.history.sources import MISSING

APART = 100_000
"""Minimum offsets of a segment: each begins and ends with a whole state."""


class Silver(NamedTuple):
    """What the lakehouse recorded: its tables `channel` and `transition`."""

    channel: DataFrame
    transition: DataFrame


class Audit(msgspec.Struct, frozen=True):
    """The findings, on disk until `close`."""

    violations: DataFrame
    """Rows of `findings.VIOLATION`; none if all is well."""
    summary: DataFrame
    """Rows of `findings.SUMMARY`: one of each partition."""
    lists: DataFrame

    def close(self) -> None:
        """Free the disk."""
        self.lists.unpersist()


def audit(
    raw_channel: DataFrame,
    partitions: int,
    *,
    snapshots: DataFrame | None = None,
    states: DataFrame | None = None,
    silver: Silver | None = None,
    quarantine: DataFrame | None = None,
    apart: int = APART,
) -> Audit:
    """Replay a log (rows of `schemas.RAW` of the channel, of bronze or of a source) and check every invariant.

    `partitions` is how many the channel has. `snapshots` are rows of `schemas.RAW`, all of the snapshots topic, and
    `states` rows of `schemas.CHANNEL_STATE`. Both are compared with the replay, and the log is cut at them so that
    segments of one partition are replayed in parallel. A wrong one is reported with its offset; other findings of a
    segment that begins with it are not to be trusted.

    With `silver`, every row of it must match the replay, as far as `states` go (without `states`: as far as its last
    row). Missing offsets are a violation, unless the lake's `quarantine` records that they were trimmed before they
    were read: what follows such a hole is judged from the next claim on. Only bounds and the lists of claims and holes
    are computed before the result is used. An ingest may run meanwhile. Raises Invalid.
    """
    if partitions < 1:
        raise Invalid(f"a channel has 1 partition or more, not {partitions}")
    known = [claiming.of_snapshots(snapshots)] if snapshots is not None else []
    known += [claiming.of_states(states, apart)] if states is not None else []
    claims = reduce(DataFrame.unionByName, known) if known else None
    listed = claiming.listed(claims) if claims is not None else []
    extents = _extents(raw_channel)
    wrong = sorted(partition for partition in extents if partition >= partitions)
    if wrong:
        raise Invalid(f"there are records of partition {wrong[-1]}, and the channel is said to have {partitions}")
    segments = plan(listed, _without_known_holes(raw_channel, extents, quarantine), apart)
    if not segments:
        raise Invalid("there are no records of the channel to audit: ingest first, or see --log and the topic prefix")
    until = _recorded_until(silver, states) if silver is not None else None
    lists = job.run(raw_channel, claims, listed, silver, segments, partitions, until)
    lists.persist(StorageLevel.DISK_ONLY)
    early = raw_channel.sparkSession.createDataFrame(_early(listed, extents), VIOLATION)
    violations = _of(lists, "violation").unionByName(copies(_of(lists, "accepted"))).unionByName(early)
    ordered = violations.orderBy("partition", "offset")
    return Audit(ordered, _summary(_of(lists, "counted"), violations), lists)


def _of(lists: DataFrame, kind: str) -> DataFrame:
    return lists.where(f.col(kind).isNotNull()).select(f.inline(kind))


def _extents(raw: DataFrame) -> dict[int, Extent]:
    found = raw.groupBy("partition").agg(f.min("offset").alias("first"), f.max("offset").alias("last")).collect()
    return {row["partition"]: Extent(row["first"], row["last"] + 1) for row in found}


def _without_known_holes(
    raw: DataFrame, extents: dict[int, Extent], quarantine: DataFrame | None
) -> dict[int, list[Extent]]:
    """The extents between known holes: for each hole the ingest has a quarantine row, under its first offset."""
    holes: dict[int, list[Extent]] = {partition: [] for partition in extents}
    if quarantine is not None:
        known = quarantine.where((f.col("topic") == CHANNEL_TOPIC) & (f.col("kind") == MISSING))
        known = known.select("partition", f.col("offset").alias("hole")).distinct()
        if not known.isEmpty():
            behind = raw.select("partition", "offset").join(f.broadcast(known), "partition").where("offset >= hole")
            for row in behind.groupBy("partition", "hole").agg(f.min("offset").alias("end")).collect():
                holes.setdefault(row["partition"], []).append(Extent(row["hole"], row["end"]))
    return {partition: without(extent, holes[partition]) for partition, extent in extents.items()}


def _recorded_until(silver: Silver, states: DataFrame | None) -> dict[int, int]:
    """Up to which offset (exclusive) each partition's records must be in silver: `states` are of complete batches."""
    if states is not None:
        return {partition: at.next_offset for partition, at in positions(states).items()}
    found = silver.channel.groupBy("partition").agg(f.max("offset").alias("last")).collect()
    return {row["partition"]: row["last"] + 1 for row in found}


def _early(claims: Sequence[Claim], extents: dict[int, Extent]) -> list[tuple[object, ...]]:
    """Claims that are wrong before anything is replayed."""
    found: list[tuple[object, ...]] = []
    for claim in sorted(claims):
        extent = extents.get(claim.partition)
        detail = claim.problem
        if not detail and extent is not None and claim.next_offset > extent.end:
            detail = f"it goes up to {claim.next_offset}, the log ends at {extent.end}: the log lost its end"
        if detail:
            said = f"{claim.who}: {detail}"
            found.append((claim.partition, claim.next_offset, None, Invariant.SNAPSHOT.value, said, None))
    return found


def copies(accepted: DataFrame) -> DataFrame:
    """Records with two copies accepted for the same bundle; the later is the violation.

    All are compared by a hash first, because that is cheap; those with equal hashes are then compared by value.
    """
    marked = accepted.withColumn("mark", f.xxhash64("partition", "id", "what"))
    often = marked.groupBy("mark").count().where("count > 1").select("mark")
    seen = (
        marked.join(f.broadcast(often), "mark", "left_semi")
        .groupBy("partition", "id", "what")
        .agg(f.count("*").alias("count"), f.min("offset").alias("first"), f.max("offset").alias("offset"))
    )
    detail = f.format_string("it was accepted for %s at offset %d already", "what", "first")
    return seen.where(f.col("count") > 1).select(
        "partition",
        "offset",
        "id",
        f.lit(Invariant.ONCE.value).alias("invariant"),
        detail.alias("detail"),
        f.lit(None).cast("string").alias("record"),
    )


def _summary(counted: DataFrame, violations: DataFrame) -> DataFrame:
    sums = counted.groupBy("partition").agg(
        f.count("*").alias("segments"),
        f.min("begin").alias("begin"),
        f.max("next_offset").alias("next_offset"),
        *(f.sum(name).alias(name) for name in COUNTS),
        f.max_by("digest", "segment").alias("digest"),
    )
    reasons = counted.select("partition", f.explode("refusals").alias("reason", "count"))
    reasons = reasons.groupBy("partition", "reason").agg(f.sum("count").alias("count"))
    entries = f.map_from_entries(f.collect_list(f.struct("reason", "count"))).alias("refusals")
    refusals = reasons.groupBy("partition").agg(entries)
    broken = violations.groupBy("partition").agg(f.count("*").alias("violations"))
    joined = sums.join(refusals, "partition", "left").join(broken, "partition", "full")
    filled = joined.na.fill(0, ["segments", *COUNTS, "violations"])  # snapshots alone may be wrong
    return filled.select(*SUMMARY.names).orderBy("partition")
