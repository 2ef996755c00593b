"""The judge of a replayed partition: checks what was promised of every entry, whatever the law's verdict. Pure.

A lost entry shows in two ways: its offset is missing, or an author had seen a revision that no record here made. The
checks of what was promised see records and changes, and know neither `transitions.TABLE` nor the ownership table: they
find errors of the law and of its code. Their model of a partition is the plainest possible: a dictionary of bundles.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple
from zlib import crc32

from loadmanager.channel.audit.digests import difference
from statechannel.errors import InvariantError
from statechannel.law.agreement import NOTHING_AGREED, Agreed
from statechannel.law.bundle import FULL_LOWER, FULL_UPPER, Bundle
from statechannel.law.partition import PartitionState
from statechannel.law.record import MAX_HAND_OFF_BYTES, NEVER, UNSAID, Action, BrokerId, Record, Role
from statechannel.law.transitions import SERVING_STATES, State
from statechannel.law.verdict import Change, Ownership, Reason, Refusal, Transition, check_entry
from statechannel.runtime.core import Applied

_BUNDLES_SHOWN = 5


class Invariant(StrEnum):
    """What must hold of a channel's log."""

    ENTRY = "entry"
    """Holder and target fit the state, the revision is the record's offset, tokens don't go back, nothing was lost."""
    OWNER = "owner"
    """Exactly one owner: the owner changes only by accepted records, from itself or after it was revoked.

    The next owner is the one that the record names; a revoked owner does not come back.
    """
    TOKEN = "token"
    """A new owner, or a new bundle, has a higher token than there was."""
    ONCE = "once"
    """At most one copy of a record is accepted."""
    HAND_OFF = "hand-off"
    """A hand-off reaches only the direct successor, and is at most 64 KiB."""
    SEEN = "seen"
    """The author of a change to a bundle, or of making or deleting a namespace, had seen its last revision."""
    AUTHOR = "author"
    """Only those who may act do: the holder, the target, the leader, an administrator."""
    EPOCH = "epoch"
    """Epochs grow, and a leader's records are of the present one."""
    TILING = "tiling"
    """The bundles of a namespace cover the ring, without a hole or an overlap; new bundles are as the record says."""
    PLACE = "place"
    """A namespace's records are in its own partition; a log belongs to one cluster, as partition 0 says; nothing is
    accepted behind the end of a closed log."""
    SNAPSHOT = "snapshot"
    """A snapshot, or a state of the ingest, equals the replay at its offset."""
    RECORDED = "recorded"
    """The lakehouse's rows of a record equal the replay's."""
    LOG = "log"
    """The replay reads the whole log; no offset has two records, and none is missing."""


class Broken(NamedTuple):
    """A promise that was not kept, and how."""

    invariant: Invariant
    detail: str


def words(record: Record) -> str:
    """A record in words."""
    about = [f"{s.bundle} (seen {s.seen})" for s in record.subjects[:_BUNDLES_SHOWN]]
    if len(record.subjects) > _BUNDLES_SHOWN:
        about.append(f"{len(record.subjects) - _BUNDLES_SHOWN} more")
    if record.namespace is not None:
        about.append(record.namespace)
    to = f" to {record.to}" if record.to is not None else ""
    epoch = f" of epoch {record.epoch}" if record.epoch else ""
    return f"{record.role} {record.actor}{epoch}: {record.action} {', '.join(about)}{to}".rstrip()


OF_NAMESPACE = frozenset({Action.CREATE_NAMESPACE, Action.DELETE_NAMESPACE})
RESHAPING = frozenset({Action.CREATE, Action.MERGE}) | OF_NAMESPACE
STEERING = frozenset({Action.TRANSFER, Action.UNLOAD, Action.SPLIT, Action.MERGE})


def wrong_author(record: Record, before: Ownership, by_holder: bool) -> str:
    """What is wrong with the author, empty if nothing is."""
    if record.action in STEERING and not by_holder and record.role is Role.BROKER:
        return f"{record.actor} steers what is not its own"
    if record.action in (Action.CREATE, Action.RETURN) and not by_holder:
        return f"{record.actor} acts as the holder"
    if record.action is Action.READY and (record.role is not Role.BROKER or record.actor != before.target):
        return f"{record.actor} acts as the target"
    if record.action is Action.REVOKE and record.role is not Role.LEADER:
        return f"{record.actor} revokes as {record.role}"
    concerned = by_holder or record.actor == before.target
    if record.action is Action.CANCEL and record.role is Role.BROKER and not concerned:
        return f"{record.actor} cancels what is not its own"
    return ""


def check_owner(record: Record, before: Ownership, after: Ownership | None, by_holder: bool) -> Iterator[Broken]:
    """Broken promises on ownership. `by_holder`: the author held the bundle, and acts as its holder."""
    reshaped = record.action in RESHAPING
    holder = after.holder if after is not None else before.holder
    if record.action is Action.DELETE_NAMESPACE and before.holder is not None:
        yield Broken(Invariant.OWNER, f"{before.bundle} is deleted under {before.holder}")
    if reshaped and record.action not in OF_NAMESPACE and before.state not in (State.ASSIGNED, State.SPLITTING):
        yield Broken(Invariant.OWNER, f"{before.bundle} is reshaped while it is {before.state}")
    if before.holder is not None and holder != before.holder:
        revoked = record.role is Role.LEADER and before.state is State.REVOKING
        declined = by_holder and before.state is State.ASSIGNING
        if not by_holder and not revoked:
            yield Broken(Invariant.OWNER, f"{before.bundle} is taken from {before.holder}")
        if before.state in SERVING_STATES and not declined:
            yield Broken(Invariant.OWNER, f"{before.bundle} leaves {before.holder} while that serves it")
    passed_over = after is not None and after.holder != before.target
    if before.target is not None and record.action is Action.RELEASE and passed_over:
        yield Broken(Invariant.OWNER, f"{before.bundle} was for {before.target}, and went to {holder}")
    if record.action is Action.READY and after is not None and after.target != before.target:
        yield Broken(Invariant.OWNER, f"{before.bundle} is ready at {before.target}, and goes to {after.target}")
    if after is None or reshaped:
        return
    if record.action is Action.RELEASE and before.state is State.REVOKING and holder == before.holder:
        yield Broken(Invariant.OWNER, f"{before.bundle} comes back to {holder}, which was revoked")
    yield from _check_destination(record, before, after)
    own = after.target is not None and before.holder is not None and after.target.name == before.holder.name
    if own and before.target is None:
        yield Broken(Invariant.OWNER, f"{before.bundle} is on its way to its own holder {before.holder}")
    if after.holder not in (None, before.holder) and after.token <= before.token:
        yield Broken(Invariant.TOKEN, f"{after.holder} begins to own {before.bundle} with the old token {after.token}")


def _check_destination(record: Record, before: Ownership, after: Ownership) -> Iterator[Broken]:
    """If the record names a destination, the bundle is there afterwards, or on its way there."""
    match record.action:
        case Action.OWN:
            went = after.holder
        case Action.TRANSFER:
            went = after.target
        case Action.RELEASE if record.role is Role.LEADER:
            went = after.holder
        case _:
            return
    if went != record.to:
        yield Broken(Invariant.OWNER, f"{before.bundle} was to go to {record.to}, and went to {went}")


def check_hand_off(record: Record, before: Ownership, after: Ownership) -> Iterator[Broken]:
    """A hand-off reaches the owner that it was released to, and no other."""
    said = ((each.bundle, each.seen, each.hand_off) for each in record.subjects)
    given = next((data for bundle, seen, data in said if (bundle, seen) == (before.bundle, before.revision)), None)
    handed = record.action is Action.RELEASE and before.target is not None and after.holder == before.target
    if after.hand_off is not None and len(after.hand_off) > MAX_HAND_OFF_BYTES:
        yield Broken(Invariant.HAND_OFF, f"{before.bundle} hands over {len(after.hand_off)} bytes")
    if after.hand_off != (given if handed else None):
        yield Broken(Invariant.HAND_OFF, f"what {before.bundle} hands over is not what {record.action} gave")


class Promises:
    """The promises of one partition; takes every accepted change in order."""

    def __init__(self, partition: int, partitions: int) -> None:
        self._partition = partition
        self._partitions = partitions
        self._entries: dict[Bundle, Ownership] = {}
        self._counts: dict[str, int] = {}
        self._shaped: dict[str, int] = {}
        self._latest: dict[str, int] = {}
        self._homes: dict[str, int] = {}
        self._agreed = NOTHING_AGREED
        self._cluster: str | None = None
        self._lead: tuple[int, BrokerId | None] = (0, None)
        self._closed = False

    def begin(self, state: PartitionState) -> None:
        """Go on from a state."""
        self._lead = (state.lead.epoch, state.lead.leader)
        self._closed = state.retired is not None
        self._cluster = state.cluster_identity.cluster if state.cluster_identity is not None else None
        self._agreed = state.agreed
        for namespace in state.namespaces:
            self._counts[namespace.name] = len(namespace.entries)
            self._entries.update((entry.bundle, entry) for entry in namespace.entries)
            self._shaped[namespace.name] = namespace.revision
            self._latest[namespace.name] = max((e.revision for e in namespace.entries), default=namespace.revision)

    def differs(self, state: PartitionState) -> str:
        """The first bundle in which a state differs from the accepted changes; empty if there is none."""
        known = {entry.bundle: entry for namespace in state.namespaces for entry in namespace.entries}
        if known == self._entries:
            return ""
        bundle = min(b for b in {*known, *self._entries} if known.get(b) != self._entries.get(b))
        return f"{bundle} was changed by no accepted record: it is {known.get(bundle)}, not {self._entries.get(bundle)}"

    def see(self, change: Change) -> Iterator[Broken]:
        """The promises that a change breaks."""
        record, transitions = change.record, change.transitions
        if self._closed:
            yield Broken(Invariant.PLACE, "the log was closed before it")
        if record.action is Action.RETIRE:
            self._closed = True
            if record.role is not Role.ADMIN:
                yield Broken(Invariant.AUTHOR, f"{record.actor} closed the log as {record.role}")
        if record.action is Action.GENESIS:
            yield from self._check_cluster(record)
        yield from self._check_agreement(change)
        yield from self._check_lead(record, bool(transitions))
        reshaping = record.action in RESHAPING
        for before, after in ((t.before, t.after) for t in transitions):
            if after is not None:
                yield from _check_entry(change.offset, before, after)
            if before is not None:
                yield from self._check_step(record, before, after)
            if not reshaping and (before is None or after is None or before.bundle != after.bundle):
                yield Broken(Invariant.TILING, f"{record.action} changed which bundles there are")
        if reshaping:
            yield from self._check_reshaping(change)
        self._learn(change)

    def _learn(self, change: Change) -> None:
        for transition in change.transitions:
            if transition.before is not None and transition.after is None:
                self._entries.pop(transition.before.bundle, None)
                self._count(transition.before.bundle.namespace, -1)
        for transition in change.transitions:
            self._latest[transition.bundle.namespace] = change.offset
            if transition.after is not None:
                self._entries[transition.after.bundle] = transition.after
                if transition.before is None:
                    self._count(transition.after.bundle.namespace, 1)
        if change.record.action in RESHAPING and change.transitions:
            self._shaped[change.transitions[0].bundle.namespace] = change.offset

    def _home(self, namespace: str) -> int:
        """The partition of its records."""
        home = self._homes.get(namespace)
        if home is None:
            home = self._homes[namespace] = crc32(namespace.encode()) % self._partitions
        return home

    def _count(self, namespace: str, more: int) -> None:
        self._counts[namespace] = self._counts.get(namespace, 0) + more

    # --- the log and its leaders

    def _check_cluster(self, record: Record) -> Iterator[Broken]:
        if self._partition != 0:
            yield Broken(Invariant.PLACE, "it says elsewhere than in partition 0 whose log this is")
        if self._cluster is not None:
            yield Broken(Invariant.PLACE, f"the log was cluster {self._cluster}'s, and becomes {record.cluster}'s")
        self._cluster = record.cluster

    def _check_agreement(self, change: Change) -> Iterator[Broken]:
        record, agreed = change.record, self._agreed
        if record.action is Action.AMEND:
            if record.role is not Role.ADMIN:
                yield Broken(Invariant.AUTHOR, f"{record.actor} replaces what brokers agree on as {record.role}")
            self._agreed = Agreed(agreed.agreement, record.agreement, change.offset)
        elif record.action is Action.AGREE:
            begun = agreed.following if agreed.following is not None else agreed.agreement
            if begun is not None and (agreed.following is None or begun != record.agreement):
                yield Broken(Invariant.PLACE, "it says what brokers agree on, and the log said otherwise")
            self._agreed = Agreed(record.agreement, None, change.offset)
        elif agreed.following is not None and record.action in (Action.NOOP, Action.LEAD):
            yield Broken(Invariant.PLACE, "what brokers agree on was being replaced")

    def _check_lead(self, record: Record, changes: bool) -> Iterator[Broken]:
        if record.action is Action.LEAD:
            word = self._agreed.agreement
            if word is not None and record.root != word.root:
                yield Broken(Invariant.AUTHOR, f"{record.actor} leads from root {record.root}, not from {word.root}")
            if record.role is not Role.LEADER:
                yield Broken(Invariant.AUTHOR, f"{record.actor} takes the lead as {record.role}")
            if record.epoch <= self._lead[0]:
                yield Broken(Invariant.EPOCH, f"epoch {record.epoch} follows {self._lead[0]}")
            self._lead = (record.epoch, record.actor)
        elif record.role is Role.LEADER and changes and (record.epoch, record.actor) != self._lead:
            epoch, leader = self._lead
            yield Broken(
                Invariant.EPOCH, f"{record.actor} acts as leader in epoch {record.epoch}; {leader} leads in {epoch}"
            )

    # --- one bundle

    def _check_step(self, record: Record, before: Ownership, after: Ownership | None) -> Iterator[Broken]:
        bundle = before.bundle
        if self._entries.get(bundle) != before:
            yield Broken(Invariant.OWNER, f"{bundle} was changed by no accepted record before it became {before.state}")
        if self._home(bundle.namespace) != self._partition:
            yield Broken(Invariant.PLACE, f"the records of {bundle.namespace} stand elsewhere")
        if record.action is not Action.DELETE_NAMESPACE and not _had_seen(record, before):
            yield Broken(Invariant.SEEN, f"its author had not seen revision {before.revision} of {bundle}")
        by_holder = record.role is Role.BROKER and record.actor == before.holder
        wrong = wrong_author(record, before, by_holder)
        if wrong:
            yield Broken(Invariant.AUTHOR, f"{wrong}: {bundle} is {before.state} at {before.holder}")
        yield from check_owner(record, before, after, by_holder)
        if after is not None and (record.action is Action.RELEASE or after.hand_off is not None):
            yield from check_hand_off(record, before, after)

    # --- which bundles there are

    def _check_reshaping(self, change: Change) -> Iterator[Broken]:
        record = change.record
        gone = sorted(t.before.bundle for t in change.transitions if t.before is not None)
        born = sorted((t.after for t in change.transitions if t.after is not None), key=lambda entry: entry.bundle)
        name = next((bundle.namespace for bundle in (*gone, *(entry.bundle for entry in born))), None)
        if name is None:
            yield Broken(Invariant.TILING, f"{record.action} changed no bundle")
            return
        if record.action in OF_NAMESPACE:
            yield from self._check_namespace(change, name, len(gone))
        bundles = [entry.bundle for entry in born]
        wrong = _wrong_tiling(record.action, gone, bundles) or _wrong_cuts(record, bundles)
        if wrong:
            yield Broken(Invariant.TILING, wrong)
        if self._home(name) != self._partition:
            yield Broken(Invariant.PLACE, f"the records of {name} stand elsewhere")
        for entry in born:
            if entry.token != change.offset:
                yield Broken(Invariant.TOKEN, f"{entry.bundle} is new and has the token {entry.token}")
            if entry.holder is not None and not self._held_before(entry.holder, change.transitions):
                yield Broken(Invariant.OWNER, f"{entry.bundle} was born at {entry.holder}, which held none of these")
            first = State.UNASSIGNED if record.action is Action.CREATE_NAMESPACE else State.ASSIGNED
            if entry.state is not first or entry.hand_off is not None:
                yield Broken(Invariant.ENTRY, f"{entry.bundle} is new and {entry.state}, not {first} with nothing else")

    def _held_before(self, holder: BrokerId, transitions: Sequence[Transition]) -> bool:
        return all(t.before.holder == holder for t in transitions if t.before is not None) and any(
            t.before is not None for t in transitions
        )

    def _check_namespace(self, change: Change, name: str, gone: int) -> Iterator[Broken]:
        record = change.record
        if record.role is not Role.ADMIN:
            yield Broken(Invariant.AUTHOR, f"{record.actor} makes or unmakes {name} as {record.role}")
        there = self._counts.get(name, 0)
        if record.action is Action.DELETE_NAMESPACE and gone != there:
            yield Broken(Invariant.TILING, f"{gone} of {there} bundles of {name} are gone")
        if record.action is Action.CREATE_NAMESPACE and there:
            yield Broken(Invariant.TILING, f"{name} is made, and it has {there} bundles")
        shaped = self._shaped.get(name, NEVER)
        if record.seen_namespace != shaped:
            yield Broken(Invariant.SEEN, f"its author had not seen revision {shaped}, which shaped {name}")
        latest = self._latest.get(name, NEVER)
        if record.action is Action.DELETE_NAMESPACE and record.seen_latest not in (UNSAID, latest):
            yield Broken(Invariant.SEEN, f"its author had not seen offset {latest}, which changed a bundle of {name}")


def _check_entry(offset: int, before: Ownership | None, after: Ownership) -> Iterator[Broken]:
    try:
        check_entry(after)
    except InvariantError as error:
        yield Broken(Invariant.ENTRY, str(error))
    if after.revision != offset:
        yield Broken(Invariant.ENTRY, f"{after.bundle} has revision {after.revision}")
    if before is not None and after.token < before.token:
        detail = f"the token of {after.bundle} goes back from {before.token} to {after.token}"
        yield Broken(Invariant.ENTRY, detail)


def _had_seen(record: Record, before: Ownership) -> bool:
    """Whether the record's author had seen the bundle's last revision."""
    return any(subject.seen == before.revision and subject.bundle == before.bundle for subject in record.subjects)


def _wrong_tiling(action: Action, gone: Sequence[Bundle], born: Sequence[Bundle]) -> str:
    """What is wrong unless the new bundles cover the old ones' range; all of the ring, for a whole namespace."""
    for bundles in (gone, born):
        for left, right in itertools.pairwise(bundles):
            if left.hi != right.lo or left.namespace != right.namespace:
                return f"there is a hole or an overlap between {left} and {right}"
    spans = [(bundles[0].lo, bundles[-1].hi) for bundles in (gone, born) if bundles]
    expected = 1 if action in OF_NAMESPACE else 2
    if len(spans) != expected or len(set(spans)) != 1:
        return f"{action} puts {len(born)} bundles in the place of {len(gone)} that cover another range"
    if action in OF_NAMESPACE and spans[0] != (FULL_LOWER, FULL_UPPER):
        return f"the bundles of {action} do not cover the ring"
    return ""


def _wrong_cuts(record: Record, born: Sequence[Bundle]) -> str:
    """What is wrong if the new bundles are not those that the record names."""
    edges = (*(bundle.lo for bundle in born), *(bundle.hi for bundle in born[-1:]))
    named = {Action.CREATE: edges[1:-1], Action.CREATE_NAMESPACE: edges}.get(record.action)
    if named is not None and named != tuple(record.boundaries):
        return f"it cuts at {len(named)} places that are not those that it names"
    return ""


class Auditor:
    """Judges one partition. Call `begin` with what the replay begins with, then `take` with every entry in order."""

    def __init__(self, partition: int, partitions: int) -> None:
        self.counts: Counter[str] = Counter()
        """How many entries were `accepted`, `refused` or `corrupt`."""
        self.refusals: Counter[str] = Counter()
        """How many records were refused, by reason."""
        self._promises = Promises(partition, partitions)
        self._expected = 0

    def begin(self, offset: int, state: PartitionState | None = None) -> None:
        """Go on at an offset, from the state below it."""
        self._expected = offset
        if state is not None:
            self._promises.begin(state)

    def missing(self, offset: int) -> range:
        """The offsets below this one that had no entry."""
        return range(self._expected, offset)

    def take(self, applied: Applied) -> list[Broken]:
        """The invariants that the next entry breaks."""
        record, verdict, self._expected = applied.record, applied.verdict, applied.offset + 1
        if record is None or verdict is None:
            self.counts["corrupt"] += 1
            return []
        if isinstance(verdict, Refusal):
            self.counts["refused"] += 1
            self.refusals[verdict.reason] += 1
            return list(_lost(applied.offset, record, (verdict, *verdict.others)))
        self.counts["accepted"] += 1
        return [*self._promises.see(verdict), *_lost(applied.offset, record, verdict.refused)]

    def check(self, state: PartitionState) -> list[Broken]:
        """The same for the replay's own state: only the changes that were taken may have led to it."""
        differs = self._promises.differs(state)
        return [Broken(Invariant.OWNER, differs)] if differs else []


def compared(who: str, ours: PartitionState, theirs: PartitionState) -> list[Broken]:
    """The same for another state, of a snapshot or a replica, at the same offset as the replay's."""
    if ours.digest() == theirs.digest():
        return []
    return [Broken(Invariant.SNAPSHOT, f"{who}: {difference(ours, theirs) or 'its digest differs'}")]


def _lost(offset: int, record: Record, refusals: Iterable[Refusal]) -> Iterator[Broken]:
    """Entries that the record's author had seen, and that this log does not have."""
    for refusal in refusals:
        winner = refusal.winner
        if refusal.reason is not Reason.STALE or winner is None:
            continue
        seen = next((subject.seen for subject in record.subjects if subject.bundle == winner.bundle), None)
        if seen is not None and winner.revision < seen < offset:
            detail = f"the log has made none after {winner.revision}: entries were lost"
            yield Broken(Invariant.ENTRY, f"{record.actor} had seen revision {seen} of {winner.bundle}, and {detail}")
