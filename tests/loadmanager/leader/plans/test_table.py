"""The table of plans: every state with every action by everybody, and each guard."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec
import pytest

from loadmanager.errors import Conflict
from loadmanager.leader.plans.plan import (
    PROPOSAL_LIFE_MS,
    MoveStatus,
    PieceOutcome,
    Plan,
    PlanKind,
    PlannedMove,
    PlanState,
    Step,
)
from loadmanager.leader.plans.table import (
    OPEN,
    OVER,
    PLAN_TABLE,
    UNDOABLE,
    By,
    Facts,
    PlanAction,
    advance,
    allowed,
    it_is_advice,
    offered,
)
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from tests.loadmanager.leader.advice.advice_world import advice, tolerance

A, B = BrokerId("a:1", 1), BrokerId("b:1", 1)
S, P, L, OP = PlanState, PlanAction, By.LEADER, By.OPERATOR
NOW_MS = 1_000
DONE, WAITING, UNDER_WAY = (
    PieceOutcome(MoveStatus.DONE),
    PieceOutcome(MoveStatus.WAITING),
    PieceOutcome(MoveStatus.UNDER_WAY),
)
SKIPPED, FAILED = PieceOutcome(MoveStatus.SKIPPED, "elsewhere"), PieceOutcome(MoveStatus.FAILED, "called off")


ADVICE = advice(tolerance("default", 0.2))


def advised(state: PlanState, *outcomes: PieceOutcome) -> Plan:
    return Plan("p2", PlanKind.ADVICE, state, 0, "history advise", advice=ADVICE, outcomes=outcomes)


def plan(state: PlanState, *outcomes: PieceOutcome) -> Plan:
    moves = tuple(PlannedMove(Bundle("t/n", n, n + 1), A, B, 5) for n in range(2))
    return Plan("p1", PlanKind.BALANCE, state, 0, "ann", moves, outcomes=outcomes)


def facts(*outcomes: PieceOutcome, now_ms: int = NOW_MS) -> Facts:
    return Facts(outcomes, now_ms)


def step(action: PlanAction) -> Step:
    return Step(action.value, NOW_MS, "ann")


def after(before: Plan, action: PlanAction, by: By, found: Facts) -> PlanState | None:
    """The state after the step, None if it is refused."""
    try:
        return advance(before, action, by, step(action), found).state
    except Conflict:
        return None


LEGAL: dict[tuple[PlanState, PlanAction, By], tuple[Plan, Facts, PlanState]] = {
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
    (S.APPROVED, P.REJECT, OP): (advised(S.APPROVED), facts(WAITING), S.REJECTED),
    **{
        (state, P.WITHDRAW, OP): (plan(state, *done), facts(), S.UNDOING)
        for state, *done in (
            (S.RUNNING,),
            (S.DONE, DONE, DONE),
            (S.VERIFIED, DONE, DONE),
            (S.FAILED, DONE, FAILED),
            (S.CANCELLED, DONE, WAITING),
        )
    },
    (S.UNDOING, P.SETTLE, L): (plan(S.UNDOING), facts(DONE, WAITING), S.UNDOING),
    (S.UNDOING, P.UNDO, L): (plan(S.UNDOING, DONE, WAITING), facts(), S.UNDONE),
    # what only advice may
    (S.PROPOSED, P.RUN, L): (advised(S.PROPOSED), facts(WAITING), S.RUNNING),
    (S.APPROVED, P.RUN, L): (advised(S.APPROVED), facts(WAITING), S.RUNNING),
    **{
        (state, action, L): (advised(state), facts(WAITING), after)
        for state in (S.PROPOSED, S.APPROVED, S.RUNNING)
        for action, after in ((P.SUPERSEDE, S.SUPERSEDED), (P.REFUSE, S.REFUSED))
    },
    (S.MEASURING, P.KEEP, L): (advised(S.MEASURING, DONE), facts(DONE), S.DONE),
    (S.MEASURING, P.HARM, L): (advised(S.MEASURING, DONE), facts(DONE), S.UNDOING),
    (S.MEASURING, P.SUPERSEDE, L): (advised(S.MEASURING, DONE), facts(DONE), S.SUPERSEDED),
    (S.MEASURING, P.WITHDRAW, OP): (advised(S.MEASURING, DONE), facts(DONE), S.UNDOING),
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
    (plan(S.FAILED, FAILED, SKIPPED), P.WITHDRAW, OP, facts(), "nothing was moved"),
    (plan(S.UNDOING), P.SETTLE, L, facts(UNDER_WAY, WAITING), "under way"),
    (plan(S.APPROVED), P.RUN, L, facts(WAITING, WAITING), "no advice: the leader does not run it"),
    (plan(S.PROPOSED), P.SUPERSEDE, L, facts(WAITING, WAITING), "no advice"),
    (plan(S.RUNNING), P.REFUSE, L, facts(WAITING, WAITING), "no advice"),
    (plan(S.APPROVED), P.REJECT, OP, facts(WAITING, WAITING), "no advice: it is cancelled"),
    (advised(S.APPROVED), P.RUN, OP, facts(WAITING), "advice: the leader runs it"),
    (advised(S.RUNNING), P.CANCEL, OP, facts(WAITING), "half of its settings might stay"),
    (advised(S.RUNNING), P.FINISH, L, facts(WAITING), "nothing was done"),
    (advised(S.PROPOSED), P.EXPIRE, L, facts(WAITING, now_ms=PROPOSAL_LIFE_MS), "it lives as long as its advice"),
]


@pytest.mark.parametrize(("before", "action", "by", "found", "why"), REFUSED, ids=[case[-1] for case in REFUSED])
def test_a_step_whose_guard_does_not_hold_is_refused(before: Plan, action: PlanAction, by: By, found: Facts, why: str):
    assert after(before, action, by, found) is None


def test_proposal_expires_after_an_hour_although_nothing_moved():
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


def test_cancelled_plan_waits_for_moves_under_way():
    cancelled = advance(plan(S.RUNNING), P.CANCEL, OP, step(P.CANCEL), facts(UNDER_WAY, WAITING))
    assert cancelled.outcomes == ()
    settled = advance(cancelled, P.SETTLE, L, step(P.SETTLE), facts(DONE, WAITING))
    assert settled.outcomes == (DONE, WAITING)


def test_a_refusal_says_what_can_be_done_instead():
    with pytest.raises(Conflict, match="plan p1 is proposed: the operator cannot run it; possible: approve, reject"):
        advance(plan(S.PROPOSED), P.RUN, OP, step(P.RUN), facts(WAITING))
    with pytest.raises(Conflict, match=r"A bundle of it is still where the plan found it\. Its moves: 2 skipped"):
        advance(plan(S.APPROVED), P.RUN, OP, step(P.RUN), facts(SKIPPED, SKIPPED))


def test_from_an_open_state_there_is_always_a_way_out_for_an_operator():
    assert all(allowed(state, By.OPERATOR) for state in OPEN)


def test_run_without_any_of_its_promised_effect_has_failed():
    assert after(advised(S.RUNNING), P.FINISH, L, facts(DONE)) is S.MEASURING
    assert after(advised(S.RUNNING), P.FINISH, L, facts(DONE, FAILED)) is S.MEASURING
    assert after(advised(S.RUNNING), P.FAIL, L, facts(DONE, FAILED)) is None
    assert after(advised(S.RUNNING), P.FAIL, L, facts(SKIPPED)) is S.FAILED


def test_advice_lives_as_long_as_it_says():
    at_ms = ADVICE.expires_ms
    assert after(advised(S.APPROVED), P.EXPIRE, L, facts(WAITING, now_ms=at_ms)) is S.EXPIRED
    assert after(advised(S.APPROVED), P.EXPIRE, L, facts(WAITING, now_ms=at_ms - 1)) is None


def test_nothing_runs_that_nobody_approved_but_for_advice():
    ways = [row for row in PLAN_TABLE if row.next is S.RUNNING]
    assert {(row.state, row.by) for row in ways} == {(S.PROPOSED, L), (S.APPROVED, L), (S.APPROVED, OP)}
    assert all(row.guard is it_is_advice for row in ways if row.by is L)
    assert [row.only_if.startswith("`advice_apply` is on") for row in ways if row.state is S.PROPOSED] == [True]


def test_each_state_ends_by_the_leader_alone_unless_it_waits_for_a_person():
    leads = {state: {row.next for row in PLAN_TABLE if row.state is state and row.by is L} for state in S}
    reached = set(OVER)
    while more := {state for state in S if leads[state] & reached} - reached:
        reached |= more
    assert reached == set(S)
    assert {row.next for row in PLAN_TABLE} | {S.PROPOSED} == set(S)


@pytest.mark.parametrize("state", list(S))
@pytest.mark.parametrize("make", [plan, advised])
def test_an_operator_is_offered_steps_of_the_table_only(make: Callable[..., Plan], state: PlanState):
    steps = set(allowed(state, OP)) | {"undo"}
    assert set(offered(make(state))) <= steps
    assert make is not advised or not {"run", "verify", "undo"} & set(offered(make(state)))


def test_what_is_offered_for_advice_says_no_late_rejection():
    assert offered(advised(S.PROPOSED)) == ["approve", "reject"]
    assert offered(advised(S.APPROVED)) == ["cancel", "reject"]
    assert offered(plan(S.APPROVED)) == ["cancel", "run"]
    assert [offered(advised(state, DONE)) for state in (S.RUNNING, S.MEASURING, S.DONE)] == [["withdraw"]] * 3
    assert [offered(advised(state)) for state in (S.REJECTED, S.UNDOING, S.UNDONE, S.REFUSED)] == [[]] * 4


@pytest.mark.parametrize("state", sorted(UNDOABLE))
def test_nothing_is_offered_that_the_plans_own_outcomes_refuse(state: PlanState):
    assert offered(plan(state, DONE, SKIPPED)) == ["verify", "withdraw", "undo"]
    assert not {"undo", "withdraw"} & set(offered(plan(state, FAILED, SKIPPED)))
    given_to_nobody = plan(state, DONE, SKIPPED)
    moves = tuple(msgspec.structs.replace(move, destination=None) for move in given_to_nobody.moves)
    given_to_nobody = msgspec.structs.replace(given_to_nobody, moves=moves)
    assert offered(given_to_nobody) == ["verify"]
    for action, by in ((P.UNDO, L), (P.WITHDRAW, OP)):
        assert after(given_to_nobody, action, by, facts(DONE, SKIPPED)) is None


def test_only_what_has_run_can_be_undone():
    assert {S.DONE, S.VERIFIED, S.FAILED, S.CANCELLED} == UNDOABLE
