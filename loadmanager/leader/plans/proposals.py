"""Makes plans: of a strategy's decision, to unload bundles, or to undo another plan; and verifies them later. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from loadmanager.errors import Conflict
from loadmanager.leader.plans.plan import (
    EXPLAINED_MOVES_A_PLAN,
    MOVES_A_PLAN,
    MOVES_BYTES,
    Figures,
    MoveStatus,
    Plan,
    PlanKind,
    PlannedMove,
    PlanState,
    Step,
    Verification,
    look_again,
    progress,
    where,
)
from loadmanager.leader.plans.table import By, Facts, PlanAction, advance
from loadmanager.model.cluster import ClusterModel, spread_of
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision, Move, Stage, grouped
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership


class Occasion(msgspec.Struct, frozen=True):
    """The origin of a plan: its id, author, time, reason and cause."""

    id: str
    author: str
    at_ms: int
    reason: str = ""
    cause: str = ""


NEXT = "this plan has no room for it: the next plan can take it"


class Room:
    """The room in a plan of at most `most` moves and MOVES_BYTES."""

    def __init__(self, most: int) -> None:
        self._moves, self._bytes = most, MOVES_BYTES

    def takes(self, move: PlannedMove, *, whatever: bool = False) -> bool:
        """Whether there is room for the move, and take it; `whatever`: take it in any case."""
        size = len(msgspec.json.encode(move))
        if not whatever and (self._moves < 1 or self._bytes < size):
            return False
        self._moves, self._bytes = self._moves - 1, self._bytes - size
        return True


def of_decision(
    occasion: Occasion, decision: Decision, model: ClusterModel, settings: Settings, table: OwnershipTable
) -> Plan:
    """A plan of the strategy's moves. Raises Conflict if there are none, with the decision's reason."""
    moves, left_out = _planned(decision.moves, table)
    if not moves:
        raise Conflict(f"there is nothing to move: {decision.reason}")
    touched = {broker.name for move in moves for broker in (move.source, move.destination) if broker is not None}
    return Plan(
        id=occasion.id,
        kind=PlanKind.BALANCE,
        state=PlanState.PROPOSED,
        proposed_ms=occasion.at_ms,
        author=occasion.author,
        moves=moves,
        reason=occasion.reason or decision.reason,
        strategy=settings.balancing_strategy,
        cause=occasion.cause,
        before=figures(model, settings, touched),
        predicted=Figures(_predicted(moves), _finite(decision.spread_after)),
        certificate=decision.certificate,
        left_out=left_out,
    )


def of_bundles(
    occasion: Occasion,
    entries: Iterable[Ownership],
    to: BrokerId | None,
    wave: int,
    forbids: Callable[[Bundle, BrokerId], str],
) -> Plan:
    """A plan that moves all these bundles to one broker, or unloads them. Raises Conflict if none can go."""
    moves: list[PlannedMove] = []
    left_out: dict[str, str] = {}
    room = Room(MOVES_A_PLAN)
    for entry in entries:
        if entry.state is not State.ASSIGNED or entry.holder is None:
            left_out[str(entry.bundle)] = where(entry)
        elif to is not None and entry.holder.name == to.name:
            left_out[str(entry.bundle)] = f"it is at {to.name} already"
        elif to is not None and (rule := forbids(entry.bundle, to)):
            left_out[str(entry.bundle)] = f"it may not go to {to.name}: {rule}"
        elif room.takes(move := PlannedMove(entry.bundle, entry.holder, to, entry.revision, stage=Stage.DRAIN)):
            moves.append(move)
        else:
            left_out[str(entry.bundle)] = NEXT
    if not moves:
        raise Conflict(f"there is nothing to move{_first(left_out)}")
    return Plan(
        id=occasion.id,
        kind=PlanKind.UNLOAD,
        state=PlanState.PROPOSED,
        proposed_ms=occasion.at_ms,
        author=occasion.author,
        moves=tuple(moves),
        reason=occasion.reason,
        wave=wave,
        left_out=_at_most(left_out),
    )


def undoing(occasion: Occasion, plan: Plan, table: OwnershipTable, present: Callable[[str], BrokerId | None]) -> Plan:
    """A plan that moves back the bundles that are still where the plan put them; it lists the others with their place.

    `present` gives the incarnation of a broker that takes bundles now, else None. Raises Conflict if no bundle can go
    back.
    """
    moves: list[PlannedMove] = []
    left_out: dict[str, str] = {}
    for move, then in plan.pairs(plan.outcomes):
        if then.status is not MoveStatus.DONE:
            continue
        entry, back = table.get(move.bundle), present(move.source.name)
        refusal = _no_way_back(move, entry, back)
        if refusal is None and entry is not None and entry.holder is not None:
            moves.append(
                PlannedMove(
                    move.bundle,
                    entry.holder,
                    back,
                    entry.revision,
                    f"undoes plan {plan.id}",
                    Stage.UNDO,
                    move.load,
                    -move.gain,
                    group=move.group,
                )
            )
        else:
            left_out[str(move.bundle)] = refusal or "it is gone"
    if not moves:
        raise Conflict(f"nothing of plan {plan.id} can be taken back{_first(left_out)}")
    return Plan(
        id=occasion.id,
        kind=PlanKind.UNDO,
        state=PlanState.PROPOSED,
        proposed_ms=occasion.at_ms,
        author=occasion.author,
        moves=tuple(moves),
        reason=occasion.reason or f"undoes plan {plan.id}",
        before=plan.predicted,
        predicted=plan.before,
        left_out=left_out,
        undoes=plan.id,
    )


def _no_way_back(move: PlannedMove, entry: Ownership | None, back: BrokerId | None) -> str | None:
    if move.destination is None:
        return "the plan named no destination; a lookup chose the present broker" + (
            f", {where(entry)}" if entry else ""
        )
    if entry is None:
        return "this bundle no longer exists"
    holder = entry.holder.name if entry.holder is not None else None
    if entry.state is not State.ASSIGNED or holder != move.destination.name:
        return f"it has moved on: {where(entry)}"
    return f"{move.source.name} takes no bundles now" if back is None else None


def running(plan: Plan, table: OwnershipTable, why: str = "") -> Plan:
    """The plan, approved and running because its author asked for it."""
    for action in (PlanAction.APPROVE, PlanAction.RUN):
        facts = Facts(progress(plan, table), plan.proposed_ms)
        plan = advance(plan, action, By.OPERATOR, Step(action.value, plan.proposed_ms, plan.author, why), facts)
    return plan


def verified(plan: Plan, table: OwnershipTable, at_ms: int, actual: Figures | None) -> Verification:
    """Check how much of the plan's effect still holds."""
    moved_on: dict[str, str] = {}
    holding = 0
    for move, then, now in zip(plan.moves, plan.outcomes, look_again(plan, table), strict=True):
        if then.status is not MoveStatus.DONE:
            continue
        if now.status is MoveStatus.DONE:
            holding += 1
        else:
            moved_on[str(move.bundle)] = now.detail
    return Verification(at_ms, holding, moved_on, actual)


def figures(model: ClusterModel, settings: Settings, names: Iterable[str]) -> Figures:
    """Usages of these brokers, if their load is known; and the spread over all brokers with known load."""
    brokers = model.brokers
    fullest = brokers.fullness(settings)
    wanted = set(names)
    usages = {
        b.name: float(fullest[row]) for row, b in enumerate(brokers.ids) if brokers.known[row] and b.name in wanted
    }
    return Figures(usages, spread_of(fullest[brokers.known & ~brokers.draining]))


def as_move(plan: Plan, move: PlannedMove) -> Move:
    """The planned move as a Move, for the limits."""
    why = move.reason or plan.reason
    return Move(move.bundle, move.source, move.destination, why, move.stage, move.load, move.gain, group=move.group)


def wave_of(plan: Plan, waiting: Sequence[int], settled: Sequence[bool]) -> list[int]:
    """The waiting moves that belong to the present wave; by their places in the plan."""
    if not plan.wave:
        return list(waiting)
    first = next((place for place, over in enumerate(settled) if not over), len(settled))
    end = (first // plan.wave + 1) * plan.wave
    return [place for place in waiting if place < end]


def _planned(moves: Sequence[Move], table: OwnershipTable) -> tuple[tuple[PlannedMove, ...], Mapping[str, str]]:
    """Moves that fit, each group completely or not at all; and the others with the reason."""
    planned: list[PlannedMove] = []
    left_out: dict[str, str] = {}
    room = Room(EXPLAINED_MOVES_A_PLAN)
    for group in grouped(moves):
        entries = [table.get(move.bundle) for move in group]
        away = [_not_there(move, entry) for move, entry in zip(group, entries, strict=True)]
        why = next((f"{move.bundle} is not there: {each}" for move, each in zip(group, away, strict=True) if each), "")
        fits = not why and room.takes(_as_planned(group[0], entries[0]))
        for place, (move, entry) in enumerate(zip(group, entries, strict=True)):
            if fits and (place == 0 or room.takes(_as_planned(move, entry), whatever=True)):
                planned.append(_as_planned(move, entry))
            else:
                left_out[str(move.bundle)] = away[place] or (f"only together: {why}" if why else NEXT)
    return tuple(planned), _at_most(left_out)


def _not_there(move: Move, entry: Ownership | None) -> str:
    if entry is None:
        return "it is gone"
    return "" if entry.state is State.ASSIGNED and entry.holder == move.source else where(entry)


def _as_planned(move: Move, entry: Ownership | None) -> PlannedMove:
    return PlannedMove(
        move.bundle,
        move.source,
        move.destination,
        -1 if entry is None else entry.revision,
        move.reason,
        move.stage,
        _finite(move.load),
        _finite(move.gain),
        _finite(move.source_before),
        _finite(move.source_after),
        _finite(move.destination_before),
        _finite(move.destination_after),
        move.group,
    )


def _predicted(moves: Sequence[PlannedMove]) -> Mapping[str, float]:
    """The usage of each broker after the last move that touches it."""
    usages: dict[str, float] = {}
    for move in moves:
        usages[move.source.name] = move.source_after
        if move.destination is not None:
            usages[move.destination.name] = move.destination_after
    return usages


def _finite(value: float) -> float:
    """A finite number in place of infinity and NaN, which JSON lacks."""
    return value if math.isfinite(value) else math.copysign(1e12, value) if math.isinf(value) else 0.0


def _first(left_out: Mapping[str, str]) -> str:
    found = next(iter(left_out.items()), None)
    return "" if found is None else f"; {found[0]}: {found[1]}" + (" …" if len(left_out) > 1 else "")


def _at_most(left_out: dict[str, str], count: int = 100) -> Mapping[str, str]:
    if len(left_out) <= count:
        return left_out
    shown = dict(list(left_out.items())[:count])
    return {**shown, "…": f"and {len(left_out) - count} more"}
