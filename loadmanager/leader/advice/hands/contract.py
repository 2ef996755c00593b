"""What a kind of change must be able to do so that the leader can follow advice about it.

Each act may be tried again, also by another leader after the first one died in the middle: it finds out from the thing
itself what is done already. All of them raise LogUnavailable where the log does not answer: then it is tried again.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from loadmanager.leader.advice.model import Advice, Held, Progress
from loadmanager.leader.advice.states import Action

AUTOMATIC = "advice_apply"
"""Who applies what nobody approved: the setting."""


class Obstacle(msgspec.Struct, frozen=True):
    """Why advice cannot be begun. `action` REFUSE or SUPERSEDE ends it; None: it waits."""

    action: Action | None
    reason: str


class Done(msgspec.Struct, frozen=True):
    """All of it is done; since `at_ms` on the wall clock."""

    at_ms: int
    detail: str


class Waits(msgspec.Struct, frozen=True):
    """Not yet: look again."""

    reason: str


class Lost(msgspec.Struct, frozen=True):
    """It cannot be done, and what had been done of it is undone; `action` REFUSE or SUPERSEDE."""

    action: Action
    reason: str


class Hand(Protocol):
    """One kind of change."""

    def obstacle(self, advice: Advice) -> Obstacle | None:
        """What stands against beginning now, by what is known here."""
        ...

    def before(self, advice: Advice) -> tuple[Held, ...]:
        """How everything is now that it would change: what undoing goes by."""
        ...

    async def apply(self, advice: Advice, progress: Progress) -> Done | Waits | Lost:
        """Do it, or what is left to do."""
        ...

    def changed_since(self, advice: Advice, progress: Progress) -> str:
        """Who has changed since then what was applied; empty if nobody has."""
        ...

    async def undo(self, advice: Advice, progress: Progress) -> Done | Waits:
        """Undo what nobody else has changed since; the detail says what was left, and why."""
        ...
