"""What has become of a planned move, by the ownership table alone: each state, before and after it changed hands."""

from __future__ import annotations

import pytest

from loadmanager.leader.plans.plan import (
    MoveStatus,
    PieceOutcome,
    Plan,
    PlanKind,
    PlannedMove,
    PlanState,
    Step,
    look_again,
    progress,
)
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership

A, B, C = (BrokerId(f"{name}:1", 1) for name in "abc")
B_AGAIN = BrokerId("b:1", 2)
BUNDLE = Bundle("t/n", 0, 1)
SEEN = 50
RAN = (Step("run", 0, "ann"),)


class Table(OwnershipTable):
    """A table that holds one entry."""

    def __init__(self, entry: Ownership | None) -> None:
        super().__init__(1)
        self._entry = entry

    def get(self, bundle: Bundle) -> Ownership | None:
        return self._entry


def entry(
    state: State, holder: BrokerId | None, target: BrokerId | None = None, *, revision: int = SEEN + 9, token: int = 5
) -> Ownership:
    return Ownership(BUNDLE, state, holder, target, revision, token, Action.NOOP, C)


def became(found: Ownership | None, to: BrokerId | None = B, steps: tuple[Step, ...] = RAN) -> MoveStatus:
    plan = Plan("p", PlanKind.BALANCE, PlanState.RUNNING, 0, "ann", (PlannedMove(BUNDLE, A, to, SEEN),), steps=steps)
    [outcome] = progress(plan, Table(found))
    return outcome.status


S, NEW = State, SEEN + 5
CASES = [
    ("it is where the plan found it", entry(S.ASSIGNED, A, revision=SEEN), B, MoveStatus.WAITING),
    ("on its way there", entry(S.TRANSFERRING, A, B), B, MoveStatus.UNDER_WAY),
    ("its owner has stopped", entry(S.RELEASING, A, B), B, MoveStatus.UNDER_WAY),
    ("being taken", entry(S.ASSIGNING, B, token=NEW), B, MoveStatus.UNDER_WAY),
    ("arrived", entry(S.ASSIGNED, B, token=NEW), B, MoveStatus.DONE),
    ("arrived, and being split", entry(S.SPLITTING, B, token=NEW), B, MoveStatus.DONE),
    ("arrived at the next start of the destination", entry(S.ASSIGNED, B_AGAIN, token=NEW), B, MoveStatus.DONE),
    ("arrived, and leaving again", entry(S.TRANSFERRING, B, C, token=NEW), B, MoveStatus.SKIPPED),
    ("called off", entry(S.ASSIGNED, A), B, MoveStatus.FAILED),
    ("its owner died on the way", entry(S.REVOKING, A), B, MoveStatus.UNDER_WAY),
    ("the destination died with it", entry(S.REVOKING, B, token=NEW), B, MoveStatus.UNDER_WAY),
    ("somebody sends it elsewhere", entry(S.TRANSFERRING, A, C), B, MoveStatus.SKIPPED),
    ("it went elsewhere", entry(S.ASSIGNED, C, token=NEW), B, MoveStatus.SKIPPED),
    ("it was away and came back", entry(S.ASSIGNED, A, token=NEW), B, MoveStatus.SKIPPED),
    ("declined", entry(S.UNASSIGNED, None, token=NEW), B, MoveStatus.SKIPPED),
    ("being split where it was", entry(S.SPLITTING, A), B, MoveStatus.SKIPPED),
    ("being given back", entry(S.RELEASING, A), None, MoveStatus.UNDER_WAY),
    ("given back", entry(S.UNASSIGNED, None), None, MoveStatus.DONE),
    ("given back, and taken by another", entry(S.ASSIGNED, C, token=NEW), None, MoveStatus.DONE),
    ("given back, and taken again", entry(S.ASSIGNED, A, token=NEW), None, MoveStatus.DONE),
    ("to be given back, but somebody moves it", entry(S.TRANSFERRING, A, C), None, MoveStatus.SKIPPED),
    ("gone", None, B, MoveStatus.SKIPPED),
]


@pytest.mark.parametrize(("found", "to", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_has_become_of_a_move(found: Ownership | None, to: BrokerId | None, expected: MoveStatus):
    assert became(found, to) is expected


def test_before_a_plan_runs_whatever_has_changed_is_left_alone():
    assert became(entry(State.ASSIGNED, B, token=NEW), steps=()) is MoveStatus.SKIPPED
    assert became(entry(State.TRANSFERRING, A, B), steps=()) is MoveStatus.SKIPPED
    assert became(entry(State.ASSIGNED, A, revision=SEEN), steps=()) is MoveStatus.WAITING


def test_what_the_leader_could_not_begin_has_failed_with_its_reason():
    plan = Plan("p", PlanKind.BALANCE, PlanState.RUNNING, 0, "ann", (PlannedMove(BUNDLE, A, B, SEEN),), steps=RAN)
    [outcome] = progress(plan, Table(entry(State.ASSIGNED, A, revision=SEEN)), {BUNDLE: "b:1 is full"})
    assert outcome == PieceOutcome(MoveStatus.FAILED, "b:1 is full")


def test_what_was_written_down_at_the_end_stays_whatever_happens_later():
    kept = (PieceOutcome(MoveStatus.DONE),)
    plan = Plan(
        "p", PlanKind.BALANCE, PlanState.DONE, 0, "ann", (PlannedMove(BUNDLE, A, B, SEEN),), steps=RAN, outcomes=kept
    )
    elsewhere = Table(entry(State.ASSIGNED, C, token=NEW))
    assert progress(plan, elsewhere) == kept
    [now] = look_again(plan, elsewhere)
    assert now.status is MoveStatus.SKIPPED
    assert "c:1#1" in now.detail
