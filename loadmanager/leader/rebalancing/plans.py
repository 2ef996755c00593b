"""THE TABLE OF PLANS: what may be done to a plan, in which state, by whom. Pure.

Theory of operation. A plan is proposed by an operator, or by the leader where the setting `balancing_review` is on.
Somebody approves it, somebody lets it run; the leader makes its moves under the usual limits and says how it ended.
Each change is a compare-and-set on the plan's document, so of two operators who act at once one is told what the other
did. A leader keeps nothing of a plan in memory that the next one would miss.
`docs/plans.md` shows these rows; a test fails when it does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from loadmanager.errors import Conflict
from loadmanager.leader.rebalancing.plan_model import Became, Outcome, Plan, PlanState, Step

PROPOSAL_LIFE_MS = 3_600_000
"""The loads by which a plan was made tell little of the cluster after that."""


class PlanAction(StrEnum):
    """What is done to a plan."""

    APPROVE = "approve"
    REJECT = "reject"
    RUN = "run"
    CANCEL = "cancel"
    EXPIRE = "expire"
    FINISH = "finish"
    FAIL = "fail"
    SETTLE = "settle"
    VERIFY = "verify"
    UNDO = "undo"


class By(StrEnum):
    """Who acts."""

    OPERATOR = "operator"
    LEADER = "leader"


class Facts(msgspec.Struct, frozen=True):
    """What guards look at: what has become of each move by now, and the time."""

    outcomes: tuple[Outcome, ...]
    now_ms: int

    def count(self, *became: Became) -> int:
        """How many moves became one of these."""
        return sum(outcome.became in became for outcome in self.outcomes)


Guard = Callable[[Plan, Facts], bool]


def something_is_left(plan: Plan, facts: Facts) -> bool:
    """A bundle of it is still where the plan found it."""
    return facts.count(Became.WAITING) > 0


def it_is_out_of_date(plan: Plan, facts: Facts) -> bool:
    """No bundle of it is where the plan found it, or it is an hour old."""
    return not something_is_left(plan, facts) or facts.now_ms - plan.proposed_ms >= PROPOSAL_LIFE_MS


def all_went_well(plan: Plan, facts: Facts) -> bool:
    """Each move is over, at least one was made, and none failed."""
    return _all_settled(facts) and facts.count(Became.FAILED) == 0 < facts.count(Became.DONE)


def something_went_wrong(plan: Plan, facts: Facts) -> bool:
    """Each move is over, and one failed or none was made."""
    return _all_settled(facts) and not all_went_well(plan, facts)


def nothing_is_under_way(plan: Plan, facts: Facts) -> bool:
    """What had begun is over, and it is not written down yet what became of it."""
    return not plan.outcomes and facts.count(Became.UNDER_WAY) == 0


def everything_holds(plan: Plan, facts: Facts) -> bool:
    """Each bundle that the plan moved is where it put it."""
    moved = [now for then, now in zip(plan.outcomes, facts.outcomes, strict=False) if then.became is Became.DONE]
    return bool(moved) and all(outcome.became is Became.DONE for outcome in moved)


def something_was_moved(plan: Plan, facts: Facts) -> bool:
    """The plan moved a bundle."""
    return any(outcome.became is Became.DONE for outcome in plan.outcomes)


def _all_settled(facts: Facts) -> bool:
    return all(outcome.became.settled for outcome in facts.outcomes)


class PlanRow(msgspec.Struct, frozen=True):
    """One legal step. Of the rows for a state and action the first counts whose guard holds."""

    state: PlanState
    action: PlanAction
    by: By
    next: PlanState
    why: str
    guard: Guard | None = None


_S, _A = PlanState, PlanAction

PLAN_TABLE: tuple[PlanRow, ...] = (
    PlanRow(_S.PROPOSED, _A.APPROVE, By.OPERATOR, _S.APPROVED, "it may run", something_is_left),
    PlanRow(_S.PROPOSED, _A.REJECT, By.OPERATOR, _S.REJECTED, "it may not"),
    PlanRow(_S.PROPOSED, _A.EXPIRE, By.LEADER, _S.EXPIRED, "nobody decided in time", it_is_out_of_date),
    PlanRow(_S.APPROVED, _A.RUN, By.OPERATOR, _S.RUNNING, "the leader begins its moves", something_is_left),
    PlanRow(_S.APPROVED, _A.CANCEL, By.OPERATOR, _S.CANCELLED, "it does not run after all"),
    PlanRow(_S.APPROVED, _A.EXPIRE, By.LEADER, _S.EXPIRED, "nobody let it run in time", it_is_out_of_date),
    PlanRow(_S.RUNNING, _A.FINISH, By.LEADER, _S.DONE, "its moves are made", all_went_well),
    PlanRow(_S.RUNNING, _A.FAIL, By.LEADER, _S.FAILED, "it is over, and not as planned", something_went_wrong),
    PlanRow(_S.RUNNING, _A.CANCEL, By.OPERATOR, _S.CANCELLED, "what is under way arrives, the rest stays"),
    *(
        row
        for state in (_S.DONE, _S.VERIFIED)
        for row in (
            PlanRow(state, _A.VERIFY, By.OPERATOR, _S.VERIFIED, "what it did holds", everything_holds),
            PlanRow(state, _A.VERIFY, By.OPERATOR, _S.DONE, "looked at: bundles have moved on"),
        )
    ),
    PlanRow(_S.FAILED, _A.VERIFY, By.OPERATOR, _S.FAILED, "looked at: it stays a failure"),
    PlanRow(_S.CANCELLED, _A.SETTLE, By.LEADER, _S.CANCELLED, "it is known what it did", nothing_is_under_way),
    PlanRow(_S.CANCELLED, _A.VERIFY, By.OPERATOR, _S.CANCELLED, "looked at", something_was_moved),
    *(
        PlanRow(state, _A.UNDO, By.LEADER, _S.UNDONE, "another plan has taken it back", something_was_moved)
        for state in (_S.DONE, _S.VERIFIED, _S.FAILED, _S.CANCELLED)
    ),
)

OPEN = frozenset({_S.PROPOSED, _S.APPROVED, _S.RUNNING})
"""States from which something may still be moved."""

_ENDS = frozenset({_A.FINISH, _A.FAIL, _A.SETTLE})
UNDOABLE = frozenset(row.state for row in PLAN_TABLE if row.action is _A.UNDO)


def advance(plan: Plan, action: PlanAction, by: By, step: Step, facts: Facts) -> Plan:
    """The plan after a legal step. Raises Conflict, which says what may be done instead.

    A leader's step that ends the run writes down what became of each move.
    """
    row = _row(plan, action, by, facts)
    outcomes = facts.outcomes if action in _ENDS else plan.outcomes
    return msgspec.structs.replace(plan, state=row.next, steps=(*plan.steps, step), outcomes=outcomes)


def allowed(state: PlanState, by: By) -> list[str]:
    """What such a one may do to a plan in this state."""
    return sorted({row.action.value for row in PLAN_TABLE if row.state is state and row.by is by})


def _row(plan: Plan, action: PlanAction, by: By, facts: Facts) -> PlanRow:
    candidates = [row for row in PLAN_TABLE if (row.state, row.action, row.by) == (plan.state, action, by)]
    if not candidates:
        may = ", ".join(allowed(plan.state, by)) or "nothing"
        raise Conflict(f"plan {plan.id} is {plan.state}: there is no {action} for the {by}; possible is {may}")
    for row in candidates:
        if row.guard is None or row.guard(plan, facts):
            return row
    unmet = "; ".join((row.guard.__doc__ or "").strip() for row in candidates if row.guard is not None)
    raise Conflict(f"plan {plan.id} is {plan.state}, and {action} wants: {unmet} {summary(facts.outcomes)}")


def summary(outcomes: Sequence[Outcome]) -> str:
    """In words: "3 done, 1 failed"."""
    counts = Counter(outcome.became for outcome in outcomes)
    return ", ".join(f"{counts[became]} {became}" for became in Became if counts[became]) or "it has no moves"
