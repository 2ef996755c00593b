"""Replays the log at the instant of each append: audits every record and every snapshot, and writes the history.

It reads at the log's end, so it knows every accepted record before any broker does; it needs no snapshot, and has seen
what is trimmed. `checks.py` compares brokers with it.

*Snapshot + tail = full replay*: a snapshot at an offset equals the replay of everything below it. It is checked as the
server takes it, and again as a replica loads it, because a correct snapshot may still be read wrongly.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from loadmanager.channel.audit.auditor import Auditor, compared
from statechannel.errors import CorruptRecord, StateChannelError
from statechannel.law import codec
from statechannel.law.partition import PartitionState
from statechannel.law.record import Action, Record
from statechannel.law.snapshot import INDEX_KEY, SNAPSHOTS, Decoding, Index, SnapshotInfo, SnapshotsReader, chunk_key
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Change, Ownership, Refusal, Transition
from statechannel.ports import LogEntry
from statechannel.runtime.core import Applied


class _Stood(msgspec.Struct, frozen=True):
    """The state below an offset: the replay's, how many records were accepted, and when the last one came."""

    state: PartitionState
    accepted: int
    at_ms: int


class SnapshotAudit:
    """Remembers the state at each offset. Calls `complain` with violations, `write` with events.

    `wall_ms` is the log's clock; records younger than `retention_s` must not be trimmed.
    """

    def __init__(
        self,
        table: OwnershipTable,
        wall_ms: Callable[[], int],
        retention_s: float,
        complain: Callable[[str], None],
        write: Callable[[str], None],
    ) -> None:
        self.written = 0
        """How many snapshots the log took."""
        self.trims = 0
        self._table = table
        self._wall_ms = wall_ms
        self._retention_ms = round(retention_s * 1000)
        self._complain = complain
        self._write = write
        self._states: dict[tuple[int, int], _Stood] = {}
        self._indices: list[Index | None] = [None] * table.partitions
        self._begins = [0] * table.partitions
        self._chunks: list[dict[bytes, bytes]] = [{} for _ in range(table.partitions)]
        for partition in range(table.partitions):
            self.folded(partition, 0)

    def folded(self, partition: int, accepted: int) -> None:
        """The table of `AppendAudit` has taken one more entry of a partition; so many of them were accepted so far."""
        state = self._table.cut(partition)
        self._states[partition, state.next_offset] = _Stood(state, accepted, self._wall_ms())

    def accepted_below(self, partition: int, offset: int) -> int:
        """How many records below an offset were accepted."""
        return self._states[partition, offset].accepted

    # --- written

    def appended(self, entry: LogEntry) -> None:
        """The log took an entry of the snapshots topic."""
        partition, key = entry.partition, entry.key or b""
        if entry.key == INDEX_KEY:
            self._check_index(entry)
        elif entry.value is None:
            self._chunks[partition].pop(key, None)
        else:
            if key.endswith(b"/0"):  # the first of a new transaction
                self._check_chunks(partition)
            self._chunks[partition][key] = entry.value

    def _check_index(self, entry: LogEntry) -> None:
        partition, reader = entry.partition, SnapshotsReader(entry.partition)
        reader.take(entry)
        index, before = reader.index, self._indices[partition]
        if index is None:
            self._complain(f"the snapshots of partition {partition} got an index that does not read")
            return
        self._indices[partition] = index
        if before is not None and index.newest.next_offset < before.newest.next_offset:
            self._complain(
                f"the snapshots of partition {partition} went back: the newest covered {before.newest.next_offset}, "
                f"and now {index.newest.next_offset}"
            )
        if index.snapshots[0].next_offset < self._begins[partition]:
            self._complain(
                f"the snapshots of partition {partition} list one of {index.snapshots[0].next_offset}, though the log "
                f"begins at {self._begins[partition]}"
            )
        known = {info.snapshot_id for info in before.snapshots} if before is not None else set[str]()
        for info in index.snapshots:
            if info.snapshot_id not in known:
                self._check_written(partition, info)

    def _check_written(self, partition: int, info: SnapshotInfo) -> None:
        self.written += 1
        self._write(f"takes snapshot {info.snapshot_id} of {partition}/{info.next_offset}, {info.chunks} chunks")
        try:
            chunks = [self._chunks[partition][chunk_key(info.snapshot_id, number)] for number in range(info.chunks)]
            decoding = Decoding(partition, info, chunks)
            for _ in decoding:
                pass
            state = decoding.state()
        except (StateChannelError, KeyError) as error:
            self._complain(f"a snapshot of partition {partition} was written that does not read: {error!r}")
            return
        self._compare(f"snapshot {info.snapshot_id}", state)

    def check_chunks(self) -> None:
        """Between two transactions: exactly the listed chunks are there."""
        for partition in range(self._table.partitions):
            self._check_chunks(partition)

    def _check_chunks(self, partition: int) -> None:
        index, there = self._indices[partition], self._chunks[partition].keys()
        infos = index.snapshots if index is not None else ()
        listed = {chunk_key(info.snapshot_id, number) for info in infos for number in range(info.chunks)}
        if there != listed:
            self._complain(
                f"the snapshots of partition {partition} are not those that are listed: too many are "
                f"{sorted(there - listed)}, too few {sorted(listed - there)}"
            )

    # --- loaded

    def loaded(self, who: str, info: SnapshotInfo, state: PartitionState) -> None:
        """A replica was loaded from a snapshot, and has applied nothing after it yet."""
        if state.next_offset != info.next_offset:
            self._complain(f"the replica of {who} loaded {info.next_offset} and stands at {state.next_offset}")
        self._compare(f"the replica that {who} loaded from {info.snapshot_id}", state)

    def _compare(self, what: str, state: PartitionState) -> None:
        truth = self._states.get((state.partition, state.next_offset))
        where = f"{state.partition}/{state.next_offset}"
        if truth is None:
            self._complain(f"{what} covers up to {where}, where the log has not been")
        elif state.digest() != truth.state.digest():
            [broken] = compared(what, truth.state, state)
            self._complain(f"SNAPSHOT AND REPLAY DIFFER: {broken.detail} (at {where})")

    # --- trimmed

    def trimmed(self, partition: int, before: int) -> None:
        """The log is about to drop entries below an offset: each listed snapshot must cover them."""
        index = self._indices[partition]
        covered = index.snapshots[0].next_offset if index is not None else 0
        self.trims += 1
        self._begins[partition] = before
        self._write(f"forgets what lies below {partition}/{before}")
        if covered < before:
            self._complain(f"partition {partition} is trimmed to {before}, its oldest snapshot covers only {covered}")
        age_ms = self._wall_ms() - self._states[partition, before].at_ms
        if age_ms < self._retention_ms:
            self._complain(f"partition {partition} is trimmed to {before}, of which the last is only {age_ms} ms old")


CHANNEL_TOPIC = "bundle-state"
SNAPSHOTS_TOPIC = CHANNEL_TOPIC + SNAPSHOTS


class AppendAudit:
    """Replays the channel as it is written. Calls `changed` after each accepted record that changed the table.

    Calls `complain` with every invariant that a record breaks.
    """

    def __init__(
        self,
        table: OwnershipTable,
        snapshots: SnapshotAudit,
        write: Callable[[str], None],
        changed: Callable[[Change], None],
        complain: Callable[[str], None],
    ) -> None:
        self.table = table
        self.snapshots = snapshots
        self.accepted: list[int] = [0] * table.partitions
        """How many records of each partition were accepted."""
        self.refused = 0
        self._write = write
        self._changed = changed
        self._complain = complain
        self._auditors = [Auditor(partition, table.partitions) for partition in range(table.partitions)]
        self._changes: dict[tuple[int, int], tuple[int, Change]] = {}
        self._verdicts: dict[str, Change | Refusal] = {}

    def appended(self, topic: str, entry: LogEntry) -> None:
        """The log took an entry."""
        if topic == SNAPSHOTS_TOPIC:
            self.snapshots.appended(entry)
        elif topic == CHANNEL_TOPIC:
            changed = self._replay(entry)
            self.snapshots.folded(entry.partition, self.accepted[entry.partition])
            if changed is not None:
                self._changed(changed)

    def trimmed(self, topic: str, partition: int, before: int) -> None:
        """The log is about to forget entries."""
        if topic == CHANNEL_TOPIC:
            self.snapshots.trimmed(partition, before)

    def check(self) -> None:
        """Complain if anything but the accepted records has changed the table."""
        for partition, auditor in enumerate(self._auditors):
            for broken in auditor.check(self.table.cut(partition)):
                self._complain(f"partition {partition} breaks {broken.invariant}: {broken.detail}")

    def _replay(self, entry: LogEntry) -> Change | None:
        """Take the next entry of the channel; the change, if it changed any bundle."""
        try:
            record = codec.decode(entry.value)
        except CorruptRecord:
            self.table.skip(entry.partition, entry.offset)
            self._auditors[entry.partition].take(Applied(entry.partition, entry.offset, None))
            return None
        verdict = self.table.replay(entry.partition, entry.offset, record)
        self._verdicts.setdefault(record.id, verdict)
        for broken in self._auditors[entry.partition].take(Applied(entry.partition, entry.offset, verdict, record)):
            self._complain(f"{entry.partition}/{entry.offset} breaks {broken.invariant}: {broken.detail}")
        if isinstance(verdict, Refusal):
            self.refused += 1
            self._write(f"refuses {entry.partition}/{entry.offset} {_told(record)}: {verdict.reason}, {verdict.detail}")
            return None
        self.accepted[entry.partition] += 1
        self._changes[entry.partition, entry.offset] = (self.accepted[entry.partition], verdict)
        if record.action is not Action.NOOP:
            self._write(f"accepts {entry.partition}/{entry.offset} {_told(record)}{_effects(verdict)}")
        return verdict if verdict.transitions else None

    def change_at(self, partition: int, offset: int) -> tuple[int, Change] | None:
        """The accepted record at an offset, with its number among the accepted records of its partition, from 1."""
        return self._changes.get((partition, offset))

    def verdict_of(self, record_id: str) -> Change | Refusal | None:
        """The verdict on a record: on its first copy, because no other copy can be accepted."""
        return self._verdicts.get(record_id)

    def overlapping(self, namespace: str, lo: int, hi: int) -> list[Ownership]:
        """The log's present entries of all bundles that overlap `[lo, hi)`."""
        found = self.table.namespace(namespace)
        bundles = [b for b in found.bundles if b.lo < hi and lo < b.hi] if found is not None else []
        return [entry for bundle in bundles if (entry := self.table.get(bundle)) is not None]


def _told(record: Record) -> str:
    epoch = f" in epoch {record.epoch}" if record.epoch else ""
    name = f" {record.namespace}" if record.namespace else ""
    to = f" to {record.to}" if record.to else ""
    reason = f" ({record.reason})" if record.reason else ""
    return f"{record.action}{name}{to} by {record.role} {record.actor}{epoch}{reason} [{record.id}]"


def _effects(change: Change) -> str:
    effects = [_effect(t) for t in change.transitions]
    missed = [f"{r.bundle}: refused, {r.reason}" for r in change.refused]
    return "".join(f"\n{'':34} {line}" for line in (*effects, *missed))


def _effect(transition: Transition) -> str:
    return f"{transition.bundle}: {_stand(transition.before)} → {_stand(transition.after)}"


def _stand(entry: Ownership | None) -> str:
    if entry is None:
        return "nothing"
    to = f"→{entry.target}" if entry.target else ""
    return f"{entry.state}({entry.holder}{to})" if entry.holder else str(entry.state)
