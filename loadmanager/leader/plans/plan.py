"""A plan: moves, settings or splits that can be reviewed before they are made, and their outcomes. Values only.

A plan is one document of the topic `plans`. Its content never changes; its state changes by the rows of `table.py`. The
ownership table shows where its bundles are, so a running plan writes nothing until its end: then
`outcomes` keeps the outcome of each piece.

The progress of moves comes from the ownership table alone, so any broker and the next leader can compute it. A bundle's
revision shows whether it changed since the plan was made, its fencing token whether it changed hands. For settings and
splits their applier gives the outcome once it is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from loadmanager.leader.plans.advice import Advice, Effect, Held, Period, Ruler
from loadmanager.strategies.rebalancing.decision import Certificate, Stage
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership

MOVES_A_PLAN = 4_000
"""The most moves that a person can review."""
EXPLAINED_MOVES_A_PLAN = 1_000
"""The same limit for moves with figures and a reason of their own."""
MOVES_BYTES = 700_000
"""The size limit of all moves: with the rest of the plan they must fit into one record of the log (1 MiB)."""
PROPOSAL_LIFE_MS = 3_600_000
"""How long a proposal is valid: after that its loads say little about the cluster."""


class PlanState(StrEnum):
    """The states of a plan."""

    PROPOSED = "proposed"
    APPROVED = "approved"
    RUNNING = "running"
    MEASURING = "measuring"
    """The leader measures the promised effect."""
    DONE = "done"
    FAILED = "failed"
    VERIFIED = "verified"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    """The target of its advice was changed, or newer advice exists."""
    REFUSED = "refused"
    """Its advice is out of bounds."""
    UNDOING = "undoing"
    UNDONE = "undone"


class PlanKind(StrEnum):
    """What a plan is for."""

    BALANCE = "balance"
    """The moves that the strategy would have made."""
    UNLOAD = "unload"
    """All bundles of a namespace or broker, as an administrator asked."""
    UNDO = "undo"
    """Undoes another plan."""
    ADVICE = "advice"
    """The change that a job of the load history advises."""


class PlannedMove(msgspec.Struct, frozen=True, omit_defaults=True):
    """One move of a plan, as `rebalancing.decision.Move`; `seen` is the bundle's revision when the plan was made."""

    bundle: Bundle
    source: BrokerId
    destination: BrokerId | None
    seen: int
    reason: str = ""
    """Empty: the plan's reason applies."""
    stage: Stage = Stage.BALANCE
    load: float = 0.0
    gain: float = 0.0
    source_before: float = 0.0
    source_after: float = 0.0
    destination_before: float = 0.0
    destination_after: float = 0.0
    group: int = 0


class MoveStatus(StrEnum):
    """The status of a planned move, or of another piece of a plan."""

    WAITING = "waiting"
    """The bundle is unchanged since the plan was made."""
    UNDER_WAY = "under way"
    DONE = "done"
    SKIPPED = "skipped"
    """The bundle was not where the plan expects it, and was left alone."""
    FAILED = "failed"
    """The move failed to begin or to end, and the bundle is not at its destination."""

    @property
    def settled(self) -> bool:
        return self not in (MoveStatus.WAITING, MoveStatus.UNDER_WAY)


class PieceOutcome(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of one piece; `detail` says where the bundle is if the piece is not done."""

    status: MoveStatus
    detail: str = ""


class Figures(msgspec.Struct, frozen=True, omit_defaults=True):
    """Usages of the brokers in a plan (their fullest resource, as a fraction), and the spread over all brokers."""

    usages: Mapping[str, float] = msgspec.field(default_factory=dict)
    spread: float = 0.0


class Verification(msgspec.Struct, frozen=True, omit_defaults=True):
    """A later check: which moves still hold, and the present figures."""

    at_ms: int
    holding: int
    moved_on: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Bundles that have left the place where the plan put them, with their present place."""
    actual: Figures | None = None
    """None if no load is known."""


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """An action that changed the plan's state."""

    action: str
    at_ms: int
    author: str
    reason: str = ""


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A plan; `id` is the document's name, and `outcomes` has one entry for each piece once the plan is over."""

    id: str
    kind: PlanKind
    state: PlanState
    proposed_ms: int
    author: str
    moves: tuple[PlannedMove, ...] = ()
    reason: str = ""
    strategy: str = ""
    settings: Mapping[str, float | str] = msgspec.field(default_factory=dict)
    """Settings that apply to this plan only."""
    policies: int = -1
    """The revision of the policies under which the plan was made."""
    cause: str = ""
    """The round that proposed it."""
    wave: int = 0
    """How many moves a wave has; each wave waits for the one before. 0: only the cluster's limits apply."""
    before: Figures = Figures()
    predicted: Figures = Figures()
    certificate: Certificate | None = None
    left_out: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Bundles that a reader may expect in the plan, and why they are not in it."""
    advice: Advice | None = None
    """The proposed change and its promised effect. Advised moves become `moves` when the leader begins the plan."""
    held: tuple[Held, ...] = ()
    """The settings before the change. The leader writes this, `ruler` and `baseline` when it begins the plan."""
    ruler: Ruler | None = None
    baseline: Period | None = None
    effect: Effect | None = None
    undoes: str = ""
    """The plan that this one undoes."""
    steps: tuple[Step, ...] = ()
    outcomes: tuple[PieceOutcome, ...] = ()
    verification: Verification | None = None

    @property
    def kind_of_change(self) -> str:
        """settings, splits, or moves."""
        return "moves" if self.advice is None else self.advice.kind

    @property
    def until_ms(self) -> int:
        """When the plan expires, unless it has begun."""
        return self.proposed_ms + PROPOSAL_LIFE_MS if self.advice is None else self.advice.until_ms

    def pairs(self, outcomes: Sequence[PieceOutcome]) -> Iterator[tuple[PlannedMove, PieceOutcome]]:
        """Each move with its outcome; nothing if the plan has no moves (yet)."""
        return zip(self.moves, outcomes if self.moves else (), strict=True)


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
