"""The channel's core: from log entries to verdicts. Knows which of our own publishes still wait, and settles each once.

Pure: the shell (`channel.py`) reads and appends, the core applies. A record's verdict is that of its *first* copy;
later copies change nothing and settle nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque

import msgspec

from statechannel.errors import CorruptRecord
from statechannel.law import codec
from statechannel.law.record import Record
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Change, Refusal
from statechannel.ports import LogEntry

LATE_VERDICTS_KEPT = 10_000
MARK_BYTES = 16 * 1024
"""Bytes of a log between two marks of how much of it was read."""

MARKS_KEPT = 1_000


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The outcome of one log entry; `settles` is the record's id if it is one of ours that still had no verdict."""

    partition: int
    offset: int
    verdict: Change | Refusal | None
    record: Record | None = None
    corrupt: str = ""
    settles: str | None = None


class _LogBytes:
    """How many bytes of one partition's log were read, with marks by which to tell it from an offset on."""

    __slots__ = ("_marks", "_total")

    def __init__(self) -> None:
        self._total = 0
        self._marks: deque[tuple[int, int]] = deque(maxlen=MARKS_KEPT)
        """Offsets of entries, and the bytes before each."""

    def add(self, offset: int, size_bytes: int) -> None:
        if not self._marks or self._total - self._marks[-1][1] >= MARK_BYTES:
            self._marks.append((offset, self._total))
        self._total += size_bytes

    def since(self, start: int) -> int:
        first = bisect_left(self._marks, start, key=_offset)
        return self._total - self._marks[first][1] if first < len(self._marks) else 0


def _offset(mark: tuple[int, int]) -> int:
    return mark[0]


class ChannelCore:
    """Applies entries to the table and matches them with the publishes that wait for a verdict."""

    def __init__(self, partitions: int, newest_version: int = codec.NEWEST_VERSION) -> None:
        self.table = OwnershipTable(partitions)
        self.newest_version = newest_version
        self._waiting: dict[str, int] = {}
        self._read = [_LogBytes() for _ in range(partitions)]
        self._late: OrderedDict[str, tuple[int, Change | Refusal | None]] = OrderedDict()

    def expect(self, record_id: str, partition: int) -> None:
        """Wait for the verdict of this record. Call it before the record is appended."""
        self._waiting[record_id] = partition

    def give_up(self, record_id: str) -> None:
        """Stop waiting for a verdict; if the record is read later, its verdict is kept for `settled`."""
        partition = self._waiting.pop(record_id, None)
        if partition is not None:
            self._late[record_id] = (partition, None)
            if len(self._late) > LATE_VERDICTS_KEPT:
                self._late.popitem(last=False)

    def forget(self, partition: int) -> None:
        """Drop what waits in this partition. A part of it was not read and may have held first copies of records.

        The verdict of a later copy would be wrong.
        """
        self._waiting = {each: where for each, where in self._waiting.items() if where != partition}
        for record_id, (where, verdict) in list(self._late.items()):
            if where == partition and verdict is None:
                del self._late[record_id]

    def settled(self, record_id: str) -> Change | Refusal | None:
        """The verdict of a record after `give_up`, None if it has not been read since."""
        return self._late[record_id][1] if record_id in self._late else None

    def log_bytes(self, partition: int, start: int) -> int:
        """Bytes of the entries from offset `start` on that were applied, or up to MARK_BYTES fewer.

        Knows no more than the last MARKS_KEPT times MARK_BYTES.
        """
        return self._read[partition].since(start)

    def apply(self, entry: LogEntry) -> Applied:
        """Apply the next entry; skips a corrupt or foreign one. Raises NewerRecord, and then applies nothing."""
        self._read[entry.partition].add(entry.offset, len(entry.value or b""))
        try:
            record = codec.decode(entry.value, self.newest_version)
        except CorruptRecord as error:
            self.table.skip(entry.partition, entry.offset)
            return Applied(entry.partition, entry.offset, None, corrupt=str(error))
        verdict = self.table.replay(entry.partition, entry.offset, record)
        return Applied(entry.partition, entry.offset, verdict, record, settles=self._settle(record.id, verdict))

    def _settle(self, record_id: str, verdict: Change | Refusal) -> str | None:
        if self._waiting.pop(record_id, None) is not None:
            return record_id
        partition, settled = self._late.get(record_id, (None, None))
        if partition is not None and settled is None:
            self._late[record_id] = (partition, verdict)
        return None
