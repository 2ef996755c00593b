"""Audits one segment of a partition: replays it with the production core, and compares the result.

It compares with what was promised of each record, with claims, and with what the lakehouse recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from loadmanager.channel.audit.auditor import Auditor, Broken, Invariant, compared, words
from loadmanager.history.audit.findings import COUNTS
from loadmanager.history.audit.recorded import Recorded
from loadmanager.history.audit.segments import Segment
from loadmanager.history.folding.lists import Row, Rows
from loadmanager.history.folding.rows import Origin, channel_row, named, transition_rows
from loadmanager.history.folding.states import unpacked
from loadmanager.history.folding.verdicts import version_of
from statechannel.errors import BadSnapshot, InvariantError, NewerRecord
from statechannel.law import codec
from statechannel.law.partition import PartitionState
from statechannel.law.record import Action, Record
from statechannel.law.verdict import Change, Refusal
from statechannel.ports import LogEntry
from statechannel.runtime.core import Applied, ChannelCore


class SegmentAudit:
    """Takes, in this order: the state that it begins with; by offset claims, entries, and their recorded rows;
    `finish`.

    `recorded_until` is how far the lakehouse has verdicts, None to leave the lakehouse out.
    """

    def __init__(self, segment: Segment, partitions: int, recorded_until: int | None, rows: Rows) -> None:
        self._segment = segment
        self._partition = segment.partition
        self._violations, self._accepted, self._counted = rows["violation"], rows["accepted"], rows["counted"]
        self._core = ChannelCore(partitions)
        self._auditor = Auditor(segment.partition, partitions)
        self._auditor.begin(segment.begin)
        self._counts: Counter[str] = Counter()
        self._judging = segment.judged
        self._last: tuple[int, bytes | None] | None = None
        self._recorded = Recorded(recorded_until, self._tell) if recorded_until is not None else None

    def begin(self, chunks: Sequence[bytes]) -> None:
        """Go on from the state in these chunks."""
        try:
            state = unpacked(self._partition, chunks)
        except (BadSnapshot, NewerRecord) as error:
            self._stop(self._segment.begin, Invariant.SNAPSHOT, str(error))
            return
        self._core.table.restore(state)
        self._auditor.begin(self._segment.begin, state)

    # --- entries

    def take(self, offset: int, value: bytes | None, appended_us: int) -> None:
        """The next entry; an identical copy of the last one is ignored."""
        if self._last is not None and offset == self._last[0]:
            if value != self._last[1]:
                self._tell(offset, Broken(Invariant.LOG, "this offset has two different records"))
            return
        self._hole(offset)
        self._last = (offset, value)
        self._counts["records"] += 1
        if not self._judging:
            self._counts["unjudged"] += 1
            return
        entry = LogEntry(self._partition, offset, None, value, appended_us // 1_000)
        try:
            applied = self._core.apply(entry)
        except NewerRecord:
            self._judging = False
            self._counts["newer"] += 1
        except InvariantError as error:
            self._stop(offset, Invariant.LOG, f"the fold breaks its own law: {error}", codec.decode(value))
        else:
            self._judge(Origin(self._partition, offset, appended_us), entry, applied)

    def _hole(self, offset: int) -> None:
        """Report a gap before this offset. A gap among records that cannot be judged is not a violation."""
        missing = self._auditor.missing(offset)
        if missing and self._judging:
            which = f"offset {missing[0]} is" if len(missing) == 1 else f"offsets {missing[0]} to {missing[-1]} are"
            self._tell(missing[0], Broken(Invariant.LOG, f"{which} not there: the log or the lake lost what they held"))

    def _judge(self, origin: Origin, entry: LogEntry, applied: Applied) -> None:
        record, verdict = applied.record, applied.verdict
        for broken in self._auditor.take(applied):
            self._tell(origin.offset, broken, record)
        fresh: tuple[Row | None, list[Row]] = None, []
        if record is not None and verdict is not None:
            if isinstance(verdict, Change):
                self._note_accepted(origin, record, verdict)
            fresh = self._rows(origin, record, entry.value or b"", verdict)
        if self._recorded is not None:
            self._recorded.expect(origin.offset, record, *fresh)

    def _note_accepted(self, origin: Origin, record: Record, change: Change) -> None:
        place = (self._partition, origin.offset, record.id)
        for transition in change.transitions:
            if transition.before is not None:
                self._accepted.append((*place, named(transition.before.bundle)))
        if record.action is Action.CREATE_NAMESPACE:
            self._accepted.append((*place, record.namespace))

    def _rows(
        self, origin: Origin, record: Record, value: bytes, verdict: Change | Refusal
    ) -> tuple[Row | None, list[Row]]:
        if self._recorded is None:
            return None, []
        moved = list(transition_rows(origin, verdict)) if isinstance(verdict, Change) else []
        return channel_row(origin, record, version_of(value), verdict), moved

    # --- what others say

    def compare(self, who: str, next_offset: int, chunks: Sequence[bytes]) -> None:
        """Compare a claim with the replay's state; `next_offset` was reached."""
        if not self._judging:
            return
        self._counts["compared"] += 1
        try:
            theirs = unpacked(self._partition, chunks)
        except (BadSnapshot, NewerRecord) as error:
            self._tell(next_offset, Broken(Invariant.SNAPSHOT, f"{who}: {error}"))
            return
        for broken in compared(who, self._cut(next_offset), theirs):
            self._tell(next_offset, broken)

    def recorded(self, row: Row) -> None:
        """The lakehouse has this row of its table `channel`."""
        if self._recorded is not None and self._judging:
            self._recorded.channel(row)

    def moved(self, row: Row) -> None:
        """The lakehouse has this row of its table `transition`."""
        if self._recorded is not None and self._judging:
            self._recorded.transition(row)

    # --- the end

    def finish(self) -> None:
        """Write the summary of the segment."""
        if self._recorded is not None:
            self._recorded.settle()
        self._hole(self._segment.end)
        next_offset = self._last[0] + 1 if self._last is not None else self._segment.begin
        digest = self._cut(next_offset).digest() if self._judging else None
        counts = (self._counts[name] + self._auditor.counts[name] for name in COUNTS)
        place = (self._partition, self._segment.number, self._segment.begin, next_offset)
        self._counted.append((*place, *counts, list(self._auditor.refusals.items()), digest))

    def _cut(self, offset: int) -> PartitionState:
        """The replay's state, checked."""
        cut = self._core.table.cut(self._partition)
        for broken in self._auditor.check(cut):
            self._tell(offset, broken)
        return cut

    def _stop(self, offset: int, invariant: Invariant, detail: str, record: Record | None = None) -> None:
        self._judging = False
        self._tell(offset, Broken(invariant, detail), record)

    def _tell(self, offset: int, broken: Broken, record: Record | None = None) -> None:
        said = (record.id, words(record)) if record is not None else (None, None)
        self._violations.append((self._partition, offset, said[0], broken.invariant, broken.detail, said[1]))
