"""Settings of the cluster, changed as advised, each by compare-and-set on its document's version.

What became of a change says the history of the setting: the version behind the one that the leader had noted is ours,
or somebody was faster.
"""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum

from loadmanager.errors import Conflict, Invalid
from loadmanager.leader.advice.bounds import NUMBERS, as_number, check_steps
from loadmanager.leader.advice.hands.contract import Done, Lost, Obstacle, Waits
from loadmanager.leader.advice.model import Advice, ChangeSettings, Held, Progress, Scalar, SettingChange
from loadmanager.leader.advice.states import Action
from loadmanager.settings.documents.model import ABSENT, Version
from loadmanager.settings.dynamic.live import LiveSettings
from loadmanager.settings.dynamic.model import ClusterValue

REASON = 200
"""Characters of the advice's reason that go into the setting's history."""


class Found(StrEnum):
    """What the history of a setting says of a change."""

    UNTOUCHED = "untouched"
    OURS = "ours"
    UNDONE = "undone"
    MOVED_ON = "moved on"


class SettingsHand:
    """See `contract.Hand`."""

    def __init__(self, live: LiveSettings) -> None:
        self._live = live

    def obstacle(self, advice: Advice) -> Obstacle | None:
        """Out of bounds, or not what it was in the data."""
        for change in _changes(advice):
            moved_on = self._moved_on(change, advice.provenance.data_to_ms)
            if moved_on:
                return Obstacle(Action.SUPERSEDE, moved_on)
        try:
            check_steps(_of(advice), self._live.current)
        except Invalid as error:
            return Obstacle(Action.REFUSE, str(error))
        return None

    def _moved_on(self, change: SettingChange, data_to_ms: int) -> str:
        last = self._live.version(change.name)
        if last is not None and last.at_ms > data_to_ms:
            return f"{change.name} was changed after the data of this advice, by {last.author or 'somebody'}"
        present: Scalar = getattr(self._live.current, change.name)
        if not _same(change.name, present, change.was):
            return f"{change.name} is {present}, and was {change.was} in the data of this advice"
        return ""

    def before(self, advice: Advice) -> tuple[Held, ...]:
        """The cluster's value of each setting, and its version."""
        return tuple(self._held(change.name) for change in _changes(advice))

    def _held(self, name: str) -> Held:
        last = self._live.version(name)
        if last is None or last.value is None:
            return Held(name, ABSENT if last is None else last.version)
        return Held(name, last.version, last.value.value, is_set=True)

    async def apply(self, advice: Advice, progress: Progress) -> Done | Waits | Lost:
        """One after the other; where one cannot be changed those before it are undone."""
        at_ms = 0
        for change, held in zip(_changes(advice), progress.before, strict=True):
            try:
                found, last = await self._change(advice, change, held)
            except Invalid as error:
                await self.undo(advice, progress)
                return Lost(Action.REFUSE, str(error))
            if found is not Found.OURS or last is None:
                await self.undo(advice, progress)
                return Lost(Action.SUPERSEDE, f"{change.name} was changed meanwhile{_by(last)}")
            at_ms = max(at_ms, last.at_ms)
        return Done(at_ms, ", ".join(f"{each.name} = {each.to}" for each in _changes(advice)))

    async def _change(
        self, advice: Advice, change: SettingChange, held: Held
    ) -> tuple[Found, Version[ClusterValue] | None]:
        found, last = self._found(advice.id, change, held)
        if found is Found.UNTOUCHED:
            reason = f"advice {advice.id}: {advice.reason}"[:REASON]
            with suppress(Conflict):  # somebody was faster: who, says the history, which has been read now
                await self._live.set(
                    change.name, change.to, seen=held.version, author=_author(advice.id), reason=reason
                )
            found, last = self._found(advice.id, change, held)
        return found, last

    def changed_since(self, advice: Advice, progress: Progress) -> str:
        """The first setting that somebody else has changed since."""
        for change, held in zip(_changes(advice), progress.before, strict=True):
            found, last = self._found(advice.id, change, held)
            if found is Found.MOVED_ON:
                return f"{change.name} was changed since{_by(last)}"
        return ""

    async def undo(self, advice: Advice, progress: Progress) -> Done | Waits:
        """The last one first; settings that are not as advised any more stay as they are."""
        told: list[str] = []
        at_ms = 0
        for change, held in reversed(list(zip(_changes(advice), progress.before, strict=True))):
            found, last = await self._take_back(advice, change, held)
            match found:
                case Found.UNDONE:
                    told.append(f"{change.name} is {_shown(held)} again")
                    at_ms = max(at_ms, 0 if last is None else last.at_ms)
                case Found.UNTOUCHED:
                    told.append(f"{change.name} had not been changed")
                case Found.OURS:
                    told.append(f"{change.name} stays {change.to}: {_shown(held)} is not allowed any more")
                case Found.MOVED_ON:
                    told.append(f"{change.name} stays as it is: it was changed since{_by(last)}")
        return Done(at_ms, "; ".join(told))

    async def _take_back(
        self, advice: Advice, change: SettingChange, held: Held
    ) -> tuple[Found, Version[ClusterValue] | None]:
        found, last = self._found(advice.id, change, held)
        if found is Found.OURS and last is not None:
            author, reason = _undoer(advice.id), f"advice {advice.id} is withdrawn"
            with suppress(Conflict, Invalid):  # changed at this moment, or out of bounds by now: the history says which
                if held.is_set:
                    await self._live.set(change.name, held.value, seen=last.version, author=author, reason=reason)
                else:
                    await self._live.unset(change.name, seen=last.version, author=author, reason=reason)
            found, last = self._found(advice.id, change, held)
        return found, last

    def _found(self, advice_id: str, change: SettingChange, held: Held) -> tuple[Found, Version[ClusterValue] | None]:
        """What has become of a setting since the leader noted how it was, and the version that says so."""
        since = [version for version in self._live.history(change.name) if version.version > held.version]
        if not since:
            return Found.UNTOUCHED, None
        first, last = since[0], since[-1]
        if first.author != _author(advice_id) or first.value is None:
            return Found.MOVED_ON, first
        if last is first:
            return Found.OURS, first
        if len(since) == 2 and last.author == _undoer(advice_id):
            return Found.UNDONE, last
        return Found.MOVED_ON, last


def _of(advice: Advice) -> ChangeSettings:
    assert isinstance(advice.change, ChangeSettings)
    return advice.change


def _changes(advice: Advice) -> tuple[SettingChange, ...]:
    return _of(advice).changes


def _author(advice_id: str) -> str:
    return f"advice {advice_id}"


def _undoer(advice_id: str) -> str:
    return f"advice {advice_id}, withdrawn"


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
