"""What was promised about every accepted record, checked without the law.

It sees records and changes, and knows neither `transitions.TABLE` nor the ownership table: it finds errors of the law
and of its code. Its model of a partition is the plainest possible: a dictionary of bundles.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from zlib import crc32

from loadmanager.channel.audit.invariants import Broken, Invariant
from loadmanager.channel.audit.steps import OF_NAMESPACE, RESHAPING, check_hand_off, check_owner, wrong_author
from statechannel.errors import InvariantError
from statechannel.law.agreement import NOTHING_AGREED, Agreed
from statechannel.law.bundle import FULL_LOWER, FULL_UPPER, Bundle
from statechannel.law.partition import PartitionState
from statechannel.law.record import NEVER, UNSAID, Action, BrokerId, Record, Role
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership, Transition, check_entry


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
