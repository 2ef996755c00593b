"""The replay of one log partition: entries in offset order in, rows out.

Verdicts come from `ChannelCore.apply`; this code decides only which entries are replayed:

* an offset that comes twice, or that an earlier batch replayed, is skipped;
* a corrupt record is skipped as a replica does, and goes to quarantine;
* before a record of a newer format the replay stops, as a replica does. That record goes to quarantine; it and the
records after it wait until a release that can read it gets them again;
* where the state before is unknown, the verdict of a record is `unknown`. The log was trimmed then, and the state
covers more than these records, or less than what was trimmed; a log has no holes of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.history.folding import states
from loadmanager.history.folding.lists import Rows
from loadmanager.history.folding.rows import Origin, channel_row, transition_rows, unreadable_row
from statechannel.errors import CorruptRecord, NewerRecord
from statechannel.law import codec
from statechannel.law.verdict import Change
from statechannel.ports import LogEntry
from statechannel.runtime.core import ChannelCore

_BEFORE_ALL = "the log was trimmed before this was kept, and no snapshot says what came before"
_BEFORE_STATE = "the log was trimmed before this was kept; what is known begins at offset {}"


class PartitionFold:
    """One partition in one batch: `resume`, then `take` each entry, then `finish`."""

    def __init__(self, partition: int, partitions: int, batch: int, rows: Rows) -> None:
        self.partition = partition
        self._batch = batch
        self._channel, self._transition = rows["channel"], rows["transition"]
        self._state, self._unreadable = rows["state"], rows["unreadable"]
        self._core = ChannelCore(partitions)
        self._begin = 0
        self._chunks: Sequence[bytes] = ()
        self._last: Origin | None = None
        self._held: int | None = None
        self._was_held: int | None = None
        self._seeded = False
        self._lost = False

    def resume(self, position: states.Position, chunks: Sequence[bytes]) -> None:
        """Go on from the state in these chunks; they are decoded when the first entry to be judged comes."""
        self._begin, self._chunks = position.next_offset, chunks
        self._seeded = position.batch == states.SEEDED
        self._held = self._was_held = position.held

    def take(self, offset: int, key: bytes | None, value: bytes | None, appended_us: int) -> None:
        """The next entry; offsets may come again, but not go back. Raises BadSnapshot, NewerRecord of the state."""
        if self._last is None:
            self._open(offset)
        elif offset <= self._last.offset:
            return
        elif offset > max(self._begin, self._last.offset + 1):
            self._lost = True
        self._last = origin = Origin(self.partition, offset, appended_us)
        if self._held is not None:
            return
        if self._lost or offset < self._begin:
            if self._lost or self._seeded:
                self._take_unjudged(origin, key, value)
            return
        self._judge(origin, key, value)

    def _open(self, first: int) -> None:
        """Decide by the first offset whether the state before it is known, and whether waiting records have come."""
        self._lost = first > self._begin
        if self._held is not None and self._held <= codec.NEWEST_VERSION and first <= self._begin:
            self._held = None
        if self._held is None and self._chunks and not self._lost:
            self._core.table.restore(states.unpacked(self.partition, self._chunks))
            self._chunks = ()

    def _judge(self, origin: Origin, key: bytes | None, value: bytes | None) -> None:
        try:
            applied = self._core.apply(LogEntry(origin.partition, origin.offset, key, value, 0))
        except NewerRecord as error:
            self._hold(origin, key, value, str(error))
            return
        record, verdict = applied.record, applied.verdict
        if record is None or verdict is None or value is None:
            self._unreadable.append(unreadable_row(CHANNEL_TOPIC, origin, key, value, "corrupt", applied.corrupt))
            return
        self._channel.append(channel_row(origin, record, version_of(value), verdict))
        if isinstance(verdict, Change) and verdict.transitions:
            self._transition.extend(transition_rows(origin, verdict))

    def _hold(self, origin: Origin, key: bytes | None, value: bytes | None, why: str) -> None:
        self._unreadable.append(unreadable_row(CHANNEL_TOPIC, origin, key, value, "newer", why))
        self._held = version_of(value or b"")

    def _take_unjudged(self, origin: Origin, key: bytes | None, value: bytes | None) -> None:
        why = _BEFORE_ALL if self._lost else _BEFORE_STATE.format(self._begin)
        try:
            record = codec.decode(value)
        except (CorruptRecord, NewerRecord) as error:
            kind = "newer" if isinstance(error, NewerRecord) else "corrupt"
            self._unreadable.append(unreadable_row(CHANNEL_TOPIC, origin, key, value, kind, str(error)))
        else:
            self._channel.append(channel_row(origin, record, version_of(value or b""), why))

    def finish(self) -> None:
        """Write the state, if it changed."""
        advanced = self._core.table.next_offset(self.partition) > self._begin
        if self._last is not None and (advanced or self._held != self._was_held):
            cut, at_ms = self._core.table.cut(self.partition), self._last.appended_us // 1_000
            self._state.extend(states.packed(cut, self._batch, at_ms, self._held))


def version_of(value: bytes) -> int:
    """The format in the frame of an intact record."""
    return int(value[2:4], 16)
