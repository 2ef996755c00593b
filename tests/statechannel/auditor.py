"""Random histories of valid and invalid records, and an auditor that knows the promises but not the law.

The auditor sees only records and changes. `audit` plays a history under its eyes; `test_histories.py` does so on the
law as it is, `test_mutants.py` on the law with one guard taken out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random
from typing import TypeVar

import msgspec

from statechannel.law import table
from statechannel.law.agreement import Agreement
from statechannel.law.bundle import FULL_UPPER, Bundle, index_of, tiles_exactly
from statechannel.law.partition import PartitionState
from statechannel.law.record import NEVER, UNSAID, Action, BrokerId, Record, Role, Subject
from statechannel.law.transitions import IN_FLIGHT, SERVING_STATES, TABLE, State, Who
from statechannel.law.verdict import Change, Ownership

NAMESPACES = ("shop/orders", "game/rooms")
BROKERS = (BrokerId("a:1", 1), BrokerId("a:1", 2), BrokerId("b:1", 1), BrokerId("c:1", 1))
POSITIONS = (0, 5, 0x1FFFFFFF, 0x20000000, 0x40000001, 0x7FFFFFFF, 0x80000000, 0xC0000000, FULL_UPPER - 1, FULL_UPPER)


T = TypeVar("T")


class Violation(Exception):
    """A promise was broken."""


def promise(kept: bool, what: str) -> None:
    if not kept:
        raise Violation(what)


def there(value: T | None, what: str) -> T:
    if value is None:
        raise Violation(what)
    return value


class Auditor:
    """Folds accepted changes into the plainest possible model and checks what was promised about each."""

    def __init__(self) -> None:
        self.entries: dict[Bundle, Ownership] = {}
        self.ever: set[Bundle] = set()
        self.leads: dict[int, tuple[int, BrokerId | None]] = {}
        self.tokens: dict[tuple[str, int], tuple[int, BrokerId | None]] = {}
        self.deleted: dict[str, int] = {}
        self.latest: dict[str, int] = {}
        self.retired: set[int] = set()
        self.agreements: dict[int, Agreement] = {}
        self.amending: set[int] = set()
        self.accepted: set[tuple[int, str, Bundle | None]] = set()

    def see(self, change: Change) -> None:
        record = change.record
        what = {(change.partition, record.id, t.before.bundle if t.before else None) for t in change.transitions}
        promise(what.isdisjoint(self.accepted), "a copy of an accepted record is accepted")
        promise(change.partition not in self.retired, "a closed log goes on")
        if record.action is Action.RETIRE:
            promise(record.role is Role.ADMIN, "somebody but an admin closed a log")
            self.retired.add(change.partition)
        self._check_agreement(change)
        self.accepted |= what
        self._check_lead(change)
        for transition in change.transitions:
            if transition.before is not None:
                self._check_step(change, transition.before, transition.after)
        for transition in change.transitions:
            if transition.before is not None:
                self.entries.pop(transition.before.bundle)
        for transition in change.transitions:
            if transition.after is not None:
                self.entries[transition.after.bundle] = transition.after
                self.ever.add(transition.after.bundle)
        if record.action is Action.DELETE_NAMESPACE:
            namespace = there(record.namespace, "nothing is deleted")
            unchanged = record.seen_latest in (UNSAID, self.latest[namespace])
            promise(unchanged, "a late delete is accepted")
            self.deleted[namespace] = change.offset
        self.latest.update((t.bundle.namespace, change.offset) for t in change.transitions)
        if record.action is Action.CREATE_NAMESPACE:
            namespace = there(record.namespace, "nothing is created")
            promise(record.seen_namespace == self.deleted.get(namespace, NEVER), "a late create is accepted")
        if record.action in (Action.CREATE_NAMESPACE, Action.DELETE_NAMESPACE):
            promise(record.role is Role.ADMIN, "somebody but an admin made or unmade a namespace")
        for namespace in NAMESPACES:
            mine = [bundle for bundle in self.entries if bundle.namespace == namespace]
            promise(not mine or tiles_exactly(mine), "the ring has a hole or an overlap")
            self._check_tokens(namespace)

    def _check_agreement(self, change: Change) -> None:
        record, where = change.record, change.partition
        if record.action not in (Action.AMEND, Action.AGREE):
            proves = record.action in (Action.NOOP, Action.LEAD)
            promise(not proves or where not in self.amending, "a proof counts while what brokers agree on is replaced")
            return
        promise((where, record.id, None) not in self.accepted, "a copy of an accepted word is accepted")
        self.accepted.add((where, record.id, None))
        if record.action is Action.AMEND:
            promise(record.role is Role.ADMIN, "somebody but an admin replaces what brokers agree on")
            self.amending.add(where)
        else:
            promise(where in self.amending or where not in self.agreements, "a word is replaced without warning")
            self.amending.discard(where)
            self.agreements[where] = there(record.agreement, "a word says nothing")

    def _check_lead(self, change: Change) -> None:
        record, present = change.record, self.leads.get(change.partition, (0, None))
        if record.action is Action.LEAD:
            promise(record.epoch > present[0], "an epoch went back")
            word = self.agreements.get(change.partition)
            promise(word is None or word.root == record.root, "a leader of another root is obeyed")
            self.leads[change.partition] = (record.epoch, record.actor)
        elif record.role is Role.LEADER and change.transitions:
            promise((record.epoch, record.actor) == present, "a deposed leader is obeyed")

    def _check_step(self, change: Change, before: Ownership, after: Ownership | None) -> None:
        record = change.record
        promise(self.entries.get(before.bundle) == before, "the table forgot a change")
        seen = [s.seen for s in record.subjects if s.bundle == before.bundle]
        promise(
            record.action is Action.DELETE_NAMESPACE or before.revision in seen, "its author had not seen this revision"
        )
        by_holder = record.actor == before.holder and record.role is Role.BROKER
        steered = by_holder or record.role is not Role.BROKER
        if record.action in (Action.TRANSFER, Action.UNLOAD, Action.SPLIT, Action.MERGE):
            promise(steered, "a stranger steers a bundle")
        if record.action in (Action.CREATE, Action.RETURN):
            promise(by_holder, "a stranger acts as the holder")
        if record.action in (Action.CREATE, Action.MERGE):
            promise(before.state in (State.ASSIGNED, State.SPLITTING), "a bundle is reshaped on its way")
        if record.action is Action.READY:
            promise(after is not None and after.target == before.target, "the target was forgotten")
            promise(record.actor == before.target and record.role is Role.BROKER, "a stranger acts as the target")
        if record.action is Action.REVOKE:
            promise(record.role is Role.LEADER, "somebody but the leader revokes")
        if record.action is Action.DELETE_NAMESPACE:
            promise(before.holder is None, "a bundle is deleted under its holder")
        holder = after.holder if after else before.holder
        if before.holder is not None and holder != before.holder:
            by_leader = record.role is Role.LEADER and before.state is State.REVOKING
            promise(by_holder or by_leader, "a bundle is taken from its holder")
            declined = before.state is State.ASSIGNING and by_holder
            promise(declined or before.state not in SERVING_STATES, "a holder changed while it served")
        if after is not None and after.target is not None and before.target is None:
            former = there(before.holder, "what nobody holds is on its way")
            promise(after.target.name != former.name, "a bundle is on its way to its own holder")
        if before.target is not None and record.action is Action.RELEASE:
            promise(after is not None and after.holder == before.target, "the target was passed over")

    def _check_tokens(self, namespace: str) -> None:
        mine = sorted((e for b, e in self.entries.items() if b.namespace == namespace), key=lambda e: e.bundle)
        for position in POSITIONS if mine else ():
            entry = mine[index_of([e.bundle.lo for e in mine], position)]
            token, holder = self.tokens.get((namespace, position), (NEVER, None))
            promise(entry.token >= token, "a token went back")
            promise(entry.holder in (None, holder) or entry.token > token, "a new holder has an old token")
            if entry.holder is not None:
                self.tokens[namespace, position] = (entry.token, entry.holder)


class History:
    """Writes records that mostly fit, and then spoils some of them, all out of one seed."""

    def __init__(self, ledger, seed: int) -> None:
        self.ledger, self.rng = ledger, Random(seed)
        self.highest_epoch = 0

    def steps(self, count: int) -> Iterator[tuple[Record, int]]:
        for number in range(count):
            record = self.next_record(number)
            home = self.ledger.table.partition_of(self.namespace_of(record))
            yield record, home if self.rng.random() > 0.03 else self.rng.randrange(self.ledger.table.partitions)

    def namespace_of(self, record: Record) -> str:
        names = [record.namespace, *(s.bundle.namespace for s in record.subjects), self.rng.choice(NAMESPACES)]
        return next(name for name in names if name)

    def next_record(self, number: int) -> Record:
        chance = self.rng.random()
        if self.ledger.log and chance < 0.1:
            return self.rng.choice(self.ledger.log[-12:])[2]
        makers = [
            (0.102, self.retire),
            (0.12, self.agreeing),
            (0.16, self.lead),
            (0.24, self.namespace),
            (0.34, self.reshape),
        ]
        maker = next((maker for below, maker in makers if chance < below), self.step)
        record = msgspec.structs.replace(maker(), id=f"r{number}", at_ms=1_000 * number)
        return self.spoil(record) if self.rng.random() < 0.3 else record

    def lead(self) -> Record:
        epoch = self.highest_epoch + self.rng.choice((0, 1, 1))
        self.highest_epoch = max(epoch, self.highest_epoch)
        root = self.rng.choice(("", "root-1", "root-1", "root-2"))
        seen = self.ledger.table.agreed(self.rng.randrange(self.ledger.table.partitions)).revision
        return Record("", Action.LEAD, self.rng.choice(BROKERS), Role.LEADER, epoch, root=root, seen_agreement=seen)

    def agreeing(self) -> Record:
        """Mostly the end of a replacement, where one has begun: else nothing else would ever count again."""
        home = self.rng.randrange(self.ledger.table.partitions)
        agreed = self.ledger.table.agreed(home)
        action = self.rng.choice((Action.AGREE, Action.AGREE, Action.AMEND))
        word = agreed.following or Agreement(self.rng.choice(("root-1", "root-2")), 2.0, 0.05, 0.1, 1)
        role = self.rng.choice((Role.ADMIN, Role.ADMIN, Role.BROKER))
        return Record("", action, self.rng.choice(BROKERS), role, agreement=word, seen_agreement=agreed.revision)

    def retire(self) -> Record:
        return Record("", Action.RETIRE, self.rng.choice(BROKERS), self.rng.choice(list(Role)), moved_to="elsewhere")

    def namespace(self) -> Record:
        name = self.rng.choice(NAMESPACES)
        known = self.ledger.table.namespace(name)
        fits = Action.DELETE_NAMESPACE if known and known.exists else Action.CREATE_NAMESPACE
        action = self.rng.choice((*[fits] * 6, Action.CREATE_NAMESPACE, Action.DELETE_NAMESPACE))
        cuts = self.cuts(0, FULL_UPPER)
        seen = known.revision if known else NEVER
        admin = self.rng.choice(BROKERS)
        if action is Action.CREATE_NAMESPACE:
            edges = (0, *cuts, FULL_UPPER)
            return Record("", action, admin, Role.ADMIN, namespace=name, seen_namespace=seen, boundaries=edges)
        latest = known.latest if known else NEVER
        return Record("", action, admin, Role.ADMIN, namespace=name, seen_namespace=seen, seen_latest=latest)

    def cuts(self, lo: int, hi: int) -> tuple[int, ...]:
        inside = [p for p in POSITIONS if lo < p < hi]
        return tuple(sorted(self.rng.sample(inside, min(len(inside), self.rng.choice((0, 1, 1, 2, 3))))))

    def reshape(self) -> Record:
        entries = [e for e in sorted(self.ledger.table, key=lambda e: e.bundle) if e.holder is not None]
        if not entries:
            return self.namespace()
        if self.rng.random() < 0.5:
            return self.about(self.neighbours(entries), Action.MERGE, Who.HOLDER)
        parent = self.rng.choice([e for e in entries if e.state in (State.ASSIGNED, State.SPLITTING)] or entries)
        record = self.about([parent], Action.CREATE, Who.HOLDER)
        return msgspec.structs.replace(record, boundaries=self.cuts(parent.bundle.lo, parent.bundle.hi))

    def neighbours(self, entries: list[Ownership]) -> list[Ownership]:
        """Two that may be merged, most of the time."""
        pairs = list(itertools.pairwise(entries))
        fit = [(a, b) for a, b in pairs if a.holder == b.holder and a.state is b.state is State.ASSIGNED]
        chosen = fit if fit and self.rng.random() < 0.8 else pairs
        return list(self.rng.choice(chosen)) if chosen else entries

    def step(self) -> Record:
        entries = sorted(self.ledger.table, key=lambda e: e.bundle)
        if not entries:
            return self.namespace()
        chosen = self.rng.sample(entries, min(len(entries), self.rng.choice((1, 1, 1, 3))))
        rows = [row for row in TABLE if row.state is chosen[0].state]
        planned = [row for row in rows if row.action is not Action.REVOKE]
        row = self.rng.choice(rows if self.rng.random() < 0.3 else planned)
        return self.about(chosen, row.action, self.rng.choice(sorted(row.by)))

    def about(self, entries: list[Ownership], action: Action, who: Who) -> Record:
        partition = self.ledger.table.partition_of(entries[0].bundle.namespace)
        lead = self.ledger.table.lead(partition)
        actors = {Who.HOLDER: entries[0].holder, Who.TARGET: entries[0].target, Who.LEADER: lead.leader}
        role = {Who.LEADER: Role.LEADER, Who.ADMIN: Role.ADMIN}.get(who, Role.BROKER)
        actor = actors.get(who) or self.rng.choice(BROKERS)
        subjects = tuple(Subject(e.bundle, e.revision, self.rng.choice((None, b"x"))) for e in entries)
        to = self.rng.choice((None, *BROKERS, *BROKERS))
        record = Record("", action, actor, role, lead.epoch if role is Role.LEADER else 0, subjects, to)
        return self.with_cuts(record) if action is Action.SPLIT else record

    def with_cuts(self, split: Record) -> Record:
        parent = split.subjects[0].bundle
        boundaries = self.cuts(parent.lo, parent.hi) if self.rng.random() < 0.5 else ()
        algorithm, parts = self.rng.choice((("", 0), ("by-load", 0), ("evenly", 3)))
        return msgspec.structs.replace(
            split, subjects=split.subjects[:1], boundaries=boundaries, algorithm=algorithm, parts=parts
        )

    def spoil(self, record: Record) -> Record:
        broker = self.rng.choice(BROKERS)
        change = self.rng.choice(
            [
                {"actor": broker},
                {"actor": BrokerId(record.actor.name, 3 - min(record.actor.incarnation, 2))},
                {"role": self.rng.choice(list(Role))},
                {"role": Role.LEADER, "epoch": self.rng.randint(0, self.highest_epoch + 1)},
                {"to": self.rng.choice((None, *BROKERS))},
                {"seen_namespace": max(NEVER, record.seen_namespace - self.rng.randint(1, 9))},
                {"seen_latest": max(NEVER, record.seen_latest - self.rng.randint(1, 9))},
                {"boundaries": tuple(self.rng.sample(POSITIONS, 3))},
                {"namespace": self.rng.choice((None, *NAMESPACES))},
                {
                    "subjects": tuple(
                        msgspec.structs.replace(s, seen=max(NEVER, s.seen - self.rng.randint(-1, 4)))
                        for s in record.subjects
                    )
                },
                {"subjects": record.subjects[::-1]},
                {"action": self.rng.choice(list(Action)), "cluster": "north"},
            ]
        )
        return msgspec.structs.replace(record, **change)


def but_for_incarnations(folded: table.OwnershipTable) -> list[PartitionState]:
    """All that a refused record must leave alone: everything but offsets and the incarnations that any record shows."""
    cuts = (folded.cut(partition) for partition in range(folded.partitions))
    return [msgspec.structs.replace(cut, next_offset=0, incarnations=()) for cut in cuts]


def audit(ledger, seed: int, steps: int) -> None:
    """Play a history under the auditor. Raises Violation, or whatever the table itself raises."""
    auditor = Auditor()
    for record, home in History(ledger, seed).steps(steps):
        before = but_for_incarnations(ledger.table)
        entries_before = [tuple(namespace.entries) for cut in before for namespace in cut.namespaces]
        verdict = ledger.replay(record, home)
        entries_cut = [tuple(namespace.entries) for cut in before for namespace in cut.namespaces]
        promise(entries_cut == entries_before, "a later record changed a snapshot that was cut")
        if isinstance(verdict, Change):
            promise(all(ledger.table.partition_of(t.bundle.namespace) == home for t in verdict.transitions), "strayed")
            auditor.see(verdict)
        else:
            promise(before == but_for_incarnations(ledger.table), "a refused record changed something")
        agree(ledger.table, auditor)
    ledger.table.check_invariants()


def agree(folded: table.OwnershipTable, auditor: Auditor) -> None:
    """The table's own reading methods tell what the auditor's plain dictionary tells."""
    plain = auditor.entries
    promise({e.bundle: e for e in folded} == plain, "the entries are not what the changes said")
    promise(all(folded.get(b) == plain.get(b) for b in auditor.ever), "a bundle is found that is gone, or is not found")
    for broker in BROKERS:
        held = {b for b, e in plain.items() if e.holder == broker}
        promise(set(folded.held_by(broker)) == held, "the index by holder lies")
        promise(folded.count_held_by(broker) == len(held), "the count by holder lies")
        homes = {folded.partition_of(bundle.namespace) for bundle in held}
        promise(folded.partitions_held_by(broker) == homes, "the index by partition lies")
    promise(set(folded.holders()) == {e.holder for e in plain.values() if e.holder}, "the list of holders lies")
    for state in State:
        those = {b for b, e in plain.items() if e.state is state}
        promise(set(folded.in_state(state)) == those, "the index by state lies")
        promise(folded.count_by_state()[state] == len(those), "the count by state lies")
    promise(len(folded) == len(plain), "the count of bundles lies")
    in_flight = {b: e for b, e in plain.items() if e.state in IN_FLIGHT}
    promise({e.bundle: e for e in folded.in_flight()} == in_flight, "a bundle in flight was lost")
    for namespace in NAMESPACES:
        known = folded.namespace(namespace)
        listed = known.bundles if known else ()
        promise(
            listed == tuple(sorted(b for b in plain if b.namespace == namespace)), "the namespace lists other bundles"
        )
