"""Drives the Python of the audit's tasks as Spark does, without Spark: a log, claims and silver in, findings out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from loadmanager.history.audit import BEGIN, CLAIM, KINDS, MOVE, RECORD, VERDICT, audit_task
from loadmanager.history.audit.segments import Claim, Extent, place, plan, without
from loadmanager.history.schemas import CHANNEL, TRANSITION
from loadmanager.history.verdicts import packed
from statechannel.errors import InvariantError
from statechannel.law import codec
from statechannel.law.partition import PartitionState
from statechannel.law.record import Record
from statechannel.ports import LogEntry
from statechannel.runtime.core import ChannelCore
from tests.history.folding.tasks import Entry, Table
from tests.statechannel.auditor import History
from tests.statechannel.conftest import Ledger


class Found(msgspec.Struct):
    """What an audit's tasks yielded."""

    violation: list[dict[str, Any]] = []
    accepted: list[dict[str, Any]] = []
    counted: list[dict[str, Any]] = []

    def broken(self) -> set[tuple[int, str]]:
        """Offsets and invariants."""
        return {(row["offset"], row["invariant"]) for row in self.violation}


class Honest(History):
    """Histories without authors that say that they saw what nobody ever wrote: that looks like a log with a hole."""

    def spoil(self, record: Record) -> Record:
        spoilt = super().spoil(record)
        return record if spoilt.subjects and spoilt.subjects != record.subjects else spoilt


def honest(seed: int, steps: int) -> list[Entry]:
    """A random log of two partitions as it may really be: with refused records, copies, and some that are none."""
    ledger, core = Ledger(2), ChannelCore(2)
    ledger.table = core.table
    entries: list[Entry] = []
    for record, home in Honest(ledger, seed).steps(steps):
        entry = Entry(home, core.table.next_offset(home), codec.encode(record) if len(entries) % 17 else b"dust")
        entries.append(entry)
        try:
            applied = core.apply(LogEntry(home, entry.offset, None, entry.value, 0))
        except InvariantError:  # with a law that was tampered with
            return entries
        if applied.record is not None:
            ledger.log.append((home, entry.offset, record))
    return entries


def states_of(entries: Iterable[Entry], at: Iterable[tuple[int, int]]) -> dict[tuple[int, int], PartitionState]:
    """What each partition was, below some offsets."""
    core, wanted = ChannelCore(2), set(at)
    found: dict[tuple[int, int], PartitionState] = {}
    for entry in entries:
        where = (entry.partition, core.table.next_offset(entry.partition))
        if where in wanted:
            found[where] = msgspec.msgpack.decode(
                msgspec.msgpack.encode(core.table.cut(entry.partition), enc_hook=list), type=PartitionState
            )
        core.apply(LogEntry(entry.partition, entry.offset, None, entry.value, 0))
    return found


def audited(
    entries: Iterable[Entry],
    states: dict[tuple[int, int], PartitionState] | None = None,
    silver: Table | None = None,
    *,
    apart: int = 10,
    until: dict[int, int] | None = None,
    partitions: int = 2,
    known_hole: Extent | None = None,
) -> Found:
    """Audit a log against claims and silver; `known_hole` is one of every partition."""
    entries, states = list(entries), states or {}
    claims = {Claim(partition, offset, f"state {offset}"): state for (partition, offset), state in states.items()}
    extents: dict[int, list[Extent]] = {}
    for partition in {entry.partition for entry in entries}:
        offsets = [entry.offset for entry in entries if entry.partition == partition]
        extents[partition] = without(Extent(min(offsets), max(offsets) + 1), [known_hole] if known_hole else [])
    segments = plan(claims, extents, apart)

    def number(partition: int, offset: int) -> int | None:
        return next((s.number for s in segments if s.partition == partition and s.begin <= offset < s.end), None)

    rows: list[tuple[Any, ...]] = [
        (number(e.partition, e.offset), e.offset, RECORD, "", 0, e.value, e.appended_us, None, None) for e in entries
    ]
    for claim, state in claims.items():
        chunks = [row[5] for row in packed(state, 0, 0)]
        for segment in segments:
            if (segment.partition, segment.base, segment.begin) == (claim.partition, claim.who, claim.next_offset):
                rows += [
                    (segment.number, -1, BEGIN, claim.who, n, chunk, 0, None, None) for n, chunk in enumerate(chunks)
                ]
        held_against = place(claim, segments)
        if held_against is not None:
            here = (held_against.number, claim.next_offset, CLAIM, claim.who)
            rows += [(*here, n, chunk, 0, None, None) for n, chunk in enumerate(chunks)]
    for row in silver.channel if silver else ():
        rows.append(
            (number(row["partition"], row["offset"]), row["offset"], VERDICT, "", 0, None, 0, _plain(row), None)
        )
    for row in silver.transition if silver else ():
        here = (number(row["partition"], row["offset"]), row["offset"], MOVE, "", row["ordinal"])
        rows.append((*here, None, 0, None, _plain(row)))
    rows = sorted((row for row in rows if row[0] is not None), key=lambda row: row[:5])
    if silver and until is None:
        until = {p: of_this[-1].end for p, of_this in extents.items()}
    by_number = {segment.number: segment for segment in segments}
    found = Found()
    for yielded in audit_task(_arrow(rows, silver is not None), by_number, partitions, until):
        for kind in KINDS:
            for listed in yielded.column(kind).to_pylist():
                getattr(found, kind).extend(listed or ())
    return found


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    times = {name: int(row[name].timestamp() * 1_000_000 + 0.5) for name in ("at", "appended_at")}
    return {**row, **times, "day": row["day"].toordinal() - 719_163}


def _numbers(schema: StructType) -> StructType:
    numbers = {"timestamp": LongType(), "date": IntegerType()}
    return StructType([StructField(f.name, numbers.get(f.dataType.simpleString(), f.dataType)) for f in schema.fields])


_ENTRY = [
    ("segment", pa.int32()),
    ("offset", pa.int64()),
    ("kind", pa.int32()),
    ("who", pa.string()),
    ("ordinal", pa.int32()),
    ("data", pa.binary()),
    ("appended_us", pa.int64()),
]


def _arrow(rows: list[tuple[Any, ...]], with_silver: bool, at_once: int = 7) -> Iterable[pa.RecordBatch]:
    fields = list(_ENTRY)
    if with_silver:
        fields += [("verdict", to_arrow_type(_numbers(CHANNEL))), ("move", to_arrow_type(_numbers(TRANSITION)))]
    for begin in range(0, len(rows), at_once):
        columns = list(zip(*rows[begin : begin + at_once], strict=True))[: len(fields)]
        arrays = [pa.array(column, kind) for column, (_, kind) in zip(columns, fields, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def recorded(entries: Iterable[Entry]) -> Table:
    """What the ingest writes of a log."""
    return Table().fold(entries, 0)
