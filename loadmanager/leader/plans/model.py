"""A plan: moves, settings or splits that can be reviewed before they are made, and their outcomes. Values only.

A plan is one document of the topic `plans`. Its content never changes; its state changes by the rows of `table.py`. The
ownership table shows where its bundles are (`progress.py`), so a running plan writes nothing until its end: then
`outcomes` keeps the outcome of each piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from loadmanager.leader.plans.advice import Advice, Effect, Held, Period, Ruler
from loadmanager.strategies.rebalancing.decision import Certificate, Stage
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

MOVES_A_PLAN = 4_000
"""Nobody reviews more moves."""
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
    """Somebody has changed the target of its advice, or newer advice exists."""
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
