"""The ownership table: the fold of the channel. `replay` is the only way it changes, and it decides nothing by itself:
the rows are in `transitions.py`, the reshaping rules in `reshaping.py`.

Reading no clock and doing no I/O, it gives every replica, the simulator and an auditor the same answer. `get`, `locate`
and `held_by` may be called from other threads: each answers as before or after a record, never with nothing between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from zlib import crc32

import msgspec

from statechannel import reshaping
from statechannel.bundle import Bundle, Topic, tiles_exactly
from statechannel.errors import InvariantError
from statechannel.namespace import Namespace
from statechannel.record import Action, Broker, Record, Role, Subject, Token
from statechannel.transitions import IN_FLIGHT, Parties, Row, State, Then, relations, reshape, rows
from statechannel.verdict import Change, Ownership, Reason, Refusal, Transition, check_entry

Indexed = dict[Bundle, None]
"""An ordered set: its order follows the records replayed, never the hash seed."""


class Genesis(msgspec.Struct, frozen=True):
    """Which cluster this log belongs to: the first genesis record wins."""

    cluster: str
    identity: str
    generation: int


class Lead(msgspec.Struct, frozen=True, gc=False):
    """A partition's barrier: only this leader's records of this epoch count."""

    epoch: int = 0
    leader: Broker | None = None


_SUBJECTLESS = frozenset({Action.NOOP, Action.GENESIS, Action.LEAD, Action.CREATE_NAMESPACE, Action.DELETE_NAMESPACE})


class OwnershipTable:
    """Who owns what, by the records replayed so far. `partitions` is fixed for the life of the log."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.genesis: Genesis | None = None
        self._next_offset = [0] * partitions
        self._leads = [Lead()] * partitions
        self._entries: dict[Bundle, Ownership] = {}
        self._namespaces: dict[str, Namespace] = {}
        self._by_holder: dict[Broker, Indexed] = {}
        self._by_state: dict[State, Indexed] = {state: {} for state in State if state is not State.ASSIGNED}
        self._highest_incarnation: dict[str, int] = {}

    # --- reading

    def get(self, bundle: Bundle) -> Ownership | None:
        """What is known of a bundle, None if there is no such bundle (any more)."""
        return self._entries.get(bundle)

    def namespace(self, name: str) -> Namespace | None:
        """The namespace, also if it was deleted; None if it never was."""
        return self._namespaces.get(name)

    def namespaces(self, tenant: str | None = None) -> list[str]:
        """Names of the existing namespaces, sorted; of one tenant if given."""
        prefix = "" if tenant is None else f"{tenant}/"
        return sorted(n.name for n in list(self._namespaces.values()) if n.exists and n.name.startswith(prefix))

    def locate(self, topic: Topic) -> Ownership | None:
        """The bundle that a topic falls into; None if its namespace does not exist."""
        while (namespace := self._namespaces.get(topic.namespace)) is not None and namespace.bundles:
            entry = self._entries.get(namespace.bundle_at(topic.position))
            if entry is not None or self._namespaces.get(topic.namespace) is namespace:
                return entry  # else its bundles changed meanwhile, on another thread: look again
        return None

    def held_by(self, broker: Broker) -> tuple[Bundle, ...]:
        """Bundles whose holder is this incarnation, in whichever state."""
        return tuple(self._by_holder.get(broker, ()))

    def count_held_by(self, broker: Broker) -> int:
        return len(self._by_holder.get(broker, ()))

    def holders(self) -> tuple[Broker, ...]:
        """Every incarnation that holds something."""
        return tuple(self._by_holder)

    def in_state(self, state: State) -> tuple[Bundle, ...]:
        """Bundles in one state; for `assigned`, which is not indexed, this walks all."""
        if state is State.ASSIGNED:
            return tuple(entry.bundle for entry in self if entry.state is state)
        return tuple(self._by_state[state])

    def count_by_state(self) -> dict[State, int]:
        """How many bundles are in each state; from the indices, without walking the bundles."""
        counts = {state: len(bundles) for state, bundles in self._by_state.items()}
        return {State.ASSIGNED: len(self._entries) - sum(counts.values()), **counts}

    def in_flight(self) -> Iterator[Ownership]:
        """Everything that somebody has to move on."""
        for state in State:
            if state in IN_FLIGHT:
                entries = (self._entries.get(bundle) for bundle in tuple(self._by_state[state]))
                yield from (entry for entry in entries if entry is not None and entry.state is state)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Ownership]:
        return iter(list(self._entries.values()))

    def partition_of(self, namespace: str) -> int:
        """The one partition that has all records of a namespace."""
        return crc32(namespace.encode()) % self.partitions

    def token(self, entry: Ownership) -> Token:
        """The fencing token of an ownership."""
        generation = self.genesis.generation if self.genesis else 0
        return Token(generation, self.partition_of(entry.bundle.namespace), entry.token)

    def next_offset(self, partition: int) -> int:
        """Everything below it has been replayed."""
        return self._next_offset[partition]

    def lead(self, partition: int) -> Lead:
        """The partition's present epoch and leader."""
        return self._leads[partition]

    def highest_incarnation(self, name: str) -> int:
        """The highest number of this broker name that any record showed, 0 if none did."""
        return self._highest_incarnation.get(name, 0)

    def digest(self, partition: int) -> str:
        """A hash of all that replaying this partition produced; equal on all replicas at equal offsets."""
        mine = self.partition_of
        content = (
            self._leads[partition],
            sorted((n for n in self._namespaces.values() if mine(n.name) == partition), key=lambda n: n.name),
            sorted(
                (e for e in self._entries.values() if mine(e.bundle.namespace) == partition),
                key=lambda e: e.bundle,
            ),
            self.genesis if partition == 0 else None,
        )
        return blake2b(msgspec.msgpack.encode(content), digest_size=16).hexdigest()

    # --- changing

    def skip(self, partition: int, offset: int) -> None:
        """Pass over an offset that holds no record of ours."""
        self._advance(partition, offset)

    def replay(self, partition: int, offset: int, record: Record) -> Change | Refusal:
        """Apply the next record of a partition, or say why it does not count.

        Offsets of a partition must come in increasing order (gaps are fine). Raises InvariantError if one comes again.
        """
        self._advance(partition, offset)
        self._note_incarnations(record)
        if record.action in _SUBJECTLESS:
            return self._judge_subjectless(partition, offset, record)
        if not record.subjects:
            return Refusal(Reason.MALFORMED, f"{record.action} names no bundle")
        return self._judge_many(partition, offset, record)

    def _advance(self, partition: int, offset: int) -> None:
        if offset < self._next_offset[partition]:
            raise InvariantError(f"offset {offset} of partition {partition} replayed twice: a replica never goes back")
        self._next_offset[partition] = offset + 1

    def _note_incarnations(self, record: Record) -> None:
        for broker in (record.actor, record.to):
            if broker is not None and broker.incarnation > self._highest_incarnation.get(broker.name, 0):
                self._highest_incarnation[broker.name] = broker.incarnation

    def _judge_subjectless(self, partition: int, offset: int, record: Record) -> Change | Refusal:
        match record.action:
            case Action.NOOP:
                return Change(partition, offset, record)
            case Action.LEAD:
                return self._take_lead(partition, offset, record)
            case Action.GENESIS:
                return self._begin(partition, offset, record)
            case _:
                return self._reshape(partition, offset, record)

    def _take_lead(self, partition: int, offset: int, record: Record) -> Change | Refusal:
        if record.role is not Role.LEADER or record.epoch <= self._leads[partition].epoch:
            return Refusal(Reason.DEPOSED, f"epoch {record.epoch} is not above {self._leads[partition].epoch}")
        self._leads[partition] = Lead(record.epoch, record.actor)
        return Change(partition, offset, record)

    def _begin(self, partition: int, offset: int, record: Record) -> Change | Refusal:
        if partition != 0 or record.cluster is None:
            return Refusal(Reason.MALFORMED, "a genesis record stands in partition 0 and names its cluster")
        if self.genesis is not None:
            return Refusal(Reason.FOREIGN_CLUSTER, f"this log already belongs to cluster {self.genesis.cluster!r}")
        self.genesis = Genesis(record.cluster, record.id, record.epoch)
        return Change(partition, offset, record)

    def _judge_many(self, partition: int, offset: int, record: Record) -> Change | Refusal:
        if reshape(record.action) is not None:
            return self._reshape(partition, offset, record)
        if record.action is Action.SPLIT and len(record.subjects) != 1:
            return Refusal(Reason.MALFORMED, "split names one bundle, so that its cuts are that bundle's")
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
                self._put(outcome)
                transitions.append(outcome)
        if not transitions:
            first, *others = refused
            return msgspec.structs.replace(first, others=tuple(others)) if others else first
        return Change(partition, offset, record, tuple(transitions), tuple(refused))

    def _check_lead(self, partition: int, record: Record) -> Refusal | None:
        if record.role is not Role.LEADER:
            return None
        lead = self._leads[partition]
        if record.epoch != lead.epoch or record.actor != lead.leader:
            return Refusal(
                Reason.DEPOSED, f"epoch {record.epoch} of {record.actor}; {lead.leader} leads in {lead.epoch}"
            )
        return None

    def _judge_one(self, partition: int, offset: int, record: Record, subject: Subject) -> Transition | Refusal:
        # Before anything of another partition is looked at: how far that one is replayed differs between replicas.
        if self.partition_of(subject.bundle.namespace) != partition:
            return Refusal(Reason.WRONG_PARTITION, "this namespace's records stand elsewhere", subject.bundle)
        entry = self._entries.get(subject.bundle)
        if entry is None:
            return Refusal(Reason.NO_BUNDLE, f"there is no bundle {subject.bundle}", subject.bundle)
        if subject.seen != entry.revision:
            detail = f"its author had seen revision {subject.seen}, {entry.action} by {entry.by} came first"
            return Refusal(Reason.STALE, detail, entry.bundle, entry)
        row = find_row(entry, record)
        if isinstance(row, Refusal):
            return row
        return Transition(entry, step(entry, row, offset, record, subject))

    def _reshape(self, partition: int, offset: int, record: Record) -> Change | Refusal:
        refusal = self._check_lead(partition, record)
        outcome = refusal or reshaping.judge(self, partition, offset, record)
        if isinstance(outcome, Refusal):
            return outcome
        born = [t for t in outcome.transitions if t.after is not None]
        gone = [t for t in outcome.transitions if t.after is None]
        for transition in born:
            self._put(transition)
        self._set_bundles(outcome.namespace, offset, outcome.transitions)
        for transition in gone:  # last, so that a reader on another thread finds every bundle that is listed
            self._put(transition)
        return Change(partition, offset, record, outcome.transitions)

    def _set_bundles(self, name: str, offset: int, transitions: Iterable[Transition]) -> None:
        old = self._namespaces.get(name)
        bundles = dict.fromkeys(old.bundles if old else ())
        for transition in transitions:
            if transition.after is None:
                del bundles[transition.bundle]
        for transition in transitions:
            if transition.before is None:
                bundles[transition.bundle] = None
        ordered = tuple(sorted(bundles))
        if ordered and not tiles_exactly(ordered):
            raise InvariantError(f"the bundles of {name} do not tile the ring after offset {offset}")
        self._namespaces[name] = Namespace(name, offset, ordered, tuple(b.lo for b in ordered))

    def _put(self, transition: Transition) -> None:
        before, after = transition.before, transition.after
        if before is not None:
            self._unindex(before, after)
        if after is None:
            self._entries.pop(transition.bundle, None)
            return
        self._entries[after.bundle] = after
        if after.holder is not None and (before is None or before.holder != after.holder):
            self._by_holder.setdefault(after.holder, {})[after.bundle] = None
        if after.state is not State.ASSIGNED:
            self._by_state[after.state][after.bundle] = None

    def _unindex(self, before: Ownership, after: Ownership | None) -> None:
        if before.state is not State.ASSIGNED:
            del self._by_state[before.state][before.bundle]
        if before.holder is not None and (after is None or after.holder != before.holder):
            held = self._by_holder[before.holder]
            del held[before.bundle]
            if not held:
                del self._by_holder[before.holder]

    def check_invariants(self) -> None:
        """Raise InvariantError unless every namespace tiles, every entry is well-formed and the indices agree."""
        for namespace in self._namespaces.values():
            if namespace.bundles and not tiles_exactly(namespace.bundles):
                raise InvariantError(f"{namespace.name} does not tile the ring")
        listed = {b for n in self._namespaces.values() for b in n.bundles}
        if listed != set(self._entries):
            raise InvariantError("namespaces and entries name different bundles")
        for entry in self._entries.values():
            check_entry(entry)
        self._check_indices(self._entries)

    def _check_indices(self, entries: Mapping[Bundle, Ownership]) -> None:
        held = {(e.holder, b) for b, e in entries.items() if e.holder is not None}
        if held != {(holder, b) for holder, bundles in self._by_holder.items() for b in bundles}:
            raise InvariantError("the index by holder is wrong")
        states = {(e.state, b) for b, e in entries.items() if e.state is not State.ASSIGNED}
        if states != {(state, b) for state, bundles in self._by_state.items() for b in bundles}:
            raise InvariantError("the index by state is wrong")


def find_row(entry: Ownership, record: Record) -> Row | Refusal:
    """The first row of the table that fits, or why none does."""
    candidates = rows(entry.state, record.action)
    if not candidates:
        return Refusal(Reason.ILLEGAL, f"no arrow {record.action} from {entry.state}", entry.bundle, entry)
    who = relations(record, entry.holder, entry.target)
    allowed = [row for row in candidates if not row.by.isdisjoint(who)]
    if not allowed:
        may = ", ".join(sorted({w.value for row in candidates for w in row.by}))
        detail = f"{record.action} from {entry.state} is for: {may}; not for {record.actor} as {record.role}"
        return Refusal(Reason.NOT_ALLOWED, detail, entry.bundle, entry)
    parties = Parties(entry.bundle, entry.holder, entry.target)
    for row in allowed:
        if row.guard is None or row.guard(parties, record):
            return row
    unmet = "; ".join((row.guard.__doc__ or "").strip() for row in allowed if row.guard is not None)
    reason = Reason.BAD_BOUNDARIES if record.action is Action.SPLIT else Reason.BAD_DESTINATION
    return Refusal(reason, f"{record.action} from {entry.state} wants: {unmet}", entry.bundle, entry)


def step(entry: Ownership, row: Row, offset: int, record: Record, subject: Subject) -> Ownership:
    """The bundle after a legal step."""
    holder, target = entry.holder, None
    match row.then:
        case Then.HOLD_TO:
            holder = record.to
        case Then.HOLD_TARGET:
            holder = entry.target
        case Then.AIM_TO:
            target = record.to
        case Then.KEEP_BOTH:
            target = entry.target
        case Then.NOBODY:
            holder = None
        case Then.KEEP:
            pass
    return Ownership(
        bundle=entry.bundle,
        state=row.next,
        holder=holder,
        target=target,
        revision=offset,
        token=offset if row.fences else entry.token,
        action=record.action,
        by=record.actor,
        hand_off=subject.hand_off if row.then is Then.HOLD_TARGET else None,
        boundaries=record.boundaries if row.next is State.SPLITTING else (),
    )
