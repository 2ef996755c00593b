"""The table of plans: every state with every action by everybody, and each guard."""

from __future__ import annotations

import itertools

import pytest

from loadmanager.errors import Conflict
from loadmanager.leader.rebalancing.plan_model import Became, Outcome, Plan, PlanKind, PlannedMove, PlanState, Step
from loadmanager.leader.rebalancing.plans import (
    OPEN,
    PLAN_TABLE,
    PROPOSAL_LIFE_MS,
    UNDOABLE,
    By,
    Facts,
    PlanAction,
    advance,
    allowed,
)
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

A, B = BrokerId("a:1", 1), BrokerId("b:1", 1)
S, P, L, OP = PlanState, PlanAction, By.LEADER, By.OPERATOR
NOW_MS = 1_000
DONE, WAITING, UNDER_WAY = Outcome(Became.DONE), Outcome(Became.WAITING), Outcome(Became.UNDER_WAY)
SKIPPED, FAILED = Outcome(Became.SKIPPED, "elsewhere"), Outcome(Became.FAILED, "called off")


def plan(state: PlanState, *outcomes: Outcome) -> Plan:
    moves = tuple(PlannedMove(Bundle("t/n", n, n + 1), A, B, 5) for n in range(2))
    return Plan("p1", PlanKind.BALANCE, state, 0, "ann", moves, outcomes=outcomes)


def facts(*outcomes: Outcome, now_ms: int = NOW_MS) -> Facts:
    return Facts(outcomes, now_ms)


def step(action: PlanAction) -> Step:
    return Step(action.value, NOW_MS, "ann")


def after(before: Plan, action: PlanAction, by: By, found: Facts) -> PlanState | None:
    """The state after the step, None if it is refused."""
    try:
        return advance(before, action, by, step(action), found).state
    except Conflict:
        return None


LEGAL = {
    # what is left to do, and what was done: enough for every guard that can hold at all
    (S.PROPOSED, P.APPROVE, OP): (plan(S.PROPOSED), facts(WAITING, SKIPPED), S.APPROVED),
    (S.PROPOSED, P.REJECT, OP): (plan(S.PROPOSED), facts(WAITING, WAITING), S.REJECTED),
    (S.PROPOSED, P.EXPIRE, L): (plan(S.PROPOSED), facts(SKIPPED, SKIPPED), S.EXPIRED),
    (S.APPROVED, P.RUN, OP): (plan(S.APPROVED), facts(WAITING, SKIPPED), S.RUNNING),
    (S.APPROVED, P.CANCEL, OP): (plan(S.APPROVED), facts(WAITING, WAITING), S.CANCELLED),
    (S.APPROVED, P.EXPIRE, L): (plan(S.APPROVED), facts(SKIPPED, SKIPPED), S.EXPIRED),
    (S.RUNNING, P.FINISH, L): (plan(S.RUNNING), facts(DONE, SKIPPED), S.DONE),
    (S.RUNNING, P.FAIL, L): (plan(S.RUNNING), facts(DONE, FAILED), S.FAILED),
    (S.RUNNING, P.CANCEL, OP): (plan(S.RUNNING), facts(UNDER_WAY, WAITING), S.CANCELLED),
    (S.CANCELLED, P.SETTLE, L): (plan(S.CANCELLED), facts(DONE, WAITING), S.CANCELLED),
    (S.CANCELLED, P.VERIFY, OP): (plan(S.CANCELLED, DONE, WAITING), facts(DONE, WAITING), S.CANCELLED),
    (S.DONE, P.VERIFY, OP): (plan(S.DONE, DONE, DONE), facts(DONE, DONE), S.VERIFIED),
    (S.VERIFIED, P.VERIFY, OP): (plan(S.VERIFIED, DONE, DONE), facts(DONE, DONE), S.VERIFIED),
    (S.FAILED, P.VERIFY, OP): (plan(S.FAILED, DONE, FAILED), facts(DONE, FAILED), S.FAILED),
    (S.DONE, P.UNDO, L): (plan(S.DONE, DONE, DONE), facts(), S.UNDONE),
    (S.VERIFIED, P.UNDO, L): (plan(S.VERIFIED, DONE, DONE), facts(), S.UNDONE),
    (S.FAILED, P.UNDO, L): (plan(S.FAILED, DONE, FAILED), facts(), S.UNDONE),
    (S.CANCELLED, P.UNDO, L): (plan(S.CANCELLED, DONE, WAITING), facts(), S.UNDONE),
}
"""What is possible at all, by a plan and facts for which it is; and where it leads."""


@pytest.mark.parametrize(("state", "action", "by"), list(itertools.product(PlanState, PlanAction, By)))
def test_every_state_with_every_action_by_everybody(state: PlanState, action: PlanAction, by: By):
    if (state, action, by) in LEGAL:
        before, found, expected = LEGAL[state, action, by]
        assert after(before, action, by, found) is expected
        return
    for outcomes in itertools.product([DONE, WAITING, UNDER_WAY, SKIPPED, FAILED], repeat=2):
        for kept in ((), outcomes):
            assert after(plan(state, *kept), action, by, facts(*outcomes, now_ms=10**12)) is None


def test_the_table_has_no_row_that_the_cases_above_leave_out():
    assert {(row.state, row.action, row.by) for row in PLAN_TABLE} == LEGAL.keys()


REFUSED = [
    (plan(S.PROPOSED), P.APPROVE, OP, facts(SKIPPED, SKIPPED), "something_is_left"),
    (plan(S.PROPOSED), P.EXPIRE, L, facts(WAITING, SKIPPED), "it_is_out_of_date"),
    (plan(S.APPROVED), P.RUN, OP, facts(SKIPPED, SKIPPED), "something_is_left"),
    (plan(S.RUNNING), P.FINISH, L, facts(DONE, UNDER_WAY), "under way"),
    (plan(S.RUNNING), P.FINISH, L, facts(DONE, WAITING), "waiting"),
    (plan(S.RUNNING), P.FINISH, L, facts(DONE, FAILED), "one failed"),
    (plan(S.RUNNING), P.FINISH, L, facts(SKIPPED, SKIPPED), "none was made"),
    (plan(S.RUNNING), P.FAIL, L, facts(FAILED, WAITING), "not over"),
    (plan(S.RUNNING), P.FAIL, L, facts(DONE, SKIPPED), "it went well"),
    (plan(S.CANCELLED), P.SETTLE, L, facts(DONE, UNDER_WAY), "under way"),
    (plan(S.CANCELLED, DONE, WAITING), P.SETTLE, L, facts(DONE, WAITING), "written down already"),
    (plan(S.CANCELLED), P.VERIFY, OP, facts(DONE, DONE), "not settled"),
    (plan(S.CANCELLED, SKIPPED, WAITING), P.UNDO, L, facts(), "nothing was moved"),
    (plan(S.FAILED, FAILED, SKIPPED), P.UNDO, L, facts(), "nothing was moved"),
]


@pytest.mark.parametrize(("before", "action", "by", "found", "why"), REFUSED, ids=[case[-1] for case in REFUSED])
def test_a_step_whose_guard_does_not_hold_is_refused(before: Plan, action: PlanAction, by: By, found: Facts, why: str):
    assert after(before, action, by, found) is None


def test_a_proposal_is_out_of_date_after_an_hour_although_everything_is_where_it_was():
    found = facts(WAITING, WAITING, now_ms=PROPOSAL_LIFE_MS)
    assert after(plan(S.PROPOSED), P.EXPIRE, L, found) is S.EXPIRED
    assert after(plan(S.PROPOSED), P.EXPIRE, L, facts(WAITING, WAITING, now_ms=PROPOSAL_LIFE_MS - 1)) is None


def test_verifying_a_plan_whose_bundles_moved_on_leaves_it_done():
    assert after(plan(S.DONE, DONE, DONE), P.VERIFY, OP, facts(DONE, SKIPPED)) is S.DONE
    assert after(plan(S.VERIFIED, DONE, DONE), P.VERIFY, OP, facts(SKIPPED, SKIPPED)) is S.DONE


def test_what_a_plan_never_moved_does_not_have_to_hold():
    assert after(plan(S.DONE, DONE, SKIPPED), P.VERIFY, OP, facts(DONE, SKIPPED)) is S.VERIFIED


def test_the_end_of_a_run_is_written_down_and_so_is_each_step():
    ended = advance(plan(S.RUNNING), P.FAIL, L, step(P.FAIL), facts(DONE, FAILED))
    assert ended.outcomes == (DONE, FAILED)
    assert [each.action for each in ended.steps] == ["fail"]


def test_a_cancelled_plan_waits_for_what_is_under_way_before_it_is_written_down():
    cancelled = advance(plan(S.RUNNING), P.CANCEL, OP, step(P.CANCEL), facts(UNDER_WAY, WAITING))
    assert cancelled.outcomes == ()
    settled = advance(cancelled, P.SETTLE, L, step(P.SETTLE), facts(DONE, WAITING))
    assert settled.outcomes == (DONE, WAITING)


def test_a_refusal_says_what_can_be_done_instead():
    with pytest.raises(
        Conflict, match="plan p1 is proposed: there is no run for the operator; possible is approve, reject"
    ):
        advance(plan(S.PROPOSED), P.RUN, OP, step(P.RUN), facts(WAITING))
    with pytest.raises(Conflict, match=r"A bundle of it is still where the plan found it\. 2 skipped"):
        advance(plan(S.APPROVED), P.RUN, OP, step(P.RUN), facts(SKIPPED, SKIPPED))


def test_from_an_open_state_there_is_always_a_way_out_for_an_operator():
    assert all(allowed(state, By.OPERATOR) for state in OPEN)


def test_only_what_has_run_can_be_undone():
    assert {S.DONE, S.VERIFIED, S.FAILED, S.CANCELLED} == UNDOABLE
