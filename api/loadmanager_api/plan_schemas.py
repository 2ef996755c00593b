"""JSON schemas of plans and of the state of balancing, and of requests about them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from loadmanager_api.advice_schemas import AdviceShown

Text = Annotated[str, Field(max_length=500)]
Name = Annotated[str, Field(min_length=1, max_length=300)]


class Wish(BaseModel):
    """Who asks (without it: who the request is from), and why; kept with what comes of it."""

    model_config = ConfigDict(extra="forbid")

    author: Annotated[str, Field(max_length=100)] = ""
    reason: Text = ""


class PauseWish(Wish):
    """A namespace, a broker, or neither: the cluster."""

    namespace: Name | None = None
    broker: Name | None = None


class ProposalWish(Wish):
    """`strategy` and `tolerance` (tight, default, loose, or a fraction) count for this plan only."""

    strategy: Name | None = None
    tolerance: float | str | None = None


class UnloadWish(Wish):
    """Either a namespace or a broker. `to`: a broker; without it lookups place what is unloaded. `wave`: so many at a
    time, each wave waiting for the one before. `review`: it waits for approval."""

    namespace: Name | None = None
    broker: Name | None = None
    to: Name | None = None
    wave: Annotated[int, Field(ge=1, le=1_000)] = 10
    review: bool = False


class PauseShown(BaseModel):
    """All that is paused now; whether the request changed anything."""

    changed: bool
    cluster: bool
    reason: str
    namespaces: list[str]
    brokers: list[str]


class MoveShown(BaseModel):
    """A move and what has become of it. In a plan: waiting, under way, done, skipped, failed; in a round: begun, held
    back, refused, moved on, …"""

    bundle: str
    source: str
    destination: str | None
    stage: str
    reason: str
    load: float
    gain: float
    group: int
    outcome: str
    detail: str


class CertificateShown(BaseModel):
    """The least load that had to move, whatever the algorithm, and what moves.

    `ratio` is of the whole plan; null: nothing had to move, or a better plan may exist."""

    text: str
    resource: str
    bound: float
    moved: float
    ratio: float | None


class FiguresShown(BaseModel):
    """Usages of brokers (fullest resource, as a fraction), and the spread (max/mean - 1)."""

    usages: dict[str, float]
    spread: float


class StepShown(BaseModel):
    """An action that changed the plan's state."""

    action: str
    at_ms: int
    author: str
    reason: str


class VerificationShown(BaseModel):
    """`holding` moves are where the plan put them; `moved_on` tells where the others are."""

    at_ms: int
    holding: int
    moved_on: dict[str, str]
    actual: FiguresShown | None


class PlanSummary(BaseModel):
    """A plan in one line; `what` has it in words. `counts`: how many of its pieces (moves, settings, cuts) are waiting,
    under way, done, skipped, failed. `may`: what an operator can do with it now. `waiting`: what a plan with advice
    waits for, as far as the asked broker knows (the leader does)."""

    id: str
    kind: str
    state: str
    proposed_ms: int
    author: str
    reason: str
    moves: int
    counts: dict[str, int]
    undoes: str
    what: str
    may: list[str]
    waiting: str


class PlanShown(PlanSummary):
    """All of it; `left_out` says what is not in it, and why."""

    strategy: str
    settings: dict[str, Any]
    policies_revision: int
    cause: str
    wave: int
    before: FiguresShown
    predicted: FiguresShown
    certificate: CertificateShown | None
    left_out: dict[str, str]
    steps: list[StepShown]
    planned: list[MoveShown]
    verification: VerificationShown | None
    advice: AdviceShown | None


class RoundShown(BaseModel):
    """The cluster's last round; `id` is epoch.round, the `cause` of its records in the channel."""

    id: str
    at_ms: int
    leader: str
    strategy: str
    reason: str
    spread_before: float
    spread_after: float
    certificate: CertificateShown | None
    moves: list[MoveShown]


class LimitsShown(BaseModel):
    """Moves that may be under way."""

    total: int
    per_broker: int
    per_namespace: int


class InFlightShown(BaseModel):
    """Moves under way, whoever sent them; by broker they count at both ends."""

    total: int
    by_broker: dict[str, int]
    by_namespace: dict[str, int]


class BalancingShown(BaseModel):
    """Where balance stands. `spread` and `tolerance` are fractions: max/mean - 1 of the brokers' fullest resource."""

    balancing: bool
    review: bool
    strategy: str
    tolerance: float
    spread: float
    usages: dict[str, float]
    paused: PauseShown
    limits: LimitsShown
    in_flight: InFlightShown
    held: list[str]
    open_plans: list[PlanSummary]
    last: RoundShown | None
