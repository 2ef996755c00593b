"""The ownership table: the result of replaying the channel. Pure, so that every reader gets the same table.

Only `replay` applies records. It decides nothing by itself: the rows are in `transitions.py`, the reshaping rules in
`reshaping.py`. `cut` and `restore` copy a partition out and back, for snapshots. The queries are in `ownerships.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from statechannel.errors import InvariantError
from statechannel.law import log_records, reshaping
from statechannel.law.bundle import tiles_exactly
from statechannel.law.indices import Indices
from statechannel.law.namespace import Namespace
from statechannel.law.ownerships import Ownerships
from statechannel.law.partition import ClusterIdentity, NamespaceState, Partition, PartitionState
from statechannel.law.record import Action, Record, Role, Subject
from statechannel.law.stepping import find_row, step
from statechannel.law.transitions import reshape
from statechannel.law.verdict import Change, Reason, Refusal, Transition, check_entry

_SUBJECTLESS = frozenset(
    {
        Action.NOOP, Action.GENESIS, Action.LEAD, Action.RETIRE, Action.AMEND, Action.AGREE, Action.CREATE_NAMESPACE,
        Action.DELETE_NAMESPACE,
    }
)  # fmt: skip
_SPLIT, _LEADER = Action.SPLIT, Role.LEADER
"""Looked up once, because every record needs them."""

SHARED_BROKERS = 10_000


class OwnershipTable(Ownerships):
    """The table with its changes: replay, and restoring snapshots."""

    def digest(self, partition: int) -> str:
        """A hash of all that replaying this partition produced; equal on all replicas at equal offsets."""
        return self.cut(partition).digest()

    # --- snapshots

    def cut(self, partition: int) -> PartitionState:
        """An immutable copy of the partition as of now."""
        part = self._partitions[partition]
        return PartitionState(
            partition=partition,
            next_offset=part.next_offset,
            cluster_identity=self.cluster_identity if partition == 0 else None,
            lead=part.lead,
            retired=part.retired,
            incarnations=tuple(sorted(part.incarnations.items())),
            namespaces=tuple(
                NamespaceState(n.name, n.revision, n.share())
                for n in sorted(part.namespaces.values(), key=lambda namespace: namespace.name)
            ),
            leaving=part.moves.leaving,
            arrived=part.moves.arrived,
            agreed=part.agreed,
        )

    def frozen(self) -> OwnershipTable:
        """A copy of the whole table that no later record changes. Quick: shares what does not change."""
        frozen = OwnershipTable(self.partitions)
        frozen.cluster_identity = self.cluster_identity
        frozen._partitions, frozen._indices = [part.frozen() for part in self._partitions], self._indices.copy()
        for part in frozen._partitions:
            frozen._namespaces.update(part.namespaces)
        return frozen

    def restore(self, state: PartitionState) -> None:
        """Replace a partition by this state. Raises InvariantError if the state covers less than the table."""
        for _ in self.restoring(state):
            pass

    def restoring(self, state: PartitionState) -> Iterator[None]:
        """As `restore`, in steps: builds the new state aside and puts it in place after the last step.

        Raises InvariantError if the table changes meanwhile.
        """
        part = self._partitions[state.partition]
        if state.next_offset < part.next_offset:
            raise InvariantError(
                f"partition {state.partition} is replayed up to {part.next_offset}, the snapshot only covers "
                f"{state.next_offset}: a replica never goes back"
            )
        before = self._reached()
        restored = Partition.of(state)
        yield from restored.filled(state)
        indices = self._indices.copy()
        yield from indices.replacing(part.namespaces.values(), restored.namespaces.values(), state.partition)
        if self._reached() != before or self._partitions[state.partition] is not part:
            raise InvariantError(f"records were replayed while partition {state.partition} was being restored")
        self._partitions[state.partition] = restored
        self._indices = indices
        for name in part.namespaces.keys() - restored.namespaces.keys():
            del self._namespaces[name]
        self._namespaces.update(restored.namespaces)
        if state.cluster_identity is not None:
            self.cluster_identity = state.cluster_identity

    def _reached(self) -> list[int]:
        return [part.next_offset for part in self._partitions]

    # --- changing

    def skip(self, partition: int, offset: int) -> None:
        """Pass over an offset that holds no record of ours."""
        self._advance(partition, offset)

    def replay(self, partition: int, offset: int, record: Record) -> Change | Refusal:
        """Apply the next record of a partition, or say why it does not count.

        Offsets of a partition must come in increasing order (gaps are fine). Raises InvariantError if one comes again.
        """
        part = self._advance(partition, offset)
        if part.retired is not None:
            return Refusal(Reason.RETIRED, f"this log was closed; it goes on at {part.retired}")
        for broker in (record.actor, record.to):
            if broker is not None and broker.incarnation > part.incarnations.get(broker.name, 0):
                part.incarnations[broker.name] = broker.incarnation
        if part.agreed.following is not None and record.action in log_records.PROVING:
            return Refusal(Reason.AMENDING, f"what brokers agree on is being replaced by: {part.agreed.following}")
        if record.action in _SUBJECTLESS:
            return self._judge_subjectless(partition, offset, record)
        if not record.subjects:
            return Refusal(Reason.MALFORMED, f"{record.action} names no bundle")
        return self._judge_many(partition, offset, self._sharing(record))

    def _advance(self, partition: int, offset: int) -> Partition:
        part = self._partitions[partition]
        if offset < part.next_offset:
            raise InvariantError(f"offset {offset} of partition {partition} replayed twice: a replica never goes back")
        part.next_offset = offset + 1
        return part

    def _judge_subjectless(self, partition: int, offset: int, record: Record) -> Change | Refusal:
        part, refusal = self._partitions[partition], None
        match record.action:
            case Action.NOOP:
                pass
            case Action.LEAD:
                refusal = log_records.take_lead(part, record)
            case Action.GENESIS:
                refusal = self._begin(partition, record)
            case Action.RETIRE:
                refusal = log_records.retire(part, record)
            case Action.AMEND:
                refusal = log_records.amend(part, record, offset)
            case Action.AGREE:
                refusal = log_records.agree(part, record, offset)
            case _:
                return self._reshape(partition, offset, self._sharing(record))
        return refusal or Change(partition, offset, record)

    def _begin(self, partition: int, record: Record) -> Refusal | None:
        if partition != 0 or record.cluster is None:
            return Refusal(Reason.MALFORMED, "a genesis record must be in partition 0 and name its cluster")
        if self.cluster_identity is not None:
            return Refusal(
                Reason.FOREIGN_CLUSTER, f"this log already belongs to cluster {self.cluster_identity.cluster!r}"
            )
        self.cluster_identity = ClusterIdentity(record.cluster, record.id, record.epoch)
        return None

    def _judge_many(self, partition: int, offset: int, record: Record) -> Change | Refusal:
        if reshape(record.action) is not None:
            return self._reshape(partition, offset, record)
        if record.action is _SPLIT and len(record.subjects) != 1:
            return Refusal(Reason.MALFORMED, "split must name exactly one bundle, to which its cuts belong")
        lead_refusal = self._check_lead(partition, record)
        if lead_refusal is not None:
            return lead_refusal
        transitions: list[Transition] = []
        refused: list[Refusal] = []
        for subject in record.subjects:
            outcome = self._judge_one(partition, offset, record, subject)
            if isinstance(outcome, Refusal):
                refused.append(outcome)
            else:
                self._put(partition, outcome)
                transitions.append(outcome)
        if not transitions:
            first, *others = refused
            return msgspec.structs.replace(first, others=tuple(others)) if others else first
        self._partitions[partition].moves.observe(record, transitions)
        return Change(partition, offset, record, tuple(transitions), tuple(refused))

    def _check_lead(self, partition: int, record: Record) -> Refusal | None:
        if record.role is not _LEADER:
            return None
        lead = self._partitions[partition].lead
        if record.epoch != lead.epoch or record.actor != lead.leader:
            return Refusal(
                Reason.DEPOSED,
                f"the epoch of {record.actor} is {record.epoch}; {lead.leader} leads in epoch {lead.epoch}",
            )
        return None

    def _judge_one(self, partition: int, offset: int, record: Record, subject: Subject) -> Transition | Refusal:
        # Comes first, so that no other partition is read: replicas differ in how far they have replayed it.
        if self.partition_of(subject.bundle.namespace) != partition:
            return Refusal(
                Reason.WRONG_PARTITION, "records of this namespace belong in another partition", subject.bundle
            )
        entry = self.get(subject.bundle)
        if entry is None:
            return Refusal(Reason.NO_BUNDLE, f"there is no bundle {subject.bundle}", subject.bundle)
        if subject.seen != entry.revision:
            detail = f"its author had seen revision {subject.seen}, {entry.action} by {entry.by} came first"
            return Refusal(Reason.STALE, detail, entry.bundle, entry)
        row = find_row(entry, record)
        if isinstance(row, Refusal):
            return row
        return Transition(entry, step(entry, row, offset, record, subject))

    def _put(self, partition: int, transition: Transition) -> None:
        assert transition.after is not None
        self._namespaces[transition.after.bundle.namespace].put(transition.after)
        self._indices.move(transition.before, transition.after, partition)

    def _sharing(self, record: Record) -> Record:
        """The record with its brokers replaced by the equal objects that the whole table shares: this saves memory.

        Changes the record in place: copying it would take longer than its verdict.
        """
        if len(self._brokers) > SHARED_BROKERS:  # most are incarnations that ended long ago
            self._brokers.clear()
        one = self._brokers.setdefault
        msgspec.structs.force_setattr(record, "actor", one(record.actor, record.actor))
        if record.to is not None:
            msgspec.structs.force_setattr(record, "to", one(record.to, record.to))
        return record

    def _reshape(self, partition: int, offset: int, record: Record) -> Change | Refusal:
        refusal = self._check_lead(partition, record)
        outcome = refusal or reshaping.judge(self, partition, offset, record)
        if isinstance(outcome, Refusal):
            return outcome
        part, name = self._partitions[partition], outcome.namespace
        if outcome.now is not None:
            self._come_or_go(part, outcome.now)
            return Change(partition, offset, record, outcome.transitions)
        known = self._namespaces[name]
        gone = [t.before for t in outcome.transitions if t.before is not None]
        born = [t.after for t in outcome.transitions if t.after is not None]
        reshaped = known.reshaped(offset, gone[0].bundle.lo, gone[-1].bundle.hi, born)
        if not reshaping.tiles_again(gone, born):
            raise InvariantError(f"the bundles of {name} do not tile the ring after offset {offset}")
        for entry in born:  # before `gone`: another thread must not find a holder with nothing
            self._indices.move(None, entry, partition)
        for entry in gone:
            self._indices.move(entry, None, partition)
        part.namespaces[name] = self._namespaces[name] = reshaped
        part.moves.observe(record, outcome.transitions)
        return Change(partition, offset, record, outcome.transitions)

    def _come_or_go(self, part: Partition, now: Namespace) -> None:
        """Add or remove a whole namespace. None of its bundles has a holder, so that none has to be walked."""
        before = self._namespaces.get(now.name)
        self._indices.rest(now.count - (before.count if before is not None else 0))
        part.moves.forget(now.name)
        part.namespaces[now.name] = self._namespaces[now.name] = now

    def check_invariants(self) -> None:
        """Raise InvariantError unless every namespace tiles, every entry is well-formed and the indices agree."""
        recounted = Indices()
        for namespace in self._namespaces.values():
            if namespace.exists and not tiles_exactly(namespace.bundles):
                raise InvariantError(f"{namespace.name} does not tile the ring")
            if list(namespace.lower_bounds) != [bundle.lo for bundle in namespace.bundles]:
                raise InvariantError(f"{namespace.name} looks for its bundles in the wrong places")
            if self._partitions[self.partition_of(namespace.name)].namespaces.get(namespace.name) is not namespace:
                raise InvariantError(f"{namespace.name} is not where its partition has it")
            for entry in namespace.entries:
                check_entry(entry)
            recounted.learn(namespace, self.partition_of(namespace.name))
        self._indices.check(recounted)
