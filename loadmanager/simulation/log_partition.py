"""One partition of a simulated log server: entries by offset, and how they are trimmed and compacted.

Offsets have gaps where entries were superseded, at a transaction's marker, and where one was aborted. `log_server.py`
decides who may write, and when to compact.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from statechannel.ports import LogEntry, Payload


class LogPartition:
    """Entries from `begin` on; the next one gets the offset `end` or a higher one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.begin = 0
        self.end = 0
        self._entries: list[LogEntry] = []

    def append(self, payload: Payload, now_ms: int) -> LogEntry:
        """Store one entry at the end."""
        entry = LogEntry(self.number, self.end, payload.key, payload.value, now_ms)
        self._entries.append(entry)
        self.end += 1
        return entry

    def skip(self, offsets: int) -> None:
        """Use up offsets without entries."""
        self.end += offsets

    def read(self, start: int, limit: int) -> Sequence[LogEntry]:
        """At most `limit` entries from an offset on, or from the next one that is still there."""
        first = self._index_of(start)
        return tuple(self._entries[first : first + limit])

    def first_since(self, at_ms: int) -> int:
        """The offset of the first entry that was stored at `at_ms` or later, else the end."""
        return next((entry.offset for entry in self._entries if entry.appended_ms >= at_ms), self.end)

    def trim(self, before: int) -> None:
        """Forget the entries below an offset, as far as there are any."""
        self.begin = max(self.begin, min(before, self.end))
        del self._entries[: self._index_of(self.begin)]

    def compact(self, active: int, tombstones_before_ms: int) -> None:
        """Drop what is superseded, and deletions from before that time; the `active` newest entries are left alone."""
        closed = self._entries[: max(0, len(self._entries) - active)]
        last = {entry.key: entry.offset for entry in closed}
        kept = [
            entry
            for entry in closed
            if entry.key is None
            or (
                last[entry.key] == entry.offset
                and (entry.value is not None or entry.appended_ms >= tombstones_before_ms)
            )
        ]
        self._entries[: len(closed)] = kept

    def _index_of(self, offset: int) -> int:
        if not self._entries:
            return 0
        first, last = self._entries[0].offset, self._entries[-1].offset
        if last - first + 1 == len(self._entries):  # no gaps, as in most logs
            return min(max(0, offset - first), len(self._entries))
        return bisect_left(self._entries, offset, key=lambda entry: entry.offset)
