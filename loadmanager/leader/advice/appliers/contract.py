"""The contract of a kind of change: the leader can begin, watch and undo plans of it.

Each act can be repeated, also by another leader after the first one died halfway: the applier reads from the changed
object itself what is done already. Each act raises LogUnavailable if the log does not answer; the leader then retries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

import msgspec

from loadmanager.leader.plans.model import PieceOutcome, Plan
from loadmanager.leader.plans.table import PlanAction

T = TypeVar("T")


class Obstacle(msgspec.Struct, frozen=True):
    """Why advice cannot begin. `action` REFUSE or SUPERSEDE ends the plan; with None the plan waits."""

    action: PlanAction | None
    reason: str


class Done(msgspec.Struct, frozen=True):
    """The change is complete; `outcomes` has the result of each piece, if it was applied."""

    detail: str
    outcomes: tuple[PieceOutcome, ...] = ()


class Waits(msgspec.Struct, frozen=True):
    """Not complete yet: look again."""

    reason: str


class Lost(msgspec.Struct, frozen=True):
    """The change failed and its completed part is undone; `action` is REFUSE or SUPERSEDE."""

    action: PlanAction
    reason: str


class Applier(Protocol):
    """One kind of change."""

    def obstacle(self, plan: Plan) -> Obstacle | None:
        """What prevents the plan from beginning now, as far as this broker knows."""
        ...

    def noted(self, plan: Plan) -> Mapping[str, object]:
        """Fields to write into the plan when it begins: the present state, which `undo` restores."""
        ...

    async def apply(self, plan: Plan) -> Done | Waits | Lost:
        """Apply the change, or the rest of it."""
        ...

    def changed_since(self, plan: Plan) -> str:
        """Who changed the same thing after it was applied; empty if nobody did."""
        ...

    async def undo(self, plan: Plan) -> Done | Waits:
        """Undo what nobody else has changed since; the detail says what stays changed, and why."""
        ...


def advised(plan: Plan, kind: type[T]) -> T:
    """The change that the plan's advice proposes."""
    assert plan.advice is not None, "only advice changes settings and splits"
    assert isinstance(plan.advice.change, kind)
    return plan.advice.change
