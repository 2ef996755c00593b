"""Moves of a running plan that only make sense together: all of them, or none."""

from __future__ import annotations

import pytest

from loadmanager.leader.plans.plan import MoveStatus, PieceOutcome, Plan, PlanKind, PlannedMove, PlanState
from loadmanager.leader.plans.proposals import as_move
from loadmanager.leader.plans.table import Facts
from loadmanager.leader.rebalancing.limits import Rule
from loadmanager.leader.rebalancing.plan_runner import whole_groups
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

A, B = BrokerId("a:1", 1), BrokerId("b:1", 1)
GROUPS = (0, 4, 4, 5)
PLAN = Plan(
    "p1",
    PlanKind.BALANCE,
    PlanState.RUNNING,
    0,
    "ann",
    tuple(PlannedMove(Bundle("t/n", n, n + 1), A, B, 5, group=group) for n, group in enumerate(GROUPS)),
)


def look(other: MoveStatus, *, ready: tuple[int, ...] = (0, 1, 3)) -> tuple[list[int], list[int], list[int]]:
    """What begins, is refused and waits, when the third move (of the second's group) has become `other`."""
    outcomes = [PieceOutcome(MoveStatus.WAITING)] * len(PLAN.moves)
    outcomes[2] = PieceOutcome(other, "because")
    ready_moves = [as_move(PLAN, PLAN.moves[place]) for place in ready]
    moves, refused, held = whole_groups(PLAN, Facts(tuple(outcomes), 0), ready_moves)
    assert all("t/n/0x00000002_0x00000003" in why for why in refused.values())
    assert {each.rule for each in held} <= {Rule.GROUP}
    return [m.bundle.lo for m in moves], [b.lo for b in refused], [h.move.bundle.lo for h in held]


@pytest.mark.parametrize("became", [MoveStatus.SKIPPED, MoveStatus.FAILED])
def test_half_of_a_swap_is_not_made_when_the_other_half_will_not_be(became: MoveStatus):
    assert look(became) == ([0, 3], [1], [])


def test_half_of_a_swap_waits_while_the_other_half_cannot_begin():
    assert look(MoveStatus.WAITING) == ([0, 3], [], [1])


@pytest.mark.parametrize("became", [MoveStatus.UNDER_WAY, MoveStatus.DONE])
def test_what_is_half_done_is_done(became: MoveStatus):
    assert look(became) == ([0, 1, 3], [], [])


def test_a_whole_group_begins():
    assert look(MoveStatus.WAITING, ready=(0, 1, 2, 3)) == ([0, 1, 2, 3], [], [])
