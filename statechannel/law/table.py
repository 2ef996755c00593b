"""The ownership table: what it holds, how a record changes it, and its queries. Pure: every reader gets the same table.

Only `replay` applies records. The rows are in `transitions.py`: a record moves bundles, each by a row; or it reshapes a
namespace, all or nothing; or it is about the log itself. `cut` and `restore` copy a partition out and back, for
snapshots.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from operator import attrgetter
from zlib import crc32

import msgspec

from statechannel.errors import InvalidName, InvariantError
from statechannel.law.agreement import Agreed
from statechannel.law.bundle import Bundle, Key, check_namespace, check_tiling, tile, tiles_exactly
from statechannel.law.indices import Flight, Indices
from statechannel.law.namespace import Namespace
from statechannel.law.partition import (
    DONE,
    IDENTITY,
    ClusterIdentity,
    Lead,
    Move,
    NamespaceState,
    Partition,
    PartitionState,
)
from statechannel.law.record import NEVER, UNSAID, Action, BrokerId, Record, Role, Subject, Token
from statechannel.law.transitions import IN_FLIGHT, Parties, Reshape, Row, State, Then, relations, reshape, rows
from statechannel.law.verdict import Change, Cutting, Ownership, Reason, Refusal, Transition, Whole, check_entry

_SUBJECTLESS = frozenset(
    {
        Action.NOOP, Action.GENESIS, Action.LEAD, Action.RETIRE, Action.AMEND, Action.AGREE, Action.CREATE_NAMESPACE,
        Action.DELETE_NAMESPACE,
    }
)  # fmt: skip
_SPLIT, _LEADER = Action.SPLIT, Role.LEADER
"""Looked up once, because every record needs them."""

SHARED_BROKERS = 10_000
WALKED_AT_ONCE = 4_096


class OwnershipTable:
    """Who owns what, by the records replayed so far. `partitions` is fixed for the life of the log.

    Queries change nothing. `get`, `locate` and `held_by` may be called from other threads: they see each bundle as it
    was before or after a record, never between. During a record of many bundles `held_by` may see some changed, others
    not yet.
    """

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.cluster_identity: ClusterIdentity | None = None
        self._partitions = [Partition() for _ in range(partitions)]
        self._namespaces: dict[str, Namespace] = {}
        self._indices = Indices()
        self._brokers: dict[BrokerId, BrokerId] = {}

    def get(self, bundle: Bundle) -> Ownership | None:
        """The entry of a bundle, None if there is no such bundle (any more)."""
        namespace = self._namespaces.get(bundle.namespace)
        return namespace.get(bundle) if namespace is not None else None

    def namespace(self, name: str) -> Namespace | None:
        """The namespace, also if it was deleted; None if it never was."""
        return self._namespaces.get(name)

    def namespaces(self, tenant: str | None = None) -> list[str]:
        """Names of the existing namespaces, sorted; of one tenant if given."""
        prefix = "" if tenant is None else f"{tenant}/"
        return sorted(n.name for n in list(self._namespaces.values()) if n.exists and n.name.startswith(prefix))

    def locate(self, topic: Key) -> Ownership | None:
        """The entry of the bundle that a key falls into; None if its namespace does not exist."""
        namespace = self._namespaces.get(topic.namespace)
        return namespace.entry_at(topic.position) if namespace is not None and namespace.exists else None

    def held_by(self, broker: BrokerId, partitions: Collection[int] | None = None) -> tuple[Bundle, ...]:
        """Bundles whose holder is this incarnation, in any state; of the given partitions only, if given.

        Walks the namespaces in which it holds any: slow on a large table, see `walk`.
        """
        names = self._indices.namespaces_of(broker)
        chosen = [name for name in names if partitions is None or self.partition_of(name) in partitions]
        return tuple(entry.bundle for _, some in self.walk(chosen, {broker}) for entry in some)

    def namespaces_of(self, broker: BrokerId) -> tuple[str, ...]:
        """The namespaces in which this incarnation holds something; without walking the bundles."""
        return self._indices.namespaces_of(broker)

    def is_held(self, namespace: str) -> bool:
        """Whether any of its bundles has a holder (is not unassigned); without walking them."""
        return self._indices.is_held(namespace)

    def walk(self, names: Iterable[str], holders: Container[BrokerId]) -> Iterator[tuple[int, list[Ownership]]]:
        """What these holders have in some namespaces, in steps of at most WALKED_AT_ONCE bundles.

        Each step gives how many entries it looked at, and those that it found.
        """
        for name in names:
            namespace = self._namespaces.get(name)
            for begin in range(0, 0 if namespace is None else namespace.count, WALKED_AT_ONCE):
                assert namespace is not None
                some = namespace.touched(begin, begin + WALKED_AT_ONCE)
                yield len(some), [e for e in some if e.holder is not None and e.holder in holders]

    def count_held_in(self, namespace: str) -> int:
        """How many bundles of the namespace have a holder; without walking them."""
        return self._indices.count_held_in(namespace)

    def count_held_by(self, broker: BrokerId) -> int:
        return self._indices.count_of(broker)

    def count_held_soon(self, broker: BrokerId) -> int:
        """How many bundles it holds once all moves under way are done."""
        indices = self._indices
        return indices.count_of(broker) + indices.coming.get(broker, 0) - indices.leaving.get(broker, 0)

    def partitions_held_by(self, broker: BrokerId) -> set[int]:
        """The partitions in which this incarnation holds something; without walking the bundles."""
        return {self.partition_of(name) for name in self._indices.namespaces_of(broker)}

    def holders(self) -> tuple[BrokerId, ...]:
        """Every incarnation that holds something."""
        return self._indices.holders()

    def in_state(self, state: State) -> tuple[Bundle, ...]:
        """Bundles in one state. Assigned and unassigned ones are not indexed: for them this walks all bundles."""
        if state in IN_FLIGHT:
            return self._indices.in_state(state)
        return tuple(entry.bundle for entry in self if entry.state is state)

    def count_by_state(self) -> dict[State, int]:
        """How many bundles are in each state; without walking the bundles."""
        return dict(self._indices.states)

    def in_flight(self) -> Iterator[Ownership]:
        """Every bundle in flight: some broker has to move it on."""
        for flight in self.flights():
            entries = (self.get(bundle) for bundle in self.on(flight))
            yield from (entry for entry in entries if entry is not None and entry.state is flight.state)

    def flights(self) -> tuple[Flight, ...]:
        """Bundles in flight, grouped: one record that sent many bundles on their way makes few flights."""
        return self._indices.flights()

    def on(self, flight: Flight) -> tuple[Bundle, ...]:
        """The bundles still on a flight."""
        return self._indices.on(flight)

    def count_on(self, flight: Flight) -> int:
        """How many bundles are still on a flight."""
        return self._indices.count_on(flight)

    def __len__(self) -> int:
        return sum(self._indices.states.values())

    def __iter__(self) -> Iterator[Ownership]:
        for namespace in list(self._namespaces.values()):
            yield from namespace.entries

    def partition_of(self, namespace: str) -> int:
        """The partition that has all records of a namespace."""
        return crc32(namespace.encode()) % self.partitions

    def token(self, entry: Ownership) -> Token:
        """The fencing token of an ownership."""
        return self.token_at(entry.bundle, entry.token)

    def token_at(self, bundle: Bundle, offset: int) -> Token:
        """The fencing token of an ownership of this bundle that began at this offset."""
        generation = self.cluster_identity.generation if self.cluster_identity else 0
        return Token(generation, self.partition_of(bundle.namespace), offset)

    def next_offset(self, partition: int) -> int:
        """Everything below it has been replayed."""
        return self._partitions[partition].next_offset

    def lead(self, partition: int) -> Lead:
        """The partition's present epoch and leader."""
        return self._partitions[partition].lead

    def retired(self, partition: int) -> str | None:
        """Where the log goes on if this partition was closed for good, else None."""
        return self._partitions[partition].retired

    def agreed(self, partition: int) -> Agreed:
        """The partition's agreement."""
        return self._partitions[partition].agreed

    @property
    def import_is_unfinished(self) -> bool:
        """True if an import began to fill this log and its last mark is missing."""
        origin = self.cluster_identity
        return (
            origin is not None
            and origin.identity.startswith(IDENTITY)
            and self.highest_incarnation(DONE.name) < DONE.incarnation
        )

    def highest_incarnation(self, name: str) -> int:
        """The highest number of this broker name that any record showed, 0 if none did."""
        return max(partition.incarnations.get(name, 0) for partition in self._partitions)

    def moves(self, bundle: Bundle) -> tuple[Move, ...]:
        """The bundle's planned moves as far as they are kept, newest last."""
        return self._partitions[self.partition_of(bundle.namespace)].moves.of(bundle)

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
        if part.agreed.following is not None and record.action in PROVING:
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
                refusal = take_lead(part, record)
            case Action.GENESIS:
                refusal = self._begin(partition, record)
            case Action.RETIRE:
                refusal = retire(part, record)
            case Action.AMEND:
                refusal = amend(part, record, offset)
            case Action.AGREE:
                refusal = agree(part, record, offset)
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
        outcome = refusal or judge_reshaping(self, partition, offset, record)
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
        if not tiles_again(gone, born):
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


# --- records that change which bundles exist: each is all-or-nothing


class Reshaped(msgspec.Struct, frozen=True, gc=False):
    """The bundles that are removed (no `after`) and added (no `before`) in one namespace.

    `now` is the namespace after it was created or deleted as a whole, else None.
    """

    namespace: str
    transitions: Sequence[Transition]
    now: Namespace | None = None


def judge_reshaping(table: OwnershipTable, partition: int, offset: int, record: Record) -> Reshaped | Refusal:
    """What a reshaping record does to its namespace, or why it does not count."""
    row = reshape(record.action)
    name = record.namespace or (record.subjects[0].bundle.namespace if record.subjects else None)
    if row is None or name is None:
        return Refusal(Reason.MALFORMED, f"{record.action} names no namespace")
    if any(subject.bundle.namespace != name for subject in record.subjects):
        return Refusal(Reason.MALFORMED, f"{record.action} of {name} names bundles of another namespace")
    if table.partition_of(name) != partition:
        return Refusal(Reason.WRONG_PARTITION, f"the records of {name} belong in partition {table.partition_of(name)}")
    match record.action:
        case Action.CREATE_NAMESPACE:
            return _create_namespace(table, offset, record, name, row)
        case Action.DELETE_NAMESPACE:
            return _delete_namespace(table, offset, record, name, row)
        case Action.CREATE:
            return _create_children(table, offset, record, name, row)
        case Action.MERGE:
            return _merge(table, offset, record, name, row)
        case _:
            raise InvariantError(f"{record.action} does not reshape a namespace")


def _create_namespace(
    table: OwnershipTable, offset: int, record: Record, name: str, row: Reshape
) -> Reshaped | Refusal:
    known = table.namespace(name)
    if known is not None and known.exists:
        return Refusal(Reason.NAMESPACE_EXISTS, f"namespace {name} exists already")
    if record.seen_namespace != (known.revision if known else NEVER):
        return Refusal(Reason.STALE, f"{name} was deleted after the author of this record had read it")
    if _is_barred(record, row):
        return _not_allowed(record, row)
    try:
        check_namespace(name)
    except InvalidName as error:
        return Refusal(Reason.MALFORMED, str(error))
    try:
        created = Namespace.created(name, offset, check_tiling(record.boundaries), record.actor)
    except InvalidName as error:
        return Refusal(Reason.BAD_BOUNDARIES, str(error))
    return Reshaped(name, Whole(created.share(), came=True), created)


def _delete_namespace(
    table: OwnershipTable, offset: int, record: Record, name: str, row: Reshape
) -> Reshaped | Refusal:
    known = table.namespace(name)
    if known is None or not known.exists:
        return Refusal(Reason.NO_NAMESPACE, f"there is no namespace {name}")
    if record.seen_namespace != known.revision:
        return Refusal(Reason.STALE, f"the bundles of {name} changed after the author of this record had read them")
    if record.seen_latest not in (UNSAID, known.latest):
        newest = max(known.touched() or known.entries[:1], key=attrgetter("revision"))
        detail = f"its author had read up to {record.seen_latest}, and {newest.action} by {newest.by} came after that"
        return Refusal(Reason.STALE, detail, newest.bundle, newest)
    if _is_barred(record, row):
        return _not_allowed(record, row)
    if table.is_held(name):
        held = next(e for e in known.touched() if e.state not in row.states)
        return Refusal(Reason.NOT_UNASSIGNED, f"{held.bundle} is {held.state}: unload it first", held.bundle, held)
    return Reshaped(name, Whole(known.share(), came=False), Namespace(name, offset))


def _create_children(table: OwnershipTable, offset: int, record: Record, name: str, row: Reshape) -> Reshaped | Refusal:
    if len(record.subjects) != 1:
        return Refusal(Reason.MALFORMED, "create must name exactly one parent")
    parent = _present(table, record, 0, row)
    if isinstance(parent, Refusal):
        return parent
    if _is_barred(record, row, parent):
        return _not_allowed(record, row, parent)
    cuts = (parent.bundle.lo, *record.boundaries, parent.bundle.hi)
    if len(cuts) < 3 or any(a >= b for a, b in itertools.pairwise(cuts)):
        return Refusal(Reason.BAD_BOUNDARIES, "cuts must run strictly upwards inside the parent", parent.bundle, parent)
    children = tile(name, cuts)
    return Reshaped(
        name,
        (
            Transition(parent, None),
            *(Transition(None, _born(child, parent, offset, record)) for child in children),
        ),
    )


def _merge(table: OwnershipTable, offset: int, record: Record, name: str, row: Reshape) -> Reshaped | Refusal:
    if len(record.subjects) < 2:
        return Refusal(Reason.MALFORMED, "merge must name two or more bundles")
    parts: list[Ownership] = []
    for index in range(len(record.subjects)):
        part = _present(table, record, index, row)
        if isinstance(part, Refusal):
            return part
        parts.append(part)
    if any(left.bundle.hi != right.bundle.lo for left, right in itertools.pairwise(parts)):
        return Refusal(Reason.NOT_MERGEABLE, "the bundles must be adjacent, lowest first", parts[0].bundle, parts[0])
    holder = parts[0].holder
    if any(part.holder != holder for part in parts):
        return Refusal(Reason.NOT_MERGEABLE, "the bundles have different owners", parts[0].bundle, parts[0])
    if _is_barred(record, row, parts[0]):
        return _not_allowed(record, row, parts[0])
    whole = Bundle(name, parts[0].bundle.lo, parts[-1].bundle.hi)
    return Reshaped(
        name,
        (*(Transition(p, None) for p in parts), Transition(None, _born(whole, parts[0], offset, record))),
    )


def _present(table: OwnershipTable, record: Record, index: int, row: Reshape) -> Ownership | Refusal:
    """The entry of one subject, if the bundle exists, is as its author saw it, and in a state of the row."""
    subject = record.subjects[index]
    entry = table.get(subject.bundle)
    if entry is None:
        return Refusal(Reason.NO_BUNDLE, f"there is no bundle {subject.bundle}", subject.bundle)
    if subject.seen != entry.revision:
        detail = f"its author had seen revision {subject.seen}, {entry.action} by {entry.by} came first"
        return Refusal(Reason.STALE, detail, entry.bundle, entry)
    if entry.state not in row.states:
        return Refusal(Reason.ILLEGAL, f"{record.action} is not possible from {entry.state}", entry.bundle, entry)
    return entry


def _born(bundle: Bundle, parent: Ownership, offset: int, record: Record) -> Ownership:
    """A bundle that this record cuts out of another or merges; it stays at the same holder."""
    return Ownership(
        bundle=bundle,
        state=State.ASSIGNED,
        holder=parent.holder,
        target=None,
        revision=offset,
        token=offset,
        action=record.action,
        by=record.actor,
    )


def _is_barred(record: Record, row: Reshape, entry: Ownership | None = None) -> bool:
    return row.by.isdisjoint(relations(record, entry.holder if entry else None, None))


def _not_allowed(record: Record, row: Reshape, entry: Ownership | None = None) -> Refusal:
    may = ", ".join(sorted(who.value for who in row.by))
    detail = f"{record.action} is only for {may}; {record.actor} acts as {record.role}"
    return Refusal(Reason.NOT_ALLOWED, detail, entry.bundle if entry else None, entry)


def tiles_again(gone: Iterable[Ownership], born: Iterable[Ownership]) -> bool:
    """Whether the new bundles cover exactly the range of those that are gone."""
    old, new = [entry.bundle for entry in gone], [entry.bundle for entry in born]
    return tiles_exactly(new, old[0].lo, old[-1].hi)


# --- records about the log itself: each function changes the partition, or returns why the record does not count

PROVING = frozenset({Action.NOOP, Action.LEAD})
"""Actions that give a proof, or the right to revoke; none counts while an agreement is being replaced."""


def take_lead(part: Partition, record: Record) -> Refusal | None:
    """`lead`: a new epoch, above the present one, of a leader elected in the agreed coordination root."""
    if record.role is not Role.LEADER or record.epoch <= part.lead.epoch:
        return Refusal(Reason.DEPOSED, f"epoch {record.epoch} is not above {part.lead.epoch}")
    agreement = part.agreed.agreement
    if agreement is not None and record.seen_agreement != part.agreed.revision:
        return _saw_another(part.agreed, record)
    if agreement is not None and record.root != agreement.root:
        detail = f"{record.actor} was elected in coordination root {record.root or 'unknown'}"
        return Refusal(Reason.DISAGREES, f"{detail}, and the log belongs to root {agreement.root}")
    part.lead = Lead(record.epoch, record.actor)
    return None


def retire(part: Partition, record: Record) -> Refusal | None:
    """`retire`: the partition is closed for good."""
    if record.role is not Role.ADMIN:
        return Refusal(Reason.NOT_ALLOWED, f"retire is only for admin; {record.actor} acts as {record.role}")
    part.retired = record.moved_to
    return None


def amend(part: Partition, record: Record, offset: int) -> Refusal | None:
    """`amend`: begins to replace the agreement."""
    if record.role is not Role.ADMIN:
        return Refusal(Reason.NOT_ALLOWED, f"amend is only for admin; {record.actor} acts as {record.role}")
    refusal = _check(part.agreed, record)
    if refusal is None:
        part.agreed = Agreed(part.agreed.agreement, record.agreement, offset)
    return refusal


def agree(part: Partition, record: Record, offset: int) -> Refusal | None:
    """`agree`: puts an agreement in force, the first one or that of the last `amend`."""
    refusal = _check(part.agreed, record)
    if refusal is not None:
        return refusal
    following = part.agreed.following
    if following is None and part.agreed.agreement is not None:
        return Refusal(Reason.DISAGREES, f"this is agreed already: {part.agreed.agreement}")
    if following is not None and following != record.agreement:
        return Refusal(Reason.DISAGREES, f"another agreement is about to hold: {following}")
    part.agreed = Agreed(record.agreement, None, offset)
    return None


def _check(agreed: Agreed, record: Record) -> Refusal | None:
    """The checks of both `amend` and `agree`: they name an agreement, and their author saw the last change of it."""
    if record.agreement is None:
        return Refusal(Reason.MALFORMED, f"{record.action} names no agreement")
    return _saw_another(agreed, record) if record.seen_agreement != agreed.revision else None


def _saw_another(agreed: Agreed, record: Record) -> Refusal:
    detail = f"its author had seen the agreement of revision {record.seen_agreement}, now it is of {agreed.revision}"
    return Refusal(Reason.STALE, detail)


# --- one step of one bundle

_HOLD_TO, _HOLD_TARGET, _AIM_TO = Then.HOLD_TO, Then.HOLD_TARGET, Then.AIM_TO
_KEEP_BOTH, _NOBODY, _SPLITTING = Then.KEEP_BOTH, Then.NOBODY, State.SPLITTING
"""Looked up once: an enumeration member costs as much as a call, and each step needs several."""


def find_row(entry: Ownership, record: Record) -> Row | Refusal:
    """The first row of the table that fits, or why none does."""
    candidates = rows(entry.state, record.action)
    if not candidates:
        return Refusal(Reason.ILLEGAL, f"{record.action} is not possible from {entry.state}", entry.bundle, entry)
    who = relations(record, entry.holder, entry.target)
    allowed = [row for row in candidates if not row.by.isdisjoint(who)]
    if not allowed:
        may = ", ".join(sorted({w.value for row in candidates for w in row.by}))
        detail = f"{record.action} from {entry.state} is only for {may}; {record.actor} acts as {record.role}"
        return Refusal(Reason.NOT_ALLOWED, detail, entry.bundle, entry)
    parties = Parties(entry.bundle, entry.holder, entry.target)
    for row in allowed:
        if row.guard is None or row.guard(parties, record):
            return row
    unmet = "; ".join((row.guard.__doc__ or "").strip() for row in allowed if row.guard is not None)
    reason = Reason.BAD_BOUNDARIES if record.action is Action.SPLIT else Reason.BAD_DESTINATION
    return Refusal(reason, f"{record.action} from {entry.state} needs: {unmet}", entry.bundle, entry)


def step(entry: Ownership, row: Row, offset: int, record: Record, subject: Subject) -> Ownership:
    """The bundle after a legal step."""
    holder, target, then = entry.holder, None, row.then
    if then is _HOLD_TO:
        holder = record.to
    elif then is _HOLD_TARGET:
        holder = entry.target
    elif then is _AIM_TO:
        target = record.to
    elif then is _KEEP_BOTH:
        target = entry.target
    elif then is _NOBODY:
        holder = None
    return Ownership(
        bundle=entry.bundle,
        state=row.next,
        holder=holder,
        target=target,
        revision=offset,
        token=offset if row.fences else entry.token,
        action=record.action,
        by=record.actor,
        hand_off=subject.hand_off if then is _HOLD_TARGET else None,
        cutting=Cutting(record.boundaries, record.algorithm, record.parts) if row.next is _SPLITTING else None,
    )
