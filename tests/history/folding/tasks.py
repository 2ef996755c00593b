"""Drives the Python of the fold's tasks as Spark does, without Spark: Arrow batches of ordered entries in and out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any
from zlib import crc32

import msgspec
import pyarrow as pa

from loadmanager.history.verdicts import KINDS, Known, Position, fold_task, unpacked
from statechannel.law import codec
from statechannel.law.partition import PartitionState
from statechannel.ports import LogEntry
from statechannel.runtime.core import ChannelCore
from tests.statechannel.auditor import History
from tests.statechannel.conftest import Ledger

APPENDED_US = 1_767_225_600_000_000
ENTRY = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("data", pa.binary()),
        ("appended_us", pa.int64()),
    ]
)


class Entry(msgspec.Struct, frozen=True):
    """What the log holds at an offset."""

    partition: int
    offset: int
    value: bytes | None

    @property
    def appended_us(self) -> int:
        return APPENDED_US + self.offset


class Table(msgspec.Struct):
    """Rows of every kind that batch after batch of folding yielded."""

    channel: list[dict[str, Any]] = []
    transition: list[dict[str, Any]] = []
    state: list[dict[str, Any]] = []
    unreadable: list[dict[str, Any]] = []
    most_at_once: int = 0
    """The most rows of one kind that became Arrow together."""

    def positions(self) -> dict[int, Position]:
        """As `folding.positions` finds them."""
        best: dict[int, tuple[tuple[int, int], Position]] = {}
        for row in self.state:
            rank = (row["next_offset"], row["batch"])
            if row["partition"] not in best or rank > best[row["partition"]][0]:
                best[row["partition"]] = rank, Position(row["batch"], row["next_offset"], row["held"])
        return {partition: position for partition, (_, position) in best.items()}

    def chunks(self, partition: int) -> list[bytes]:
        """Of the state in force."""
        at = self.positions()[partition]
        rows = [
            row
            for row in self.state
            if (row["partition"], row["batch"], row["next_offset"]) == (partition, at.batch, at.next_offset)
        ]
        return [row["data"] for row in sorted(rows, key=lambda row: row["chunk"])]

    def of(self, partition: int) -> PartitionState:
        """The state in force."""
        return unpacked(partition, self.chunks(partition))

    def fold(self, entries: Iterable[Entry], batch: int, partitions: int = 2, arrow_rows: int = 7) -> Table:
        """Fold a batch, in any order, behind what is there."""
        known = self.positions()
        rows = sorted(((e.partition, e.offset, None, e.value, e.appended_us) for e in entries), key=lambda row: row[:2])
        behind = Known(known, {partition: self.chunks(partition) for partition in known})
        self.add(fold_task(arrow(rows, ENTRY, arrow_rows), partitions=partitions, batch=batch, known=behind))
        return self

    def add(self, lists: Iterable[pa.RecordBatch]) -> None:
        """Take what a task yielded."""
        for yielded in lists:
            for kind in KINDS:
                found = [row for rows in yielded.column(kind).to_pylist() for row in rows or ()]
                getattr(self, kind).extend(found)
                self.most_at_once = max(self.most_at_once, len(found))


def arrow(rows: Sequence[tuple[object, ...]], schema: pa.Schema, at_once: int) -> Iterable[pa.RecordBatch]:
    """Rows in batches of so many."""
    for begin in range(0, len(rows), at_once):
        columns = zip(*rows[begin : begin + at_once], strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def history(seed: int, steps: int) -> list[Entry]:
    """A random log of two partitions, with records that don't count, and some that are none."""
    ledger, rng = Ledger(2), Random(seed)
    entries: list[Entry] = []
    core = ChannelCore(2)
    for record, home in History(ledger, seed).steps(steps):
        value = codec.encode(record) if rng.random() > 0.05 else rng.randbytes(9)
        entry = Entry(home, core.table.next_offset(home), value)
        if core.apply(LogEntry(home, entry.offset, None, value, 0)).record is not None:
            ledger.table = core.table
            ledger.log.append((home, entry.offset, record))
        entries.append(entry)
    return entries


def of_format(version: int) -> bytes:
    """An intact record of a later release."""
    head, body = b"LM%02x" % version, b'{"new":1}'
    return head + b" %08x " % crc32(body, crc32(head)) + body


def numbered(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows in the order of the log."""
    return sorted(rows, key=lambda row: (row["partition"], row["offset"], row.get("ordinal", 0)))
