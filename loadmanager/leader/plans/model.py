"""A plan: moves, settings or splits that somebody looks at before they are made, and what became of them. Values only.

A plan is one document of the topic `plans`. What it is made of never changes; its state does, by the rows of
`table.py`. Where its bundles are at a moment follows from the ownership table (`progress.py`), so a running plan writes
nothing until it is over: then `outcomes` says what became of each piece, for ever.
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
"""Nobody looks at more."""
EXPLAINED_MOVES_A_PLAN = 1_000
"""The same, where each move has figures and a reason of its own."""
MOVES_BYTES = 700_000
"""More do not fit into one record of the log (1 MiB), with what else a plan says. Names may be long."""
PROPOSAL_LIFE_MS = 3_600_000
"""The loads by which a plan was made tell little of the cluster after that."""


class PlanState(StrEnum):
    """Where a plan is in its life."""

    PROPOSED = "proposed"
    APPROVED = "approved"
    RUNNING = "running"
    MEASURING = "measuring"
    """The effect that it promises is measured."""
    DONE = "done"
    FAILED = "failed"
    VERIFIED = "verified"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    """Somebody has changed what its advice is about, or there is newer advice."""
    REFUSED = "refused"
    """Its advice is out of bounds."""
    UNDOING = "undoing"
    UNDONE = "undone"


class PlanKind(StrEnum):
    """What a plan is for."""

    BALANCE = "balance"
    """What the strategy would have done."""
    UNLOAD = "unload"
    """All bundles of a namespace or broker, as an administrator asked."""
    UNDO = "undo"
    """Takes back another plan."""
    ADVICE = "advice"
    """What a job of the load history advises."""


class PlannedMove(msgspec.Struct, frozen=True, omit_defaults=True):
    """One move of a plan, as `balancing.decision.Move`; `seen` is the bundle's revision when the plan was made."""

    bundle: Bundle
    source: BrokerId
    destination: BrokerId | None
    seen: int
    reason: str = ""
    """Empty: the plan's."""
    stage: Stage = Stage.BALANCE
    load: float = 0.0
    gain: float = 0.0
    source_before: float = 0.0
    source_after: float = 0.0
    destination_before: float = 0.0
    destination_after: float = 0.0
    group: int = 0


class MoveStatus(StrEnum):
    """What became of a planned move, or of another piece of a plan."""

    WAITING = "waiting"
    """The bundle is where the plan found it."""
    UNDER_WAY = "under way"
    DONE = "done"
    SKIPPED = "skipped"
    """The bundle was not where the plan found it: left alone."""
    FAILED = "failed"
    """It was begun, or could not be begun, and the bundle is not where it should be."""

    @property
    def settled(self) -> bool:
        return self not in (MoveStatus.WAITING, MoveStatus.UNDER_WAY)


class PieceOutcome(msgspec.Struct, frozen=True, array_like=True):
    """What became of one piece, and in words where the bundle is if it is not done."""

    status: MoveStatus
    detail: str = ""


class Figures(msgspec.Struct, frozen=True, omit_defaults=True):
    """Usages of the brokers that a plan touches (their fullest resource, as a fraction), and the spread of all."""

    usages: Mapping[str, float] = msgspec.field(default_factory=dict)
    spread: float = 0.0


class Verification(msgspec.Struct, frozen=True, omit_defaults=True):
    """A later look: which of the moves still hold, and what came of the figures."""

    at_ms: int
    holding: int
    moved_on: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Bundles that are not where the plan put them, and where they are."""
    actual: Figures | None = None
    """None where nothing is known of the load."""


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """An action that changed the plan's state."""

    action: str
    at_ms: int
    author: str
    reason: str = ""


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """`id` is the document's name. `outcomes` has one entry a piece (move, setting, cut), once the plan is over."""

    id: str
    kind: PlanKind
    state: PlanState
    proposed_ms: int
    author: str
    moves: tuple[PlannedMove, ...] = ()
    reason: str = ""
    strategy: str = ""
    settings: Mapping[str, float | str] = msgspec.field(default_factory=dict)
    """Those that were given for this plan only."""
    policies: int = -1
    """The revision of the policies by which it was made."""
    cause: str = ""
    """The round that proposed it."""
    wave: int = 0
    """At most so many moves at once, each such wave waiting for the one before; 0: only the cluster's limits count."""
    before: Figures = Figures()
    predicted: Figures = Figures()
    certificate: Certificate | None = None
    left_out: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Bundles that somebody may expect here, and why they are not in it."""
    advice: Advice | None = None
    """What it is made of, and promises. Moves of advice become `moves` when the leader lets it run."""
    held: tuple[Held, ...] = ()
    """How the settings were that it changes; as `ruler` and `baseline`, written when the leader lets it run."""
    ruler: Ruler | None = None
    baseline: Period | None = None
    effect: Effect | None = None
    undoes: str = ""
    """The plan that this one takes back."""
    steps: tuple[Step, ...] = ()
    outcomes: tuple[PieceOutcome, ...] = ()
    verification: Verification | None = None

    @property
    def kind_of_change(self) -> str:
        """settings, splits, or moves."""
        return "moves" if self.advice is None else self.advice.kind

    @property
    def until_ms(self) -> int:
        """When it expires, if nobody has let it run."""
        return self.proposed_ms + PROPOSAL_LIFE_MS if self.advice is None else self.advice.until_ms

    def pairs(self, outcomes: Sequence[PieceOutcome]) -> Iterator[tuple[PlannedMove, PieceOutcome]]:
        """Each move with what became of it; none where a plan has no moves (yet)."""
        return zip(self.moves, outcomes if self.moves else (), strict=True)
