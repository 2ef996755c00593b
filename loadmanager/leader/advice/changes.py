"""The kinds of change that advice may make: the leader can begin, watch and undo plans of each.

Each act can be repeated, also by another leader after the first one died halfway: the applier reads from the changed
object itself what is done already. Each act raises LogUnavailable if the log does not answer; the leader then retries.

* Settings: each is changed by compare-and-set on its document's version. The version after the one that the leader
  noted is either ours, or that of another author who came first.
* Splits: more bundles for a namespace, into equal ranges, as an administrator would; undone by merging them. A range
  can be split only once, and the namespace shows the result: it has either the bundle, or exactly its parts.
* Moves: the plan chooses sources and destinations when it begins. `leader/rebalancing/plan_runner.py` makes the moves
  under the usual limits. The plan `ID-undo` undoes them; it exists once, whichever leader makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from itertools import pairwise
from typing import Protocol, TypeVar

import msgspec

from loadmanager.channel.operations import Operations
from loadmanager.documents.fold import ABSENT, Version
from loadmanager.errors import Conflict, Invalid, NotFound, Unavailable
from loadmanager.leader.plans.advice import (
    NUMBERS,
    STEP_FACTOR,
    ChangeSettings,
    Cut,
    CutBundles,
    Held,
    MoveBundles,
    Scalar,
    SettingChange,
    as_number,
    check_steps,
)
from loadmanager.leader.plans.plan import MoveStatus, PieceOutcome, Plan, PlannedMove
from loadmanager.leader.plans.proposals import Occasion, running, undoing
from loadmanager.leader.plans.store import REASON, PlanStore
from loadmanager.leader.plans.table import OPEN, PlanAction, summary
from loadmanager.leader.rebalancing.decider import Decider
from loadmanager.model.boundaries import NoCuts, evenly
from loadmanager.settings import Settings
from loadmanager.settings.live import LiveSettings
from loadmanager.settings.overlay import ClusterValue
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State

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
        """The author of a change to the same thing after it was applied; empty if there is none."""
        ...

    async def undo(self, plan: Plan) -> Done | Waits:
        """Undo what was not changed otherwise since; the detail says what stays changed, and why."""
        ...


def advised(plan: Plan, kind: type[T]) -> T:
    """The change that the plan's advice proposes."""
    assert plan.advice is not None, "only advice changes settings and splits"
    assert isinstance(plan.advice.change, kind)
    return plan.advice.change


class Found(StrEnum):
    """The state of a change, by the history of its setting."""

    UNTOUCHED = "untouched"
    OURS = "ours"
    UNDONE = "undone"
    MOVED_ON = "moved on"


class SettingsApplier:
    """See `Applier`."""

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
            return f"{change.name} was changed after the data of this advice, by {last.author or 'an unknown author'}"
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
            with suppress(Conflict):  # another change came first: the history, which is read again now, says whose
                await self._live.set(change.name, change.to, seen=held.version, author=_author(plan.id), reason=reason)
            found, last = self._found(plan.id, change, held)
        return found, last

    def changed_since(self, plan: Plan) -> str:
        """The first setting that was changed otherwise since."""
        for change, held in zip(_changes(plan), plan.held, strict=True):
            found, last = self._found(plan.id, change, held)
            if found is Found.MOVED_ON:
                return f"{change.name} was changed since{_by(last)}"
        return ""

    async def undo(self, plan: Plan) -> Done | Waits:
        """Undo the last change first; a setting that was changed since stays as it is."""
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
    return "" if version is None else f" by {version.author or 'an unknown author'}"


def _shown(held: Held) -> str:
    return str(held.value) if held.is_set else "each broker's own"


RESHAPED = "others have split or merged it meanwhile"


class SplitsApplier:
    """See `Applier`."""

    def __init__(
        self,
        table: OwnershipTable,
        operations: Operations,
        settings: Callable[[], Settings],
    ) -> None:
        self._table = table
        self._operations = operations
        self._settings = settings

    def obstacle(self, plan: Plan) -> Obstacle | None:
        """An obstacle if the namespace has other bundles by now, or would have too many."""
        change, settings = advised(plan, CutBundles), self._settings()
        known = self._table.namespace(change.namespace)
        if known is None or not known.exists:
            return Obstacle(PlanAction.REFUSE, f"there is no namespace {change.namespace}")
        count = len(known.bundles)
        if count != change.was:
            return Obstacle(PlanAction.SUPERSEDE, f"{change.namespace} has {count} bundles, and had {change.was}")
        gone = next((cut.bundle for cut in change.cuts if self._table.get(Bundle.parse(cut.bundle)) is None), None)
        if gone is not None:
            return Obstacle(PlanAction.SUPERSEDE, f"bundle {gone} no longer exists")
        more = count + sum(cut.parts - 1 for cut in change.cuts)
        most = min(float(settings.namespace_max_bundles), count * STEP_FACTOR)
        if more > most:
            what = f"{change.namespace} would have {more} bundles instead of {count}, at most {most:.0f} are allowed"
            return Obstacle(
                PlanAction.REFUSE,
                f"out of bounds: {what} (namespace_max_bundles, and {STEP_FACTOR:g} times as many at once)",
            )
        return None

    def noted(self, plan: Plan) -> Mapping[str, object]:  # noqa: ARG002 - see the contract
        """Nothing: the bundle's range determines its parts."""
        return {}

    async def apply(self, plan: Plan) -> Done | Waits | Lost:
        """Make one split at a time; a bundle that cannot be split, or that others have reshaped, stays as it is."""
        refusals: dict[str, str] = {}
        for cut in advised(plan, CutBundles).cuts:
            bundle = Bundle.parse(cut.bundle)
            if self._table.get(bundle) is None:
                continue
            try:
                await self._operations.split(bundle, parts=cut.parts)
            except Unavailable as error:
                return Waits(str(error))
            except (Conflict, NotFound, Invalid) as error:
                refusals[cut.bundle] = str(error)
            else:
                return Waits(f"{bundle} is cut")
        cuts = advised(plan, CutBundles).cuts
        cut_up = [cut.bundle for cut in cuts if self._is_cut(cut)]
        if not cut_up:
            return Lost(PlanAction.SUPERSEDE, "; ".join(["none of its bundles was cut", *list(refusals.values())[:1]]))
        detail = "; ".join([f"cut: {', '.join(cut_up)}", *refusals.values()])
        left = {cut.bundle: PieceOutcome(MoveStatus.SKIPPED, refusals.get(cut.bundle, RESHAPED)) for cut in cuts}
        done = PieceOutcome(MoveStatus.DONE)
        return Done(detail, tuple(done if cut.bundle in cut_up else left[cut.bundle] for cut in cuts))

    def changed_since(self, plan: Plan) -> str:
        """Not empty if others have split or merged parts of every cut."""
        return "" if any(map(self._is_cut, advised(plan, CutBundles).cuts)) else "all its cuts have been changed since"

    async def undo(self, plan: Plan) -> Done | Waits:
        """Merge the parts that still have one owner; the detail names the others, which stay."""
        left: list[str] = []
        merged = 0
        for cut in filter(self._is_cut, advised(plan, CutBundles).cuts):
            try:
                await self._operations.merge(_parts(cut))
                merged += 1
            except Unavailable as error:
                return Waits(str(error))
            except (Conflict, NotFound, Invalid) as error:
                left.append(f"{cut.bundle} stays cut: {error}")
        return Done("; ".join([f"{merged} bundles are whole again", *left]))

    def _is_cut(self, cut: Cut) -> bool:
        return all(self._table.get(part) is not None for part in _parts(cut))


def _parts(cut: Cut) -> list[Bundle]:
    """The bundles that an even cut makes."""
    bundle = Bundle.parse(cut.bundle)
    cuts = evenly(bundle, cut.parts)
    edges = [bundle.lo, *(() if isinstance(cuts, NoCuts) else cuts), bundle.hi]
    return [Bundle(bundle.namespace, lo, hi) for lo, hi in pairwise(edges)]


class MovesApplier:
    """See `Applier`."""

    def __init__(self, store: PlanStore, deciding: Decider) -> None:
        self._store = store
        self._deciding = deciding

    def obstacle(self, plan: Plan) -> Obstacle | None:
        """An obstacle if no bundle is where the advice expects it, or no destination takes bundles."""
        there = [move for move in advised(plan, MoveBundles).moves if self._at(move.bundle, move.source) is not None]
        if not there:
            return Obstacle(PlanAction.SUPERSEDE, "none of its bundles is where it was")
        if all(self._deciding.taking(move.destination) is None for move in there):
            return Obstacle(None, "its destinations take no bundles now")
        return None

    def noted(self, plan: Plan) -> Mapping[str, object]:
        """The moves, from the present holders to brokers that take bundles now. Raises Conflict if there are none."""
        moves: list[PlannedMove] = []
        left_out: dict[str, str] = {}
        for move in advised(plan, MoveBundles).moves:
            found, to = self._at(move.bundle, move.source), self._deciding.taking(move.destination)
            if found is None:
                left_out[move.bundle] = "it is not where the advice expects it"
            elif to is None:
                left_out[move.bundle] = f"{move.destination} takes no bundles now"
            else:
                holder, revision = found
                moves.append(PlannedMove(Bundle.parse(move.bundle), holder, to, revision))
        if not moves:
            raise Conflict(f"there is nothing to move: {next(iter(left_out.values()), 'no moves')}")
        return {"moves": tuple(moves), "left_out": left_out}

    async def apply(self, plan: Plan) -> Waits:
        """Nothing to do here: `PlanRunner` makes the moves and ends the run."""
        return Waits(f"its moves: {summary(self._store.progress(plan))}")

    def changed_since(self, plan: Plan) -> str:  # noqa: ARG002 - see the contract
        """Always empty: later moves of the bundles for balance are allowed."""
        return ""

    async def undo(self, plan: Plan) -> Done | Waits:
        """Once the moves under way have arrived, move back the bundles that are still where the plan put them."""
        if not plan.outcomes:
            return Waits("moves under way have not arrived yet")
        if not any(outcome.status is MoveStatus.DONE for outcome in plan.outcomes):
            return Done("nothing had been moved")
        found = self._store.documents.get(f"{plan.id}-undo")
        back = None if found is None else found.value
        if back is None:
            occasion = Occasion(f"{plan.id}-undo", f"plan {plan.id}, undone", self._deciding.wall_ms())
            try:
                made = undoing(occasion, plan, self._deciding.table, self._deciding.taking)
            except Conflict as error:
                return Done(str(error))
            back = await self._store.add(running(made, self._deciding.table))
        if back.state in OPEN or not back.outcomes:
            return Waits(f"plan {back.id} is {back.state}")
        left = f"; not taken back: {', '.join(back.left_out)}" if back.left_out else ""
        return Done(f"plan {back.id}: {summary(back.outcomes)}{left}")

    def _at(self, bundle: str, source: str) -> tuple[BrokerId, int] | None:
        """The holder and revision of a bundle if it is assigned to this broker."""
        entry = self._deciding.table.get(Bundle.parse(bundle))
        if entry is None or entry.holder is None or entry.state is not State.ASSIGNED:
            return None
        return (entry.holder, entry.revision) if entry.holder.name == source else None
