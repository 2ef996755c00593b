"""Where a log is cut into segments, so that one partition is audited in parallel, and the audit of one segment. Pure.

A claim is a stated state at an offset: a snapshot, or a state that the ingest kept. A segment begins with one claim and
ends at the next chosen one, which must equal the segment's own replay. If all agree, the whole log is proven by
induction, as with one pass. Before the first claim the log must be there from offset 0; records before the first claim
of a trimmed log cannot be judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from loadmanager.channel.audit.auditor import Auditor, Broken, Invariant, compared, words
from loadmanager.history.schemas import CHANNEL, TRANSITION
from loadmanager.history.tasks import Row, Rows
from loadmanager.history.verdicts import UNKNOWN, Origin, channel_row, named, transition_rows, unpacked, version_of
from statechannel.errors import BadSnapshot, InvariantError, NewerRecord
from statechannel.law import codec
from statechannel.law.partition import PartitionState
from statechannel.law.record import Action, Record
from statechannel.law.verdict import Change, Refusal
from statechannel.ports import LogEntry
from statechannel.runtime.core import Applied, ChannelCore

COUNTS = ("records", "accepted", "refused", "corrupt", "newer", "unjudged", "compared")
"""What is counted of a segment's records."""


class Claim(msgspec.Struct, frozen=True, order=True):
    """A statement by `who` of a partition's state at an offset; `problem`: why it cannot be used."""

    partition: int
    next_offset: int
    who: str
    problem: str = ""


class Extent(msgspec.Struct, frozen=True):
    """Records of a partition without a known hole: the first offset, and the one behind the last."""

    begin: int
    end: int


class Segment(msgspec.Struct, frozen=True):
    """Records of `[begin, end)`; `base` is whose claim it begins with, None at the log's beginning.

    Records that cannot be judged are a segment too; it is only counted.
    """

    number: int
    partition: int
    begin: int
    end: int
    base: str | None
    judged: bool = True


def plan(claims: Iterable[Claim], extents: Mapping[int, Sequence[Extent]], apart: int) -> list[Segment]:
    """The segments of all partitions, cut at claims that are at least `apart` offsets from each other."""
    usable = sorted(claim for claim in claims if not claim.problem)
    segments: list[Segment] = []
    for partition, of_partition in sorted(extents.items()):
        of_this = [claim for claim in usable if claim.partition == partition]
        for extent in of_partition:
            segments += _of_extent(len(segments), partition, extent, of_this, apart)
    return segments


def without(extent: Extent, holes: Iterable[Extent]) -> list[Extent]:
    """What is left of an extent between holes, in order."""
    parts: list[Extent] = []
    begin = extent.begin
    for hole in sorted(holes, key=lambda each: each.begin):
        if extent.begin <= hole.begin < hole.end <= extent.end:
            parts.append(Extent(begin, hole.begin))
            begin = max(begin, hole.end)
    parts.append(Extent(begin, extent.end))
    return [part for part in parts if part.begin < part.end]


def _of_extent(first: int, partition: int, extent: Extent, claims: Sequence[Claim], apart: int) -> list[Segment]:
    within = [claim for claim in claims if extent.begin <= claim.next_offset <= extent.end]
    begin, base = extent.begin, None
    segments: list[Segment] = []
    if extent.begin > 0:
        begin, base = (within[0].next_offset, within[0].who) if within else (extent.end, None)
        if begin > extent.begin:
            segments.append(Segment(first, partition, extent.begin, begin, None, judged=False))
    for claim in within:
        if claim.next_offset - begin >= apart and extent.end - claim.next_offset >= apart:
            segments.append(Segment(first + len(segments), partition, begin, claim.next_offset, base))
            begin, base = claim.next_offset, claim.who
    if begin < extent.end:
        segments.append(Segment(first + len(segments), partition, begin, extent.end, base))
    return segments


def place(claim: Claim, segments: Sequence[Segment]) -> Segment | None:
    """The segment whose replay a claim is compared with; None where its partition has none."""
    judged = [segment for segment in segments if segment.partition == claim.partition and segment.judged]
    ending = next((s for s in judged if s.begin < claim.next_offset <= s.end), None)
    if ending is not None or not judged:
        return ending
    return next((s for s in judged if s.begin == claim.next_offset and s.base != claim.who), None)


_VERDICT = CHANNEL.names.index("verdict")
_OFFSET = CHANNEL.names.index("offset")

Tell = Callable[[int, Broken, Record | None], None]


class Recorded:
    """For each entry in order: call `expect` with the right rows, then pass the recorded rows.

    `until` is how far rows must be there; rows beyond belong to an incomplete batch, and are ignored.
    """

    def __init__(self, until: int, tell: Tell) -> None:
        self._until = until
        self._tell = tell
        self._offset = -1
        self._record: Record | None = None
        self._row: Row | None = None
        self._moves: list[Row] = []
        self._found: list[Row] = []
        self._found_moves: list[Row] = []

    def expect(self, offset: int, record: Record | None, row: Row | None, moves: list[Row]) -> None:
        """The replay's rows of the next entry; no row where the entry cannot be read."""
        self.settle()
        self._offset, self._record, self._row, self._moves = offset, record, row, moves

    def channel(self, row: Row) -> None:
        """A row of `channel`."""
        (self._found if self._is_expected(row) else []).append(row)

    def transition(self, row: Row) -> None:
        """A row of `transition`."""
        (self._found_moves if self._is_expected(row) else []).append(row)

    def _is_expected(self, row: Row) -> bool:
        offset = row[_OFFSET]
        if offset == self._offset:
            return True
        assert isinstance(offset, int)
        if offset < self._until:
            self._say(offset, "there is a row of it, and the log has no such record", None)
        return False

    def settle(self) -> None:
        """Judge the last entry, once all its rows are there."""
        found, self._found = self._found, []
        moved, self._found_moves = self._found_moves, []
        if self._offset >= self._until or any(row[_VERDICT] == UNKNOWN for row in found):
            return
        expected = [self._row] if self._row is not None else []
        self._compare("channel", CHANNEL.names, expected, found)
        self._compare("transition", TRANSITION.names, self._moves, moved)

    def _compare(self, table: str, names: Sequence[str], expected: Sequence[Row], found: Sequence[Row]) -> None:
        if len(found) != len(expected):
            self._say(self._offset, f"{table} has {len(found)} rows of it, not {len(expected)}", self._record)
            return
        for right, row in zip(expected, found, strict=True):
            wrong = [
                f"{name} is {said!r}, not {true!r}"
                for name, said, true in zip(names, row, right, strict=True)
                if said != true
            ]
            if wrong:
                self._say(self._offset, f"{table}: {'; '.join(wrong)}", self._record)

    def _say(self, offset: int, detail: str, record: Record | None) -> None:
        self._tell(offset, Broken(Invariant.RECORDED, detail), record)


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
