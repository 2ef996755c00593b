"""Settings of the cluster, changed as advised, each by compare-and-set on its document's version.

The history of the setting shows the result. The version after the one that the leader noted is either ours, or somebody
else was faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum

from loadmanager.errors import Conflict, Invalid
from loadmanager.leader.advice.appliers.contract import Done, Lost, Obstacle, Waits, advised
from loadmanager.leader.plans.advice import ChangeSettings, Held, Scalar, SettingChange
from loadmanager.leader.plans.bounds import NUMBERS, as_number, check_steps
from loadmanager.leader.plans.model import MoveStatus, PieceOutcome, Plan
from loadmanager.leader.plans.store import REASON
from loadmanager.leader.plans.table import PlanAction
from loadmanager.settings.documents.model import ABSENT, Version
from loadmanager.settings.dynamic.live import LiveSettings
from loadmanager.settings.dynamic.model import ClusterValue


class Found(StrEnum):
    """The state of a change, by the history of its setting."""

    UNTOUCHED = "untouched"
    OURS = "ours"
    UNDONE = "undone"
    MOVED_ON = "moved on"


class SettingsApplier:
    """See `contract.Applier`."""

    def __init__(self, live: LiveSettings) -> None:
        self._live = live

    def obstacle(self, plan: Plan) -> Obstacle | None:
        """An obstacle if the change is out of bounds, or the setting has another value than in the data."""
        assert plan.advice is not None
        for change in _changes(plan):
            moved_on = self._moved_on(change, plan.advice.provenance.data_to_ms)
            if moved_on:
                return Obstacle(PlanAction.SUPERSEDE, moved_on)
        try:
            check_steps(advised(plan, ChangeSettings), self._live.current)
        except Invalid as error:
            return Obstacle(PlanAction.REFUSE, str(error))
        return None

    def _moved_on(self, change: SettingChange, data_to_ms: int) -> str:
        last = self._live.version(change.name)
        if last is not None and last.at_ms > data_to_ms:
            return f"{change.name} was changed after the data of this advice, by {last.author or 'somebody'}"
        present: Scalar = getattr(self._live.current, change.name)
        if not _same(change.name, present, change.was):
            return f"{change.name} is {present}, and was {change.was} in the data of this advice"
        return ""

    def noted(self, plan: Plan) -> Mapping[str, object]:
        """The cluster's value of each setting, and its version."""
        return {"held": tuple(self._held(change.name) for change in _changes(plan))}

    def _held(self, name: str) -> Held:
        last = self._live.version(name)
        if last is None or last.value is None:
            return Held(name, ABSENT if last is None else last.version)
        return Held(name, last.version, last.value.value, is_set=True)

    async def apply(self, plan: Plan) -> Done | Waits | Lost:
        """Change one setting after the other; if one cannot be changed, undo those before it."""
        changes = _changes(plan)
        for change, held in zip(changes, plan.held, strict=True):
            try:
                found, last = await self._change(plan, change, held)
            except Invalid as error:
                await self.undo(plan)
                return Lost(PlanAction.REFUSE, str(error))
            if found is not Found.OURS:
                await self.undo(plan)
                return Lost(PlanAction.SUPERSEDE, f"{change.name} was changed meanwhile{_by(last)}")
        detail = ", ".join(f"{each.name} = {each.to}" for each in changes)
        return Done(detail, (PieceOutcome(MoveStatus.DONE),) * len(changes))

    async def _change(
        self, plan: Plan, change: SettingChange, held: Held
    ) -> tuple[Found, Version[ClusterValue] | None]:
        found, last = self._found(plan.id, change, held)
        if found is Found.UNTOUCHED:
            reason = f"advice {plan.id}: {plan.reason}"[:REASON]
            with suppress(Conflict):  # somebody was faster: the history, which is read again now, says who
                await self._live.set(change.name, change.to, seen=held.version, author=_author(plan.id), reason=reason)
            found, last = self._found(plan.id, change, held)
        return found, last

    def changed_since(self, plan: Plan) -> str:
        """The first setting that somebody else has changed since."""
        for change, held in zip(_changes(plan), plan.held, strict=True):
            found, last = self._found(plan.id, change, held)
            if found is Found.MOVED_ON:
                return f"{change.name} was changed since{_by(last)}"
        return ""

    async def undo(self, plan: Plan) -> Done | Waits:
        """Undo the last change first; a setting that somebody changed since stays as it is."""
        told: list[str] = []
        for change, held in reversed(list(zip(_changes(plan), plan.held, strict=True))):
            found, last = await self._take_back(plan, change, held)
            match found:
                case Found.UNDONE:
                    told.append(f"{change.name} is {_shown(held)} again")
                case Found.UNTOUCHED:
                    told.append(f"{change.name} had not been changed")
                case Found.OURS:
                    told.append(f"{change.name} stays {change.to}: {_shown(held)} is not allowed any more")
                case Found.MOVED_ON:
                    told.append(f"{change.name} stays as it is: it was changed since{_by(last)}")
        return Done("; ".join(told))

    async def _take_back(
        self, plan: Plan, change: SettingChange, held: Held
    ) -> tuple[Found, Version[ClusterValue] | None]:
        found, last = self._found(plan.id, change, held)
        if found is Found.OURS and last is not None:
            author, reason = _undoer(plan.id), f"plan {plan.id} is undone"
            with suppress(Conflict, Invalid):  # changed at this moment, or out of bounds now: the history says which
                if held.is_set:
                    await self._live.set(change.name, held.value, seen=last.version, author=author, reason=reason)
                else:
                    await self._live.unset(change.name, seen=last.version, author=author, reason=reason)
            found, last = self._found(plan.id, change, held)
        return found, last

    def _found(self, plan_id: str, change: SettingChange, held: Held) -> tuple[Found, Version[ClusterValue] | None]:
        """The state of a setting since the leader noted it, and the version that shows it."""
        since = [version for version in self._live.history(change.name) if version.version > held.version]
        if not since:
            return Found.UNTOUCHED, None
        first, last = since[0], since[-1]
        if first.author != _author(plan_id) or first.value is None:
            return Found.MOVED_ON, first
        if last is first:
            return Found.OURS, first
        if len(since) == 2 and last.author == _undoer(plan_id):
            return Found.UNDONE, last
        return Found.MOVED_ON, last


def _changes(plan: Plan) -> tuple[SettingChange, ...]:
    return advised(plan, ChangeSettings).changes


def _author(plan_id: str) -> str:
    return f"plan {plan_id}"


def _undoer(plan_id: str) -> str:
    return f"plan {plan_id}, undone"


def _same(name: str, one: Scalar, other: Scalar) -> bool:
    if name not in NUMBERS:
        return one == other
    try:
        return as_number(name, one) == as_number(name, other)
    except Invalid:
        return False


def _by(version: Version[ClusterValue] | None) -> str:
    return "" if version is None else f" by {version.author or 'somebody'}"


def _shown(held: Held) -> str:
    return str(held.value) if held.is_set else "each broker's own"
