"""The audit of the channel: replays its whole log in parallel and checks every invariant.

It also compares snapshots and the lakehouse's own records with the replay.

    found = audit(raw_channel, partitions, snapshots=…, states=…, silver=Silver(channel, transition))
    found.violations, found.summary    # DataFrames; `found.close()` when you are done

It trusts only the log and, where the log was trimmed, the oldest snapshot. The judge is `loadmanager.channel.audit`;
`segments.py` cuts one partition into segments that are audited in parallel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import groupby, repeat
from operator import itemgetter
from typing import NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from pyspark.storagelevel import StorageLevel

from loadmanager.channel.audit.auditor import Invariant
from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.errors import Invalid
from loadmanager.history import verdicts
from loadmanager.history.audit.segments import COUNTS, Claim, Extent, Segment, SegmentAudit, place, plan, without
from loadmanager.history.schemas import CHANNEL, TRANSITION
from loadmanager.history.sources import MISSING
from loadmanager.history.tasks import ArrowBatch, Row, Rows, lists_of, spread, structs
from loadmanager.history.verdicts import positions, read

__all__ = ["SUMMARY", "VIOLATION", "Audit", "Invariant", "Silver", "audit"]


def _columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


_TEXT, _INT, _LONG = StringType(), IntegerType(), LongType()

VIOLATION = _columns(partition=_INT, offset=_LONG, id=_TEXT, invariant=_TEXT, detail=_TEXT, record=_TEXT)
"""One violation. `record` is the record in words, `offset` and `id` are its own. For a snapshot `offset` is its
`next_offset`, and `record` is null."""

ACCEPTED = _columns(partition=_INT, offset=_LONG, id=_TEXT, what=_TEXT)
"""What an accepted record changed (a bundle, or a namespace that was made): serves to find copies of the record."""

COUNTED = _columns(
    partition=_INT,
    segment=_INT,
    begin=_LONG,
    next_offset=_LONG,
    **dict.fromkeys(COUNTS, _LONG),
    refusals=MapType(_TEXT, _LONG),
    digest=_TEXT,
)
"""What a segment held.

`next_offset` is one past its last entry. `compared` counts the claims that it was compared with. `unjudged` counts the
records before the first known state, or after a record of a newer format.
"""

SUMMARY = _columns(
    partition=_INT,
    segments=_LONG,
    begin=_LONG,
    next_offset=_LONG,
    **dict.fromkeys(COUNTS, _LONG),
    refusals=MapType(_TEXT, _LONG),
    violations=_LONG,
    digest=_TEXT,
)
"""The same per partition; `digest` is that of `statechannel`, at its end."""

KINDS = {"violation": VIOLATION, "accepted": ACCEPTED, "counted": COUNTED}
LISTS = lists_of(KINDS)


CLAIMS = _columns(partition=_INT, who=_TEXT, next_offset=_LONG, chunk=_INT, data=BinaryType(), problem=_TEXT)
"""One chunk of a claim, as in `schemas.CHANNEL_STATE`; or the problem of a damaged one."""


def of_snapshots(raw_snapshots: DataFrame) -> DataFrame:
    """All snapshots that are kept; `raw_snapshots` are rows of `schemas.RAW`, all of their topic."""
    entries = raw_snapshots.select("partition", "offset", "key", "value").repartition("partition")
    return entries.sortWithinPartitions("partition", "offset").mapInArrow(claims_task, CLAIMS)


def claims_task(batches: Iterable[ArrowBatch]) -> Iterator[ArrowBatch]:
    """Run as a task: batches of (partition, offset, key, value) of whole partitions in order, into CLAIMS."""
    for partition, kept in read(batches):
        for each in kept:
            who, at = f"snapshot {each.info.snapshot_id}", each.info.next_offset
            if each.problem:
                yield _batch((partition, who, at, 0, None, each.problem))
                continue
            for _, _, _, number, _, data, _ in verdicts.rows(partition, verdicts.SEEDED, each.info, each.chunks):
                yield _batch((partition, who, at, number, data, None))


def _batch(row: tuple[object, ...]) -> ArrowBatch:
    return pa.RecordBatch.from_struct_array(structs(CLAIMS, [row]))


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


def _heads(claims: DataFrame) -> list[Claim]:
    """All claims, without their chunks."""
    heads = claims.where(f.col("chunk") == 0).select("partition", "next_offset", "who", "problem").collect()
    return [Claim(row["partition"], row["next_offset"], row["who"], row["problem"] or "") for row in heads]


APART = 100_000
"""Minimum offsets of a segment: each begins and ends with a whole state."""


class Silver(NamedTuple):
    """What the lakehouse recorded: its tables `channel` and `transition`."""

    channel: DataFrame
    transition: DataFrame


class Audit(msgspec.Struct, frozen=True):
    """The findings, on disk until `close`."""

    violations: DataFrame
    """Rows of VIOLATION; none if all is well."""
    summary: DataFrame
    """Rows of SUMMARY: one of each partition."""
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
    known = [of_snapshots(snapshots)] if snapshots is not None else []
    known += [of_states(states, apart)] if states is not None else []
    claims = reduce(DataFrame.unionByName, known) if known else None
    heads = _heads(claims) if claims is not None else []
    extents = _extents(raw_channel)
    wrong = sorted(partition for partition in extents if partition >= partitions)
    if wrong:
        raise Invalid(f"there are records of partition {wrong[-1]}, and the channel is said to have {partitions}")
    segments = plan(heads, _without_known_holes(raw_channel, extents, quarantine), apart)
    if not segments:
        raise Invalid("there are no records of the channel to audit: ingest first, or see --log and the topic prefix")
    until = _recorded_until(silver, states) if silver is not None else None
    lists = _replayed(raw_channel, claims, heads, silver, segments, partitions, until)
    lists.persist(StorageLevel.DISK_ONLY)
    early = raw_channel.sparkSession.createDataFrame(_early(heads, extents), VIOLATION)
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


BEGIN, CLAIM, RECORD, VERDICT, MOVE = range(5)
"""The kinds of a task's entries, in their order at one offset."""

_PLACED = "partition int, who string, next_offset long, segment int, kind int, at long"
_SEGMENTS = "partition int, segment int, begin long, end long"


def _replayed(
    raw: DataFrame,
    claims: DataFrame | None,
    listed: Sequence[Claim],
    recorded: tuple[DataFrame, DataFrame] | None,
    segments: Sequence[Segment],
    partitions: int,
    until: Mapping[int, int] | None,
) -> DataFrame:
    """The stream of LISTS.

    `recorded` are the tables `channel` and `transition`, `until` says how far each partition has verdicts there.
    """
    spark = raw.sparkSession
    cut = spark.createDataFrame([(s.partition, s.number, s.begin, s.end) for s in segments], _SEGMENTS)
    parts = [_within(cut, raw, _entry(f.lit(RECORD), data=f.col("value"), appended_us=f.unix_micros("appended_at")))]
    if claims is not None:
        placed = spark.createDataFrame(_placed(listed, segments), _PLACED)
        with_place = claims.join(f.broadcast(placed), ["partition", "who", "next_offset"])
        kept = _entry(f.col("kind"), who=f.col("who"), ordinal=f.col("chunk"), data=f.col("data"))
        parts.append(with_place.select("segment", f.col("at").alias("offset"), *kept))
    if recorded is not None:
        channel, transition = recorded
        parts.append(_within(cut, channel, _entry(f.lit(VERDICT), verdict=_plain(CHANNEL))))
        parts.append(_within(cut, transition, _entry(f.lit(MOVE), ordinal=f.col("ordinal"), move=_plain(TRANSITION))))
    both = reduce(DataFrame.unionByName, parts)
    if recorded is None:
        both = both.drop("verdict", "move")
    tasks = min(len(segments), int(spark.conf.get("spark.sql.shuffle.partitions") or len(segments)))
    ordered = spread(both, f.col("segment"), tasks)
    ordered = ordered.sortWithinPartitions("segment", "offset", "kind", "who", "ordinal")
    by_number = {segment.number: segment for segment in segments}
    return ordered.mapInArrow(partial(audit_task, segments=by_number, partitions=partitions, until=until), LISTS)


def _placed(claims: Sequence[Claim], segments: Sequence[Segment]) -> list[tuple[object, ...]]:
    """Each claim, as the beginning of a segment and where it is compared with the replay."""
    rows: list[tuple[object, ...]] = []
    for claim in (claim for claim in claims if not claim.problem):
        about = (claim.partition, claim.who, claim.next_offset)
        rows += [
            (*about, s.number, BEGIN, -1)
            for s in segments
            if (s.partition, s.base, s.begin) == (claim.partition, claim.who, claim.next_offset)
        ]
        segment = place(claim, segments)
        if segment is not None:
            rows.append((*about, segment.number, CLAIM, claim.next_offset))
    return rows


def _within(cut: DataFrame, rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Rows with the segment that contains their offset."""
    named = rows.select("partition", "offset", *columns)
    inside = (
        (named["partition"] == cut["partition"]) & (named["offset"] >= cut["begin"]) & (named["offset"] < cut["end"])
    )
    names = [name for name in named.columns if name != "partition"]
    return named.join(f.broadcast(cut), inside).select(cut["segment"], *(named[name] for name in names))


def _entry(kind: Column, **given: Column) -> list[Column]:
    """The columns of an entry behind its segment and offset."""
    columns = {
        "who": f.lit(""),
        "ordinal": f.lit(0),
        "data": f.lit(None).cast("binary"),
        "appended_us": f.lit(0).cast("long"),
        "verdict": f.lit(None).cast(_plain_type(CHANNEL)),
        "move": f.lit(None).cast(_plain_type(TRANSITION)),
    } | given
    return [kind.alias("kind"), *(column.alias(name) for name, column in columns.items())]


def _plain(schema: StructType) -> Column:
    """A row as a struct in which times and days are numbers, as in `verdicts.channel_row`."""
    return f.struct(*(_number(field.name, field.dataType).alias(field.name) for field in schema.fields))


def _number(name: str, kind: object) -> Column:
    if isinstance(kind, TimestampType):
        return f.unix_micros(name)
    return f.unix_date(name) if isinstance(kind, DateType) else f.col(name)


def _plain_type(schema: StructType) -> str:
    numbers = {"timestamp": "bigint", "date": "int"}
    types = ((field.name, field.dataType.simpleString()) for field in schema.fields)
    return f"struct<{', '.join(f'`{name}`: {numbers.get(kind, kind)}' for name, kind in types)}>"


PAUSE = 256
"""After so many records the task checks whether rows have to be drained."""

Entry = tuple[int, int, int, str, int, bytes | None, int, Row | None]
"""segment, offset, kind, who, ordinal, data, appended_us; and the row that was recorded, if the entry is one."""


def audit_task(
    batches: Iterable[ArrowBatch], segments: Mapping[int, Segment], partitions: int, until: Mapping[int, int] | None
) -> Iterator[ArrowBatch]:
    """Run as a task: batches of entries of whole segments, ordered by offset and kind, into LISTS."""
    rows = Rows(KINDS)
    for number, of_segment in groupby(_entries(batches), key=itemgetter(0)):
        segment = segments[number]
        recorded_until = None if until is None else until.get(segment.partition, 0)
        auditing = SegmentAudit(segment, partitions, recorded_until, rows)
        for kind, of_kind in groupby(of_segment, key=itemgetter(2)):
            for _ in _give(auditing, kind, of_kind):
                if rows.full:
                    yield from rows.drain()
        auditing.finish()
        yield from rows.drain()


def _give(auditing: SegmentAudit, kind: int, entries: Iterator[Entry]) -> Iterator[None]:
    """Hand on neighbouring entries of one kind, and pause now and then."""
    if kind == RECORD:
        for number, (_, offset, _, _, _, data, appended_us, _) in enumerate(entries):
            auditing.take(offset, data, appended_us)
            if number % PAUSE == 0:
                yield
    elif kind == BEGIN:
        yield auditing.begin([entry[5] or b"" for entry in entries])
    elif kind == CLAIM:
        for (offset, who), chunks in groupby(entries, key=itemgetter(1, 3)):
            yield auditing.compare(who, offset, [entry[5] or b"" for entry in chunks])
    else:
        take = auditing.recorded if kind == VERDICT else auditing.moved
        yield from (take(entry[7]) for entry in entries if entry[7] is not None)


def _entries(batches: Iterable[ArrowBatch]) -> Iterator[Entry]:
    for batch in batches:
        columns = {name: batch.column(name) for name in batch.schema.names}
        plain = [columns[name].to_pylist() for name in batch.schema.names if name not in ("verdict", "move")]
        if "verdict" not in columns:
            yield from zip(*plain, repeat(None), strict=False)
            continue
        found = {kind: _structs(columns, name, kind) for name, kind in (("verdict", VERDICT), ("move", MOVE))}
        for entry in zip(*plain, strict=True):
            yield (*entry, next(found[entry[2]]) if entry[2] in found else None)


def _structs(columns: Mapping[str, ArrowBatch], name: str, kind: int) -> Iterator[Row]:
    """The rows in the structs of one kind, in order."""
    of_kind = columns[name].filter(pa.array(columns["kind"].to_numpy() == kind))
    return zip(*(column.to_pylist() for column in of_kind.flatten()), strict=True)
