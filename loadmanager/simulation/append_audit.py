"""Replays the log at the instant of each append, audits every record, and writes the history that people read.

It reads at the log's end, so it knows every accepted record before any broker does; it needs no snapshot, and has seen
what is trimmed. `checks.py` compares brokers with it, `snapshot_audit.py` snapshots.
"""

from __future__ import annotations

from collections.abc import Callable

from loadmanager.channel.audit.auditor import Auditor
from loadmanager.simulation.snapshot_audit import SnapshotAudit
from statechannel.errors import CorruptRecord
from statechannel.law import codec
from statechannel.law.record import Action, Record
from statechannel.law.snapshot import SNAPSHOTS
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Change, Ownership, Refusal, Transition
from statechannel.ports import LogEntry
from statechannel.runtime.core import Applied

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
