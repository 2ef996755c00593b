"""What a kind of change must be able to do so that the leader can run, watch and undo plans of it.

Each act may be tried again, also by another leader after the first one died in the middle: it finds out from the thing
itself what is done already. All of them raise LogUnavailable where the log does not answer: then it is tried again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

import msgspec

from loadmanager.leader.plans.model import PieceOutcome, Plan
from loadmanager.leader.plans.table import PlanAction

T = TypeVar("T")


class Obstacle(msgspec.Struct, frozen=True):
    """Why advice cannot be begun. `action` REFUSE or SUPERSEDE ends it; None: it waits."""

    action: PlanAction | None
    reason: str


class Done(msgspec.Struct, frozen=True):
    """All of it is done; with what became of each piece, where it was applied."""

    detail: str
    outcomes: tuple[PieceOutcome, ...] = ()


class Waits(msgspec.Struct, frozen=True):
    """Not yet: look again."""

    reason: str


class Lost(msgspec.Struct, frozen=True):
    """It cannot be done, and what had been done of it is undone; `action` REFUSE or SUPERSEDE."""

    action: PlanAction
    reason: str


class Applier(Protocol):
    """One kind of change."""

    def obstacle(self, plan: Plan) -> Obstacle | None:
        """What stands against beginning now, by what is known here."""
        ...

    def noted(self, plan: Plan) -> Mapping[str, object]:
        """Fields of the plan that are written when it begins: how everything is now, which undoing goes by."""
        ...

    async def apply(self, plan: Plan) -> Done | Waits | Lost:
        """Do it, or what is left to do."""
        ...

    def changed_since(self, plan: Plan) -> str:
        """Who has changed since then what was applied; empty if nobody has."""
        ...

    async def undo(self, plan: Plan) -> Done | Waits:
        """Undo what nobody else has changed since; the detail says what was left, and why."""
        ...


def advised(plan: Plan, kind: type[T]) -> T:
    """The change that the plan's advice is about."""
    assert plan.advice is not None, "only advice changes settings and splits"
    assert isinstance(plan.advice.change, kind)
    return plan.advice.change
