"""JSON schemas of plans and of the state of balancing, and of requests about them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from loadmanager_api.advice_schemas import AdviceShown
from loadmanager_api.json_types import STRICT, WHOLE

Text = Annotated[str, Field(max_length=500)]
Name = Annotated[str, Field(min_length=1, max_length=300)]


class Wish(BaseModel):
    """Who asks, and why; both are kept with the result. Without `author` it is the author of the request."""

    model_config = STRICT

    author: Annotated[str, Field(max_length=100)] = ""
    reason: Text = ""


class PauseWish(Wish):
    """What to pause: a namespace, a broker, or the cluster if neither is given."""

    namespace: Name | None = None
    broker: Name | None = None


class ProposalWish(Wish):
    """How to plan. `strategy` and `tolerance` (tight, default, loose, or a fraction) count for this plan only."""

    strategy: Name | None = None
    tolerance: float | str | None = None


class UnloadWish(Wish):
    """What to unload: either a namespace or a broker.

    `to` is the broker that gets the bundles; without it, lookups place them. `wave` is the number of bundles at a time;
    each wave waits for the one before. With `review` the plan waits for approval.
    """

    namespace: Name | None = None
    broker: Name | None = None
    to: Name | None = None
    wave: Annotated[int, Field(strict=True, ge=1, le=1_000), WHOLE] = 10
    review: bool = False


class PauseShown(BaseModel):
    """What is paused now, among the namespaces that the caller may view, and whether the request changed anything."""

    changed: bool
    cluster: bool
    reason: str
    namespaces: list[str]
    brokers: list[str]


class MoveShown(BaseModel):
    """A move and its status.

    In a plan: waiting, under way, done, skipped, failed. In a round: begun, held back, refused, moved on, …
    """

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
    """The least load that any algorithm has to move, and the load that this plan moves.

    `ratio` compares the two for the whole plan. It is null if nothing had to move, or if a better plan may exist.
    """

    text: str
    resource: str
    bound: float
    moved: float
    ratio: float | None


class FiguresShown(BaseModel):
    """The usage of each broker (its fullest resource, as a fraction), and their spread (max/mean - 1)."""

    usages: dict[str, float]
    spread: float


class StepShown(BaseModel):
    """An action that changed the state of the plan."""

    action: str
    at_ms: int
    author: str
    reason: str


class VerificationShown(BaseModel):
    """Where the bundles are now. `holding` moves are still in effect; `moved_on` tells where the other bundles are."""

    at_ms: int
    holding: int
    moved_on: dict[str, str]
    actual: FiguresShown | None


class PlanSummary(BaseModel):
    """A plan in one line; `what` describes it in words.

    `counts` tells how many of its pieces (moves, settings, cuts) are waiting, under way, done, skipped, failed. `may`
    lists what an operator can do with it now. `waiting` says what a plan with advice waits for, as far as the asked
    broker knows (the leader knows).
    """

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
    """A whole plan. `left_out` names what the plan leaves out, and why."""

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
    """How many moves may be under way at a time."""

    total: int
    per_broker: int
    per_namespace: int


class InFlightShown(BaseModel):
    """Moves under way, whoever began them. By broker, a move counts at both ends."""

    total: int
    by_broker: dict[str, int]
    by_namespace: dict[str, int]


class BalancingShown(BaseModel):
    """The status of balancing. `spread` and `tolerance` are fractions: max/mean - 1 of brokers' fullest resource."""

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
