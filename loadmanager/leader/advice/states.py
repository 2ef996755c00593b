"""THE TABLE OF ADVICE: what may become of advice, by whose doing. Pure.

Theory of operation. A job proposes; administrators approve, reject, or have it withdrawn; the leader does everything
else. The leader writes *before* it acts (applying, withdrawing) and after; each act is a compare-and-set on the thing
itself (the version of a setting's document, the id of a plan, the range of a bundle), so a leader that takes over acts
again without harm, and one that was deposed in the middle changes nothing any more. Invariants:

* nothing is applied that nobody approved, unless the setting `advice_apply` is on;
* nothing is applied out of bounds, nor after somebody changed what it is about since the data that it is made of;
* one piece of advice at a time is applied and measured: the effects of two could not be told apart;
* what is applied is measured, and withdrawn if it did harm, whichever leader that falls to;
* it is undone only where nobody else has changed it since.

`docs/advice.md` shows these rows; a test fails when it does not.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from loadmanager.errors import Conflict
from loadmanager.leader.advice.model import Progress, Review, State, Verdict


class Action(StrEnum):
    """What is done to advice."""

    APPROVE = "approve"
    REJECT = "reject"
    WITHDRAW = "withdraw"
    EXPIRE = "expire"
    SUPERSEDE = "supersede"
    REFUSE = "refuse"
    APPLY = "apply"
    APPLIED = "applied"
    KEEP = "keep"
    HARMED = "harmed"
    UNDONE = "undone"


class By(StrEnum):
    """Who acts."""

    ADMIN = "admin"
    LEADER = "leader"


class Row(msgspec.Struct, frozen=True):
    """One legal step; `only_if` in words, as `judging.py` sees to it."""

    state: State
    action: Action
    by: By
    next: State
    why: str
    only_if: str = ""


_S, _A = State, Action

TABLE: tuple[Row, ...] = (
    Row(_S.PROPOSED, _A.APPROVE, By.ADMIN, _S.APPROVED, "it may be applied"),
    Row(_S.PROPOSED, _A.REJECT, By.ADMIN, _S.REJECTED, "it may not"),
    Row(_S.PROPOSED, _A.APPLY, By.LEADER, _S.APPLYING, "the cluster follows advice by itself", "advice_apply is on"),
    Row(_S.APPROVED, _A.REJECT, By.ADMIN, _S.REJECTED, "it may not after all"),
    Row(
        _S.APPROVED, _A.APPLY, By.LEADER, _S.APPLYING, "written before anything is changed", "nothing else is measured"
    ),
    *(
        row
        for state in (_S.PROPOSED, _S.APPROVED)
        for row in (
            Row(state, _A.EXPIRE, By.LEADER, _S.EXPIRED, "nobody applied it in time", "its time is over"),
            Row(
                state,
                _A.SUPERSEDE,
                By.LEADER,
                _S.SUPERSEDED,
                "a newer wish counts",
                "what it is about has changed since its data, or newer advice is about the same",
            ),
            Row(state, _A.REFUSE, By.LEADER, _S.REFUSED, "it must not be applied", "it is out of bounds"),
        )
    ),
    Row(_S.APPLYING, _A.APPLIED, By.LEADER, _S.MEASURING, "its effect shows from now on", "all of it is done"),
    Row(
        _S.APPLYING,
        _A.SUPERSEDE,
        By.LEADER,
        _S.SUPERSEDED,
        "somebody was faster; what was done of it is undone",
        "what it is about has changed meanwhile",
    ),
    Row(_S.APPLYING, _A.REFUSE, By.LEADER, _S.REFUSED, "it cannot be applied; undone likewise", "it was not accepted"),
    Row(_S.MEASURING, _A.KEEP, By.LEADER, _S.KEPT, "it did no harm", "the time is over, with rounds enough"),
    Row(_S.MEASURING, _A.HARMED, By.LEADER, _S.WITHDRAWING, "it did harm", "it is worse by more than the bound"),
    Row(
        _S.MEASURING,
        _A.SUPERSEDE,
        By.LEADER,
        _S.SUPERSEDED,
        "its effect cannot be told any more",
        "somebody has changed what it changed",
    ),
    *(
        row
        for state in (_S.APPLYING, _S.MEASURING, _S.KEPT)
        for row in (
            Row(state, _A.WITHDRAW, By.ADMIN, _S.WITHDRAWING, "somebody wants it back"),
            Row(state, _A.REJECT, By.ADMIN, _S.WITHDRAWING, "a rejection that came too late"),
        )
    ),
    Row(_S.WITHDRAWING, _A.UNDONE, By.LEADER, _S.WITHDRAWN, "what nobody else has changed is as it was"),
)

UNDER_WAY = frozenset({_S.APPLYING, _S.MEASURING, _S.WITHDRAWING})
"""Of all advice one may be in these states."""
OVER = frozenset(State) - {row.state for row in TABLE} | {_S.KEPT}
"""The leader has nothing more to do about it."""
UNDECIDED = frozenset({_S.PROPOSED, _S.APPROVED})

_NEXT = {(row.state, row.action, row.by): row.next for row in TABLE}


def state_of(progress: Progress | None, review: Review | None) -> State:
    """Where advice is: what the leader has written, and what an administrator has said about that."""
    state = State.PROPOSED if progress is None else progress.state
    if review is None:
        return state
    return _NEXT.get((state, Action(review.verdict), By.ADMIN), state)


def offered(state: State) -> list[str]:
    """What an administrator may say about advice in this state; a rejection that comes too late is not offered."""
    actions = {row.action for row in TABLE if row.state is state and row.by is By.ADMIN}
    return sorted(action.value for action in actions if action is not _A.REJECT or state in UNDECIDED)


def check_verdict(advice_id: str, state: State, verdict: Verdict) -> None:
    """Raises Conflict, which says what may be done instead."""
    if verdict not in (may := offered(state)):
        possible = ", ".join(may) or "nothing"
        raise Conflict(f"advice {advice_id} is {state}: there is no {verdict}; possible is {possible}")


def after(state: State, action: Action) -> State:
    """The state after a step of the leader. Raises KeyError for one that is illegal: a bug of ours."""
    return _NEXT[state, action, By.LEADER]
