"""The progress of a plan's moves, from the ownership table alone: any broker and the next leader can compute it. Pure.

For settings and splits their applier gives the outcome once it is done. A bundle's revision shows whether it changed
since the plan was made, its fencing token whether it changed hands.
"""

from __future__ import annotations

from collections.abc import Mapping

from loadmanager.leader.plans.model import MoveStatus, PieceOutcome, Plan, PlannedMove
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership

GONE = "there is no such bundle any more: it was split, merged or deleted"


def progress(
    plan: Plan, table: OwnershipTable, refused: Mapping[Bundle, str] | None = None
) -> tuple[PieceOutcome, ...]:
    """One outcome for each piece, in order; the recorded outcomes if the plan's run is over.

    `refused` are moves that the leader failed to begin, and why.
    """
    if plan.outcomes:
        return plan.outcomes
    if plan.advice is not None and not plan.moves:
        return (PieceOutcome(MoveStatus.WAITING),) * plan.advice.size
    ran = any(step.action == "run" for step in plan.steps)
    return tuple(_outcome(move, table.get(move.bundle), ran, (refused or {}).get(move.bundle)) for move in plan.moves)


def look_again(plan: Plan, table: OwnershipTable) -> tuple[PieceOutcome, ...]:
    """The present state of a plan's moves, whatever was recorded when it ended."""
    return tuple(_outcome(move, table.get(move.bundle), True, None) for move in plan.moves)


def _outcome(move: PlannedMove, entry: Ownership | None, ran: bool, refused: str | None) -> PieceOutcome:
    if entry is None:
        return PieceOutcome(MoveStatus.SKIPPED, GONE)
    if entry.revision == move.seen:
        return PieceOutcome(MoveStatus.WAITING) if refused is None else PieceOutcome(MoveStatus.FAILED, refused)
    if not ran:
        return PieceOutcome(MoveStatus.SKIPPED, where(entry))
    changed_hands = entry.token > move.seen or entry.state is State.UNASSIGNED
    return (_after if changed_hands else _before)(move, entry)


def _before(move: PlannedMove, entry: Ownership) -> PieceOutcome:
    """The outcome while the bundle has not changed hands since the plan was made."""
    match entry.state:
        case State.TRANSFERRING | State.RELEASING if _name(entry.target) == _name(move.destination):
            return PieceOutcome(MoveStatus.UNDER_WAY, where(entry))
        case State.REVOKING:
            return PieceOutcome(MoveStatus.UNDER_WAY, where(entry))
        case State.ASSIGNED:
            return PieceOutcome(MoveStatus.FAILED, f"called off: {where(entry)}")
        case _:
            return PieceOutcome(MoveStatus.SKIPPED, where(entry))


def _after(move: PlannedMove, entry: Ownership) -> PieceOutcome:
    """The outcome once the bundle has changed hands; a move without a destination is then done."""
    if move.destination is None:
        return PieceOutcome(MoveStatus.DONE)
    if _name(entry.holder) != move.destination.name:
        return PieceOutcome(MoveStatus.SKIPPED, where(entry))
    if entry.state in (State.ASSIGNING, State.REVOKING):
        return PieceOutcome(MoveStatus.UNDER_WAY, where(entry))
    leaves = entry.state in (State.TRANSFERRING, State.RELEASING)
    return PieceOutcome(MoveStatus.SKIPPED, where(entry)) if leaves else PieceOutcome(MoveStatus.DONE)


def _name(broker: BrokerId | None) -> str | None:
    return None if broker is None else broker.name


def where(entry: Ownership) -> str:
    """The bundle's state in words."""
    at = "" if entry.holder is None else f" at {entry.holder}"
    to = "" if entry.target is None else f" to {entry.target}"
    return f"{entry.state}{at}{to} since {entry.action} by {entry.by}"
