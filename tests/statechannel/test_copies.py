"""Only the first copy of a record can take effect: who was told a refusal may write something else in its place.

A log may hold a record twice (an append whose answer was lost is repeated), and later than it was written. What a
record says its author saw, its author did see: offsets that were in the log, an epoch whose `lead` was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statechannel.law import table
from statechannel.law.bundle import FULL_UPPER, even_boundaries
from statechannel.law.record import Action, BrokerId, Record, Role, Subject
from statechannel.law.transitions import TABLE, State
from statechannel.law.verdict import Change, Refusal

from .auditor import History, Violation, promise
from .conftest import Ledger
from .mutation import mutate

NAME = "shop/orders"


class Copies:
    """Replays records, and watches what later copies of them do."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.first: dict[tuple[Record, int], Change | Refusal] = {}

    def replay(self, record: Record, home: int) -> Change | Refusal:
        """Raises Violation where a copy does what its first one did not."""
        before = self.ledger.table.digest(home)
        verdict = self.ledger.replay(record, home)
        first = self.first.get((record, home))
        if first is None:
            self.first[record, home] = verdict
            return verdict
        what = f"a late copy of {record.action} {{}}: the first one was judged {first}"
        promise(self.ledger.table.digest(home) == before, what.format("took effect"))
        promise(isinstance(first, Change) or isinstance(verdict, Refusal), what.format("is accepted"))
        return verdict


# --- any history


def saw_what_it_says(record: Record, home: int, known: table.OwnershipTable) -> bool:
    """Whether an author could have written this by what stands in the log now."""
    of_subjects = (subject.seen for subject in record.subjects)
    seen = [record.seen_namespace, record.seen_latest, record.seen_agreement, *of_subjects]
    led = record.role is not Role.LEADER or record.action is Action.LEAD or record.epoch <= known.lead(home).epoch
    return led and max(seen) < known.next_offset(home)


def arrivals(ledger: Ledger, seed: int, steps: int) -> Iterator[tuple[Record, int]]:
    """Records in the order in which they get into the log: late, twice, never."""
    history, under_way = History(ledger, seed), list[tuple[Record, int]]()
    for record, home in history.steps(steps):
        if saw_what_it_says(record, home, ledger.table):
            under_way.append((record, home))
        while under_way and history.rng.random() < 0.6:
            number = history.rng.randrange(len(under_way))
            yield under_way[number]
            if history.rng.random() < 0.5:
                del under_way[number]


def disturbed(ledger: Ledger, seed: int, steps: int) -> Copies:
    """A history of which every copy was watched. Raises Violation."""
    copies = Copies(ledger)
    for record, home in arrivals(ledger, seed, steps):
        copies.replay(record, home)
    return copies


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 200))
def test_whatever_the_order_no_later_copy_takes_effect(seed: int, steps: int):
    disturbed(Ledger(partitions=2), seed, steps)


def test_the_histories_have_late_copies_of_all_that_can_be_refused():
    refused = set[Action]()
    for seed in range(60):
        ledger = Ledger(partitions=2)
        copies = Copies(ledger)
        for record, home in arrivals(ledger, seed, 120):
            first = copies.first.get((record, home))
            copies.replay(record, home)
            if isinstance(first, Refusal):
                refused.add(record.action)
    assert refused >= set(Action) - {Action.GENESIS, Action.NOOP}


LAW = table.OwnershipTable
MUTANTS = {
    "the bundles' revisions do not count": (LAW, "_judge_one", "subject.seen != entry.revision", "False"),
    "nor where they are reshaped": (table, "_present", "subject.seen != entry.revision", "False"),
    "a delete looks at the boundaries alone": (
        table, "_delete_namespace", "record.seen_latest not in (UNSAID, known.latest)", "False",
    ),
    "a create does not look when": (table, "_create_namespace", "record.seen_namespace != ", "None is "),
    "an epoch is taken twice": (table, "take_lead", "record.epoch <=", "record.epoch <"),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_without_what_an_author_saw_a_late_copy_is_noticed(monkeypatch, mutant: str):
    mutate(monkeypatch, *MUTANTS[mutant])
    with pytest.raises(Violation, match="a late copy"):
        all(disturbed(Ledger(partitions=2), seed, 120) for seed in range(400))


# --- every action, written in every state of a bundle, once more in every state after it

LEFT = 0
Step = Callable[[Ledger], object]


def own(ledger: Ledger) -> object:
    return ledger.write(Action.OWN, ledger.bundles()[LEFT], to=ledger.A)


def by_a(action: Action) -> Step:
    return lambda ledger: ledger.write(action, ledger.bundles()[LEFT])


def by_b(action: Action) -> Step:
    return lambda ledger: ledger.write(action, ledger.bundles()[LEFT], ledger.B)


def by_leader(action: Action, to: BrokerId | None = None) -> Step:
    return lambda ledger: ledger.write(
        action, ledger.bundles()[LEFT], ledger.C, role=Role.LEADER, epoch=ledger.table.lead(0).epoch, to=to
    )


def create_children(ledger: Ledger) -> object:
    return ledger.write(Action.CREATE, ledger.bundles()[LEFT], boundaries=(7,))


def merge(ledger: Ledger) -> object:
    return ledger.write(Action.MERGE, ledger.bundles()[:2])


def lead(ledger: Ledger) -> object:
    return ledger.lead(ledger.table.lead(0).epoch + 1, ledger.C)


def delete(ledger: Ledger) -> object:
    return ledger.delete_namespace(NAME)


def create_again(ledger: Ledger) -> object:
    return ledger.create_namespace(NAME, even_boundaries(2))


TOUR: tuple[Step, ...] = (
    own, by_a(Action.RELEASE), own, by_a(Action.RETURN), by_leader(Action.TRANSFER, Ledger.B), by_a(Action.CANCEL),
    by_a(Action.SPLIT), create_children, merge, by_leader(Action.TRANSFER, Ledger.B), by_b(Action.READY),
    by_a(Action.RELEASE), by_b(Action.RETURN), lead, by_leader(Action.REVOKE), by_leader(Action.RELEASE, Ledger.A),
    by_a(Action.RETURN), by_a(Action.UNLOAD), by_a(Action.RELEASE), delete, create_again,
    own, by_a(Action.RETURN),
)  # fmt: skip
"""Through every state, with new epochs, other boundaries, and the namespace gone and back."""

AUTHORS = ((Ledger.A, Role.BROKER), (Ledger.B, Role.BROKER), (Ledger.C, Role.LEADER), (Ledger.B, Role.ADMIN))


def on_the_way() -> Ledger:
    ledger = Ledger()
    ledger.lead(1, ledger.C)
    ledger.create_namespace(NAME, even_boundaries(2))
    return ledger


def written_now(ledger: Ledger, action: Action, actor: BrokerId, role: Role, to: BrokerId | None) -> Record:
    """A record that saw all there is; of both bundles where the action takes several."""
    known = ledger.table.namespace(NAME)
    assert known is not None
    alone = action in (Action.SPLIT, Action.CREATE)
    subjects = tuple(Subject(entry.bundle, entry.revision) for entry in known.entries[: 1 if alone else 2])
    of_all = action in (Action.CREATE_NAMESPACE, Action.DELETE_NAMESPACE)
    edges = (0, 5, FULL_UPPER) if action is Action.CREATE_NAMESPACE else (5,) if action is Action.CREATE else ()
    return Record(
        "copied", action, actor, role, ledger.table.lead(0).epoch, () if of_all else subjects, to, NAME,
        known.revision, edges, cluster="north", seen_latest=known.latest if action is Action.DELETE_NAMESPACE else -1,
    )  # fmt: skip


@pytest.mark.parametrize("action", Action)
def test_late_copy_of_a_record_changes_nothing_in_any_later_state(action: Action):
    for written_at in range(len(TOUR) + 1):
        for actor, role in AUTHORS:
            ledger = on_the_way()
            for step in TOUR[:written_at]:
                step(ledger)
            copies = Copies(ledger)
            record = written_now(ledger, action, actor, role, None if role is Role.ADMIN else Ledger.B)
            copies.replay(record, 0)
            for step in TOUR[written_at:]:
                copies.replay(record, 0)
                if ledger.bundles() or step is create_again:
                    step(ledger)
            copies.replay(record, 0)


def test_the_tour_passes_every_state_and_every_step():
    ledger, states, changes = on_the_way(), set[State](), list[Change]()
    for step in TOUR:
        verdict = step(ledger)
        assert isinstance(verdict, Change), verdict
        changes.append(verdict)
        states |= {entry.state for entry in ledger.table}
    assert states == set(State)
    actions = {change.record.action for change in changes}
    assert actions >= {row.action for row in TABLE} | {Action.CREATE, Action.MERGE, Action.DELETE_NAMESPACE}


# --- in words


def test_a_delete_that_was_refused_stays_refused_when_its_bundles_are_free(ledger):
    x, _ = ledger.begin()
    ledger.write(Action.OWN, x, to=ledger.A)
    assert isinstance(ledger.delete_namespace(NAME), Refusal)
    refused = ledger.log[-1][2]
    ledger.write(Action.RELEASE, x)
    late = ledger.replay(refused)
    assert isinstance(late, Refusal)
    assert (late.winner, late.bundle) == (ledger.entry(x), x)
    assert "release by a:6650#1" in late.detail
    assert isinstance(ledger.delete_namespace(NAME), Change), "one that saw the release counts"


def test_a_delete_of_an_older_format_is_judged_as_it_always_was(ledger):
    x, _ = ledger.begin()
    ledger.write(Action.OWN, x, to=ledger.A)
    assert isinstance(ledger.delete_namespace(NAME, tells_latest=False), Refusal)
    refused = ledger.log[-1][2]
    ledger.write(Action.RELEASE, x)
    assert isinstance(ledger.replay(refused), Change), "brokers of the release before this one accept it too"


def test_bundles_refused_in_a_record_that_counts_stay_refused(ledger):
    x, y = ledger.begin()
    ledger.write(Action.OWN, y, ledger.B, to=ledger.B)
    subjects = (Subject(x, ledger.revision(x)), Subject(y, ledger.revision(y)))
    many = Record("many", Action.OWN, ledger.A, subjects=subjects, to=ledger.A)
    change = ledger.replay(many)
    assert [t.bundle for t in change.transitions] == [x]
    ledger.write(Action.RELEASE, y, ledger.B)
    ledger.write(Action.RELEASE, x)
    late = ledger.replay(msgspec.structs.replace(many))
    assert isinstance(late, Refusal)
    assert ledger.table.count_by_state()[State.UNASSIGNED] == 2
