"""The audit as a DataFrame job: streams each segment, with its claims and in order, through one Python task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import groupby, repeat
from operator import itemgetter

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DateType, StructType, TimestampType

from loadmanager.history.audit.findings import KINDS, LISTS
from loadmanager.history.audit.segment_audit import SegmentAudit
from loadmanager.history.audit.segments import Claim, Segment, place
from loadmanager.history.folding.lists import ArrowBatch, Row, Rows
from loadmanager.history.folding.spreading import spread
from loadmanager.history.schemas import CHANNEL, TRANSITION

BEGIN, CLAIM, RECORD, VERDICT, MOVE = range(5)
"""The kinds of a task's entries, in their order at one offset."""

_PLACED = "partition int, who string, next_offset long, segment int, kind int, at long"
_SEGMENTS = "partition int, segment int, begin long, end long"


def run(
    raw: DataFrame,
    claims: DataFrame | None,
    listed: Sequence[Claim],
    recorded: tuple[DataFrame, DataFrame] | None,
    segments: Sequence[Segment],
    partitions: int,
    until: Mapping[int, int] | None,
) -> DataFrame:
    """The stream of `findings.LISTS`.

    `recorded` are the tables `channel` and `transition`, `until` says how far each partition has verdicts there.
    """
    spark = raw.sparkSession
    cut = spark.createDataFrame([(s.partition, s.number, s.begin, s.end) for s in segments], _SEGMENTS)
    parts = [_within(cut, raw, _row(RECORD, data=f.col("value"), appended=f.unix_micros("appended_at")))]
    if claims is not None:
        placed = spark.createDataFrame(_placed(listed, segments), _PLACED)
        with_place = claims.join(f.broadcast(placed), ["partition", "who", "next_offset"])
        parts.append(with_place.select("segment", *_claim_row()))
    if recorded is not None:
        channel, transition = recorded
        parts.append(_within(cut, channel, _row(VERDICT, verdict=_plain(CHANNEL))))
        parts.append(_within(cut, transition, _row(MOVE, ordinal=f.col("ordinal"), move=_plain(TRANSITION))))
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


def _row(
    kind: int,
    *,
    ordinal: Column | None = None,
    data: Column | None = None,
    appended: Column | None = None,
    verdict: Column | None = None,
    move: Column | None = None,
) -> list[Column]:
    """The columns of an entry behind its segment and offset."""

    def given(column: Column | None, otherwise: Column) -> Column:
        return otherwise if column is None else column

    return [
        f.lit(kind).alias("kind"),
        f.lit("").alias("who"),
        given(ordinal, f.lit(0)).alias("ordinal"),
        given(data, f.lit(None).cast("binary")).alias("data"),
        given(appended, f.lit(0).cast("long")).alias("appended_us"),
        given(verdict, f.lit(None).cast(_plain_type(CHANNEL))).alias("verdict"),
        given(move, f.lit(None).cast(_plain_type(TRANSITION))).alias("move"),
    ]


def _claim_row() -> list[Column]:
    columns = {"offset": f.col("at"), "kind": f.col("kind"), "who": f.col("who")}
    plain = _row(CLAIM, ordinal=f.col("chunk"), data=f.col("data"))[2:]
    return [*(column.alias(name) for name, column in columns.items()), *plain]


def _plain(schema: StructType) -> Column:
    """A row as a struct in which times and days are numbers, as in `folding.rows`."""
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
