"""What has become of a plan's moves, by the ownership table alone: so any broker can say it, and the next leader too.
What became of settings and splits says their applier once it is done.

Pure. A bundle's revision tells whether anything happened to it since the plan was made, its fencing token whether it
has changed hands.
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
    """One outcome a piece, in order; of a plan whose run is over what was written down then.

    `refused` are moves that the leader tried in vain to begin, and why.
    """
    if plan.outcomes:
        return plan.outcomes
    if plan.advice is not None and not plan.moves:
        return (PieceOutcome(MoveStatus.WAITING),) * plan.advice.size
    ran = any(step.action == "run" for step in plan.steps)
    return tuple(_outcome(move, table.get(move.bundle), ran, (refused or {}).get(move.bundle)) for move in plan.moves)


def look_again(plan: Plan, table: OwnershipTable) -> tuple[PieceOutcome, ...]:
    """Where the bundles of a plan are now, whatever was written down when it ended."""
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
    """While the broker that had it when the plan was made still has it."""
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
    """Once it has changed hands. A bundle that was only to be taken from its broker is done wherever it is."""
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
    """In words."""
    at = "" if entry.holder is None else f" at {entry.holder}"
    to = "" if entry.target is None else f" to {entry.target}"
    return f"{entry.state}{at}{to} since {entry.action} by {entry.by}"
