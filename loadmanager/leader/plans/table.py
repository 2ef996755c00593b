"""THE TABLE OF PLANS: which steps are legal for a plan, in which state, by whom. Pure.

Theory of operation. A plan is proposed by an operator, by the leader if the setting `balancing_review` is on, or by a
job of the load history, whose advice it then carries. It is approved. Then an operator runs it, or the leader if it has
advice. The leader makes its changes and records how it ended. A promised effect is measured, and undone if it did harm.

Each step is a compare-and-set on the plan's document, so if two act at once, one learns what the other did. Each act
is a compare-and-set on the changed object (a setting's version, a bundle's revision), so a new leader can safely repeat
it. A leader keeps nothing about a plan in memory that the next leader would miss. Invariants:
docs/decisions/0031-one-life-of-a-plan.md.

`docs/plans.md` shows these rows; a test fails when it does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from loadmanager.errors import Conflict
from loadmanager.leader.plans.plan import MoveStatus, PieceOutcome, Plan, PlanState, Step


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
    WITHDRAW = "withdraw"
    SUPERSEDE = "supersede"
    REFUSE = "refuse"
    KEEP = "keep"
    HARM = "harm"


class By(StrEnum):
    """The author of an action."""

    OPERATOR = "operator"
    LEADER = "leader"


class Facts(msgspec.Struct, frozen=True):
    """The input of guards: the present outcome of each piece, and the time."""

    outcomes: tuple[PieceOutcome, ...]
    now_ms: int

    def count(self, *status: MoveStatus) -> int:
        """How many pieces have one of these statuses."""
        return sum(outcome.status in status for outcome in self.outcomes)


Guard = Callable[[Plan, Facts], bool]


def something_is_left(plan: Plan, facts: Facts) -> bool:
    """A bundle of it is still where the plan found it."""
    return facts.count(MoveStatus.WAITING) > 0


def an_operator_may_run_it(plan: Plan, facts: Facts) -> bool:
    """It is not advice (the leader runs that by itself). A bundle of it is still where the plan found it."""
    return plan.advice is None and something_is_left(plan, facts)


def it_is_advice(plan: Plan, facts: Facts) -> bool:
    """It is advice."""
    return plan.advice is not None


def it_is_out_of_date(plan: Plan, facts: Facts) -> bool:
    """No bundle of it is where the plan found it, or it is an hour old; of advice: its time is over."""
    return not something_is_left(plan, facts) or facts.now_ms >= plan.until_ms


def it_makes_moves(plan: Plan, facts: Facts) -> bool:
    """It makes moves."""
    return bool(plan.moves)


def its_effect_is_promised(plan: Plan, facts: Facts) -> bool:
    """It is advice, each piece is over, and at least one was done."""
    return plan.advice is not None and _all_settled(facts) and facts.count(MoveStatus.DONE) > 0


def all_went_well(plan: Plan, facts: Facts) -> bool:
    """Each move is over, at least one was made, and none failed."""
    return _all_settled(facts) and facts.count(MoveStatus.FAILED) == 0 < facts.count(MoveStatus.DONE)


def something_went_wrong(plan: Plan, facts: Facts) -> bool:
    """Each move is over, and one failed (except in advice) or none was made."""
    return _all_settled(facts) and not all_went_well(plan, facts) and not its_effect_is_promised(plan, facts)


def nothing_is_under_way(plan: Plan, facts: Facts) -> bool:
    """What had begun is over, and its results are not recorded yet."""
    return bool(plan.moves) and not plan.outcomes and facts.count(MoveStatus.UNDER_WAY) == 0


def everything_holds(plan: Plan, facts: Facts) -> bool:
    """Each bundle that the plan moved is where it put it."""
    moved = [now for then, now in zip(plan.outcomes, facts.outcomes, strict=False) if then.status is MoveStatus.DONE]
    return bool(moved) and all(outcome.status is MoveStatus.DONE for outcome in moved)


def something_was_done(plan: Plan, facts: Facts) -> bool:
    """Something of the plan was done."""
    return any(outcome.status is MoveStatus.DONE for outcome in plan.outcomes)


def something_can_go_back(plan: Plan, facts: Facts) -> bool:
    """Something of the plan was done, and not only unloads to whatever broker a lookup chose."""
    made = plan.pairs(plan.outcomes) if plan.outcomes else ()
    known = not plan.moves or any(
        then.status is MoveStatus.DONE and move.destination is not None for move, then in made
    )
    return known and something_was_done(plan, facts)


_OF_THE_PLAN_ALONE = (something_was_done, something_can_go_back)
"""Guards that ask for no present facts."""


def _all_settled(facts: Facts) -> bool:
    return all(outcome.status.settled for outcome in facts.outcomes)


class PlanRow(msgspec.Struct, frozen=True):
    """One legal step; of the rows for a state, action and actor the first whose guard holds counts.

    The leader checks `only_if` itself, besides the guard.
    """

    state: PlanState
    action: PlanAction
    by: By
    next: PlanState
    why: str
    guard: Guard | None = None
    only_if: str = ""

    @property
    def condition(self) -> str:
        """The condition in words."""
        guard = "" if self.guard is None else (self.guard.__doc__ or "").strip().rstrip(".")
        return "; ".join(part for part in (guard, self.only_if) if part)


_S, _A, _OP, _L = PlanState, PlanAction, By.OPERATOR, By.LEADER
_OUTDATED = "its subject has changed since its data, or newer advice has the same subject"

PLAN_TABLE: tuple[PlanRow, ...] = (
    PlanRow(_S.PROPOSED, _A.APPROVE, _OP, _S.APPROVED, "it may run", something_is_left),
    PlanRow(_S.PROPOSED, _A.REJECT, _OP, _S.REJECTED, "it may not run"),
    PlanRow(
        _S.PROPOSED, _A.RUN, _L, _S.RUNNING, "the cluster follows advice by itself", it_is_advice,
        "`advice_apply` is on, it makes no moves or `balancing_review` is off, and no other advice is under way",
    ),
    PlanRow(_S.APPROVED, _A.RUN, _OP, _S.RUNNING, "the leader begins its moves", an_operator_may_run_it),
    PlanRow(
        _S.APPROVED, _A.RUN, _L, _S.RUNNING, "written before anything is changed", it_is_advice,
        "no other advice is under way",
    ),
    PlanRow(_S.APPROVED, _A.REJECT, _OP, _S.REJECTED, "it may not after all", it_is_advice),
    PlanRow(_S.APPROVED, _A.CANCEL, _OP, _S.CANCELLED, "it does not run after all"),
    *(
        row
        for state in (_S.PROPOSED, _S.APPROVED)
        for row in (
            PlanRow(state, _A.EXPIRE, _L, _S.EXPIRED, "it was not run in time", it_is_out_of_date),
            PlanRow(state, _A.SUPERSEDE, _L, _S.SUPERSEDED, "newer data or advice counts", it_is_advice, _OUTDATED),
            PlanRow(state, _A.REFUSE, _L, _S.REFUSED, "it must not run", it_is_advice, "it is out of bounds"),
        )
    ),
    PlanRow(_S.RUNNING, _A.FINISH, _L, _S.MEASURING, "its effect shows from now on", its_effect_is_promised),
    PlanRow(_S.RUNNING, _A.FINISH, _L, _S.DONE, "its moves are made", all_went_well),
    PlanRow(_S.RUNNING, _A.FAIL, _L, _S.FAILED, "it is over, and not as planned", something_went_wrong),
    PlanRow(_S.RUNNING, _A.CANCEL, _OP, _S.CANCELLED, "moves under way arrive, no others begin", it_makes_moves),
    PlanRow(
        _S.RUNNING, _A.SUPERSEDE, _L, _S.SUPERSEDED, "others changed it first; its steps are undone", it_is_advice,
        "its subject has changed meanwhile",
    ),
    PlanRow(
        _S.RUNNING, _A.REFUSE, _L, _S.REFUSED, "it cannot be done; its steps are undone", it_is_advice,
        "it was not accepted",
    ),
    PlanRow(_S.MEASURING, _A.KEEP, _L, _S.DONE, "it did no harm", None, "the time is over, after rounds enough"),
    PlanRow(_S.MEASURING, _A.HARM, _L, _S.UNDOING, "it did harm", None, "it is worse by more than the bound"),
    PlanRow(
        _S.MEASURING, _A.SUPERSEDE, _L, _S.SUPERSEDED, "its effect cannot be measured any more", None,
        "its changes were changed again",
    ),
    *(
        row
        for state in (_S.DONE, _S.VERIFIED)
        for row in (
            PlanRow(state, _A.VERIFY, _OP, _S.VERIFIED, "its changes hold", everything_holds),
            PlanRow(state, _A.VERIFY, _OP, _S.DONE, "checked: bundles have moved on"),
        )
    ),
    PlanRow(_S.FAILED, _A.VERIFY, _OP, _S.FAILED, "checked: it stays failed"),
    PlanRow(_S.CANCELLED, _A.SETTLE, _L, _S.CANCELLED, "its results are known", nothing_is_under_way),
    PlanRow(_S.CANCELLED, _A.VERIFY, _OP, _S.CANCELLED, "checked", something_was_done),
    *(
        PlanRow(state, _A.UNDO, _L, _S.UNDONE, "another plan has taken it back", something_can_go_back)
        for state in (_S.DONE, _S.VERIFIED, _S.FAILED, _S.CANCELLED)
    ),
    *(PlanRow(state, _A.WITHDRAW, _OP, _S.UNDOING, "an operator withdraws it") for state in (_S.RUNNING, _S.MEASURING)),
    *(
        PlanRow(state, _A.WITHDRAW, _OP, _S.UNDOING, "an operator withdraws it", something_can_go_back)
        for state in (_S.DONE, _S.VERIFIED, _S.FAILED, _S.CANCELLED)
    ),
    PlanRow(_S.UNDOING, _A.SETTLE, _L, _S.UNDOING, "its results are known", nothing_is_under_way),
    PlanRow(_S.UNDOING, _A.UNDO, _L, _S.UNDONE, "what was not changed again is as before"),
)  # fmt: skip

OPEN = frozenset({_S.PROPOSED, _S.APPROVED, _S.RUNNING})
"""States in which a plan may still move something."""
UNDECIDED = frozenset({_S.PROPOSED, _S.APPROVED})
UNDER_WAY = frozenset({_S.RUNNING, _S.MEASURING, _S.UNDOING})
"""At most one plan with advice may be in these states."""
OVER = frozenset(PlanState) - UNDECIDED - UNDER_WAY
"""Nothing more happens to the plan without an action."""

_ENDS = frozenset({_A.FINISH, _A.FAIL, _A.SETTLE})
UNDOABLE = frozenset(row.state for row in PLAN_TABLE if row.action is _A.UNDO) - {_S.UNDOING}


def advance(plan: Plan, action: PlanAction, by: By, step: Step, facts: Facts) -> Plan:
    """The plan after a legal step. Raises Conflict, which says what may be done instead.

    A leader's step that ends the run records the outcome of each piece.
    """
    row = _row(plan, action, by, facts)
    outcomes = facts.outcomes if action in _ENDS else plan.outcomes
    return msgspec.structs.replace(plan, state=row.next, steps=(*plan.steps, step), outcomes=outcomes)


def allowed(state: PlanState, by: By) -> list[str]:
    """The actions of this actor on a plan in this state."""
    return sorted({row.action.value for row in PLAN_TABLE if row.state is state and row.by is by})


def offered(plan: Plan) -> list[str]:
    """What an operator may do with this plan: its steps, and `undo`, which proposes a plan that reverses it."""
    actions = [action for action in allowed(plan.state, By.OPERATOR) if _may(plan, action, By.OPERATOR)]
    actions += ["undo"] if plan.state in UNDOABLE and _may(plan, PlanAction.UNDO, By.LEADER) else []
    never = {"reject"} if plan.advice is None and plan.state is _S.APPROVED else set[str]()
    if plan.advice is not None:
        never |= {"run"}
    if plan.advice is not None and not plan.moves:
        never |= {"verify", "undo"} | ({"cancel"} if plan.state is _S.RUNNING else set[str]())
    return [action for action in actions if action not in never]


def _may(plan: Plan, action: str, by: By) -> bool:
    """Whether the plan by itself allows the step; the present facts may still forbid it."""
    rows = [row for row in PLAN_TABLE if (row.state, row.action, row.by) == (plan.state, action, by)]
    return any(
        row.guard is None or row.guard not in _OF_THE_PLAN_ALONE or row.guard(plan, Facts((), 0)) for row in rows
    )


def _row(plan: Plan, action: PlanAction, by: By, facts: Facts) -> PlanRow:
    candidates = [row for row in PLAN_TABLE if (row.state, row.action, row.by) == (plan.state, action, by)]
    if not candidates:
        may = ", ".join(offered(plan) if by is By.OPERATOR else allowed(plan.state, by)) or "nothing"
        raise Conflict(f"plan {plan.id} is {plan.state}: the {by} cannot {action} it; possible: {may}")
    for row in candidates:
        if row.guard is None or row.guard(plan, facts):
            return row
    unmet = " ".join((row.guard.__doc__ or "").strip() for row in candidates if row.guard is not None)
    moves = f" Its moves: {summary(facts.outcomes)}." if facts.outcomes else ""
    raise Conflict(f"plan {plan.id} is {plan.state}, and {action} needs: {unmet}{moves}")


def summary(outcomes: Sequence[PieceOutcome]) -> str:
    """The outcomes in words: "3 done, 1 failed"."""
    counts = Counter(outcome.status for outcome in outcomes)
    return ", ".join(f"{counts[status]} {status}" for status in MoveStatus if counts[status]) or "it has no moves"
