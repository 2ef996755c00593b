"""`/v1/plans`: changes that are looked at before they are made: moves of the strategy, bulk unloads, advice of the load
history. Any broker answers; the leader runs them. Nothing is done because it was published.

`/v1/balancing` says where balance stands, and pauses and resumes it.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from math import isfinite
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import asdict
from pydantic import BeforeValidator, Field

from loadmanager.broker.node import Incarnation, Node
from loadmanager.leader.advice.core import told
from loadmanager.leader.plans.advice import Advice, ChangeSettings, CutBundles, MoveBundles
from loadmanager.leader.plans.plan import Plan, PlanKind, PlannedMove, PlanState
from loadmanager.leader.plans.store import publish
from loadmanager.leader.plans.table import OPEN, PlanAction, offered
from loadmanager.leader.rebalancing import actions
from loadmanager.leader.rebalancing.actions import OperatorActions, Unload
from loadmanager.leader.rebalancing.rounds import Rebalancer
from loadmanager.leader.rebalancing.status import balance_status
from loadmanager.model.policies.model import AccessRole
from loadmanager.strategies.rebalancing.decision import Move
from loadmanager_api.access.access import May
from loadmanager_api.access.sender import Sender
from loadmanager_api.openapi import answers
from loadmanager_api.paging import Cursor, Limit, Paging
from loadmanager_api.routing import Acting, AuthorOf, ControlRouter, Permission, TheNode
from loadmanager_api.shapes import WHOLE, Body, BrokerName, Builtins, InWords, Shape, Whole

LongText = Annotated[str, Field(max_length=2_000)]
Name = Annotated[str, Field(min_length=1, max_length=300)]
Scalar = bool | int | float | str | None
Ms = Annotated[int, Field(strict=True, ge=0, le=1 << 53), WHOLE]
Number = Annotated[float, Field(allow_inf_nan=False)]


class AdvisedSetting(Body):
    """One setting by our name and in our unit: its value in the data, and the proposed one."""

    name: Name
    was: Scalar
    to: Scalar


class AdvisedSettings(Body):
    """Settings to change together."""

    type: Literal["settings"]
    changes: Annotated[list[AdvisedSetting], Field(max_length=100)]


class AdvisedCut(Body):
    """A bundle to cut into equal ranges."""

    bundle: Name
    parts: Whole


class AdvisedSplits(Body):
    """More bundles for a namespace. `was` is their present number."""

    type: Literal["splits"]
    namespace: Name
    was: Whole
    cuts: Annotated[list[AdvisedCut], Field(max_length=1_000)]


class AdvisedMove(Body):
    """One move: a bundle, and its brokers by name."""

    bundle: Name
    source: Name
    destination: Name


class AdvisedMoves(Body):
    """Moves to make before a peak, which begins at `not_after_ms`."""

    type: Literal["moves"]
    moves: Annotated[list[AdvisedMove], Field(max_length=1_000)]
    not_before_ms: Ms
    not_after_ms: Ms


class ExpectedEffect(Body):
    """The expected improvement, `before - after`. It lies between `low` and `high` with 95 % confidence."""

    measure: Literal["spread", "above_tolerance"]
    before: Number
    after: Number
    low: Number
    high: Number


class AdviceProvenance(Body):
    """Where the advice comes from: cluster, time of the data, job, release, and versions of the tables."""

    cluster: Name
    data_from_ms: Ms
    data_to_ms: Ms
    job: Name
    job_version: Name
    method: Name
    tables: dict[str, Whole] = Field({})


class AdviceRequest(Body):
    """Advice to publish. `id` may be left out: it is a digest of the rest."""

    change: Annotated[AdvisedSettings | AdvisedSplits | AdvisedMoves, Field(discriminator="type")]
    reason: LongText
    expected: ExpectedEffect
    provenance: AdviceProvenance
    expires_ms: Ms
    id: str = ""
    format: Whole = 1
    type: Literal["advice"] = "advice"


class MeasuredEffect(Shape):
    """The measured effect, by the `rounds` between two times. `change` is after - before; a worsening by more than
    `bound` is harm.
    """

    measure: str
    before: float
    after: float
    change: float
    bound: float
    harm: bool
    measured_from: datetime
    measured_to: datetime
    rounds: int
    text: str


class AdviceResponse(Shape):
    """What a plan is made of, and what it promises. Its effect is compared with the time `baseline`, before it."""

    change: Builtins
    expected: Builtins
    provenance: Builtins
    expires_ms: int
    baseline: Builtins | None
    effect: MeasuredEffect | None


Text = Annotated[str, Field(max_length=500)]


class StepRequest(Body):
    """Author and reason, both kept with the result. `author` defaults to the author of the request."""

    author: Annotated[str, Field(max_length=100)] = ""
    reason: Text = ""


class PauseRequest(StepRequest):
    """What to pause: a namespace, a broker, or the cluster if neither is given."""

    namespace: Name | None = None
    broker: Name | None = None


class ProposalRequest(StepRequest):
    """How to plan. `strategy` and `tolerance` (tight, default, loose, or a fraction) count for this plan only."""

    strategy: Name | None = None
    tolerance: float | str | None = None


class UnloadRequest(StepRequest):
    """What to unload: either a namespace or a broker.

    `to` is the broker that gets the bundles; without it, lookups place them. `wave` is the number of bundles at a time;
    each wave waits for the one before. With `review` the plan waits for approval.
    """

    namespace: Name | None = None
    broker: Name | None = None
    to: Name | None = None
    wave: Annotated[int, Field(strict=True, ge=1, le=1_000), WHOLE] = 10
    review: bool = False


class Pauses(Shape):
    """What is paused now, among the namespaces that the caller may view, and whether the request changed anything."""

    changed: bool
    cluster: bool
    reason: str
    namespaces: list[str]
    brokers: list[str]


class MoveResponse(Shape):
    """A move and its status.

    In a plan: waiting, under way, done, skipped, failed. In a round: begun, held back, refused, moved on, …
    """

    bundle: InWords
    source: BrokerName
    destination: BrokerName | None
    stage: str
    reason: str
    load: float
    gain: float
    group: int
    outcome: str
    detail: str


class CertificateResponse(Shape):
    """The least load that any algorithm has to move, and the load that this plan moves.

    `ratio` compares the two for the whole plan. It is null if nothing had to move, or if a better plan may exist.
    """

    text: str
    resource: str
    bound: float
    moved: float
    ratio: Annotated[float | None, BeforeValidator(lambda ratio: ratio if isfinite(ratio) else None)]


class Figures(Shape):
    """The usage of each broker (its fullest resource, as a fraction), and their spread (max/mean - 1)."""

    usages: dict[str, float]
    spread: float


class Step(Shape):
    """An action that changed the state of the plan."""

    action: str
    at_ms: int
    author: str
    reason: str


class Verification(Shape):
    """Where the bundles are now. `holding` moves are still in effect; `moved_on` tells where the other bundles are."""

    at_ms: int
    holding: int
    moved_on: dict[str, str]
    actual: Figures | None


class PlanSummary(Shape):
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


class PlanDetail(PlanSummary):
    """A whole plan. `left_out` names what the plan leaves out, and why."""

    strategy: str
    settings: dict[str, Any]
    policies_revision: int
    cause: str
    wave: int
    before: Figures
    predicted: Figures
    certificate: CertificateResponse | None
    left_out: dict[str, str]
    steps: list[Step]
    planned: list[MoveResponse]
    verification: Verification | None
    advice: AdviceResponse | None


class Round(Shape):
    """The cluster's last round; `id` is epoch.round, the `cause` of its records in the channel."""

    id: str
    at_ms: int
    leader: str
    strategy: str
    reason: str
    spread_before: float
    spread_after: float
    certificate: CertificateResponse | None
    moves: list[MoveResponse]


class MoveLimits(Shape):
    """How many moves may be under way at a time."""

    total: int
    per_broker: int
    per_namespace: int


class MovesInFlight(Shape):
    """Moves under way, of any origin. In `by_broker` a move counts at both ends."""

    total: int
    by_broker: dict[str, int]
    by_namespace: dict[str, int]


class Balancing(Shape):
    """The status of balancing. `spread` and `tolerance` are fractions: max/mean - 1 of brokers' fullest resource."""

    balancing: bool
    review: bool
    strategy: str
    tolerance: float
    spread: float
    usages: dict[str, float]
    paused: Pauses
    limits: MoveLimits
    in_flight: MovesInFlight
    held: list[str]
    open_plans: list[PlanSummary]
    last: Round | None


NAMED = 3
"""How many bundles a line names."""


def _summary(rebalancer: Rebalancer, plan: Plan) -> dict[str, Any]:
    """The fields of the plan, with those that only a summary has."""
    statuses = Counter(outcome.status for outcome in rebalancer.plans.progress(plan))
    return asdict(plan) | {
        "moves": len(plan.moves),
        "counts": {status.value: count for status, count in statuses.items()},
        "what": in_words(plan),
        "may": offered(plan),
        "waiting": rebalancer.waiting.get(plan.id, ""),
    }


def _response(acting: Incarnation, plan: Plan) -> PlanDetail:
    rebalancer = acting.rebalancer
    pairs = plan.pairs(rebalancer.plans.progress(plan))
    return PlanDetail.model_validate(
        _summary(rebalancer, plan)
        | {
            "policies_revision": plan.policies,
            "planned": [_move(move, plan.reason, found.status, found.detail) for move, found in pairs],
            "advice": None if plan.advice is None else _advice(plan, plan.advice),
        }
    )


def in_words(plan: Plan) -> str:
    """What it would do."""
    match plan.advice.change if plan.advice is not None else None:
        case ChangeSettings(changes):
            return ", ".join(f"{each.name}: {each.was} → {each.to}" for each in changes)
        case CutBundles(namespace, _, cuts):
            return f"{namespace}: cut {_some([f'{cut.bundle} into {cut.parts}' for cut in cuts[:NAMED]], len(cuts))}"
        case MoveBundles(moves):
            return f"move {_some([f'{move.bundle} to {move.destination}' for move in moves[:NAMED]], len(moves))}"
        case None:
            shown = [f"{m.bundle} to {m.destination.name if m.destination else 'none'}" for m in plan.moves[:NAMED]]
            return f"move {_some(shown, len(plan.moves))}"


def _some(texts: list[str], count: int) -> str:
    return ", ".join(texts) + (f" and {count - len(texts)} more" if count > len(texts) else "")


def _advice(plan: Plan, advice: Advice) -> dict[str, Any]:
    effect = plan.effect
    measured = None
    if effect is not None:
        period = effect.period
        times = {"measured_from": _utc(period.begin_ms), "measured_to": _utc(period.end_ms), "rounds": period.rounds}
        measured = asdict(effect) | times | {"text": told(effect)}
    return asdict(advice) | {"baseline": plan.baseline, "effect": measured}


def _utc(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _move(move: Move | PlannedMove, reason: str, outcome: str, detail: str) -> dict[str, Any]:
    """One move; `reason` is used where the move has none of its own."""
    return asdict(move) | {"reason": move.reason or reason, "outcome": outcome, "detail": detail}


balancing_router = ControlRouter(prefix="/v1/balancing", tags=["balance"])


@balancing_router.get("")
async def show_balancing(node: TheNode, acting: Acting) -> Balancing:
    """Show the last round's decision, moves under way, pauses, what is held back, and how even the brokers are."""
    rebalancer = acting.rebalancer
    found = await balance_status(rebalancer, node.decisions, node.settings.advertised)
    last = None
    if found.last is not None:
        moves = [_move(move, "", outcome.outcome, outcome.detail) for move, outcome in found.last.moves]
        last = asdict(found.last.decision) | asdict(found.last) | {"moves": moves}
    in_flight = {
        "total": found.in_flight,
        "by_broker": found.in_flight_by_broker,
        "by_namespace": found.in_flight_by_namespace,
    }
    return Balancing.model_validate(
        asdict(found)
        | {
            "paused": asdict(found.paused) | {"changed": False},
            "in_flight": in_flight,
            "open_plans": [_summary(rebalancer, plan) for plan in rebalancer.plans.all() if plan.state in OPEN],
            "last": last,
        }
    )


@balancing_router.post("/pause", responses=answers(404, 409, 412))
async def pause(node: TheNode, acting: Acting, author: AuthorOf, may: Permission, wanted: PauseRequest) -> Pauses:
    """Pause automatic moves and moves of plans: in the cluster, in a namespace, or from and to a broker."""
    may.require(AccessRole.OPERATOR, None if wanted.broker else wanted.namespace)
    subject = actions.Subject(wanted.namespace, wanted.broker)
    changed = await actions.pause(node.policies, subject, author.or_named(wanted.author), wanted.reason)
    return _paused(node, may, changed=changed)


@balancing_router.post("/resume", responses=answers(409, 412))
async def resume(node: TheNode, acting: Acting, author: AuthorOf, may: Permission, wanted: PauseRequest) -> Pauses:
    """End a pause: the cluster's, or that of the given namespace or broker. Other pauses stay."""
    may.require(AccessRole.OPERATOR, None if wanted.broker else wanted.namespace)
    subject = actions.Subject(wanted.namespace, wanted.broker)
    changed = await actions.resume(node.policies, subject, author.or_named(wanted.author), wanted.reason)
    return _paused(node, may, changed=changed)


def _paused(node: Node, may: May, *, changed: bool) -> Pauses:
    """What is paused, without namespaces that the sender may not view."""
    found = actions.paused(node.policies.current())
    seen = tuple(name for name in found.namespaces if may.has(AccessRole.VIEWER, name))
    return Pauses.model_validate(asdict(found) | {"namespaces": seen, "changed": changed})


router = ControlRouter(prefix="/v1/plans", tags=["balance"])


@router.get("")
async def list_plans(
    node: TheNode,
    acting: Acting,
    paging: Paging,
    kind: PlanKind | None = None,
    state: PlanState | None = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> list[PlanSummary]:
    """List plans, newest first: of one kind or state, or all."""
    found = [each for each in node.plans.all() if kind in (None, each.kind) and state in (None, each.state)]
    page = paging.of(found, lambda plan: f"{2**53 - plan.proposed_ms}.{plan.id}", limit, cursor, r"\d+\..+")
    return [PlanSummary.model_validate(_summary(acting.rebalancer, plan)) for plan in page]


@router.post("", status_code=201, responses=answers(409, 412))
async def propose(node: TheNode, acting: Acting, author: AuthorOf, wanted: ProposalRequest) -> PlanDetail:
    """Propose what the strategy would do now, as a plan that waits for approval. 409 if it would do nothing."""
    overrides = {
        name: value
        for name, value in (("strategy", wanted.strategy), ("tolerance", wanted.tolerance))
        if value is not None
    }
    return _response(
        acting,
        await OperatorActions(acting.rebalancer).propose(author.or_named(wanted.author), wanted.reason, overrides),
    )


@router.post("/unload", status_code=201, responses=answers(404, 409, 412))
async def unload(node: TheNode, acting: Acting, author: AuthorOf, may: Permission, wanted: UnloadRequest) -> PlanDetail:
    """Unload all bundles of a namespace or broker in waves, or move them to one broker. Answers at once.

    GET of the plan shows its progress, its `cancel` stops it. With `review` it waits for approval.
    """
    may.require(AccessRole.OPERATOR, None if wanted.broker else wanted.namespace)
    what = Unload(wanted.namespace, wanted.broker, wanted.to, wanted.wave)
    actions = OperatorActions(acting.rebalancer)
    return _response(
        acting, await actions.unload(what, author.or_named(wanted.author), wanted.reason, review=wanted.review)
    )


@router.post("/advice", status_code=201, responses=answers(409, 412))
async def publish_advice(node: TheNode, acting: Acting, wanted: AdviceRequest) -> PlanDetail:
    """Propose advice as a plan that waits for approval. The same advice again changes nothing.

    412: out of bounds, stale, or of another cluster. 409: too much advice waits already.
    """
    settings, advice = node.settings, msgspec.convert(wanted.model_dump(), Advice)
    return _response(acting, await publish(node.plans, advice, settings.cluster, node.world.wall_ms(), settings))


@router.get("/{plan_id}", responses=answers(404))
async def show_plan(node: TheNode, acting: Acting, plan_id: str) -> PlanDetail:
    """Show one plan, with the present status of each move."""
    return _response(acting, await OperatorActions(acting.rebalancer).plan(plan_id))


@router.post("/{plan_id}/approve", responses=answers(404, 409))
async def approve(node: TheNode, acting: Acting, author: AuthorOf, plan_id: str, wanted: StepRequest) -> PlanDetail:
    """Approve a plan: it may run. 409 if another request was faster, or if all its bundles have moved since."""
    return await _act(acting, author, plan_id, PlanAction.APPROVE, wanted)


@router.post("/{plan_id}/reject", responses=answers(404, 409))
async def reject(node: TheNode, acting: Acting, author: AuthorOf, plan_id: str, wanted: StepRequest) -> PlanDetail:
    """Reject a plan: it must not run."""
    return await _act(acting, author, plan_id, PlanAction.REJECT, wanted)


@router.post("/{plan_id}/run", responses=answers(404, 409))
async def run(node: TheNode, acting: Acting, author: AuthorOf, plan_id: str, wanted: StepRequest) -> PlanDetail:
    """Run a plan: the leader begins its moves, within the limits. Bundles that have moved since are skipped."""
    return await _act(acting, author, plan_id, PlanAction.RUN, wanted)


@router.post("/{plan_id}/cancel", responses=answers(404, 409))
async def cancel_plan(node: TheNode, acting: Acting, author: AuthorOf, plan_id: str, wanted: StepRequest) -> PlanDetail:
    """Cancel a plan: no more of its moves begin; those under way are completed."""
    return await _act(acting, author, plan_id, PlanAction.CANCEL, wanted)


@router.post("/{plan_id}/verify", responses=answers(404, 409))
async def verify(node: TheNode, acting: Acting, author: AuthorOf, plan_id: str, wanted: StepRequest) -> PlanDetail:
    """Compare a plan with the present: which of its moves still hold, and how full its brokers are against the
    prediction.
    """
    return _response(acting, await OperatorActions(acting.rebalancer).verify(plan_id, author.or_named(wanted.author)))


@router.post("/{plan_id}/undo", status_code=201, responses=answers(404, 409))
async def undo(node: TheNode, acting: Acting, author: AuthorOf, plan_id: str, wanted: StepRequest) -> PlanDetail:
    """Propose a plan that moves back every bundle that still is where this plan put it; `left_out` lists the others."""
    by = author.or_named(wanted.author)
    return _response(acting, await OperatorActions(acting.rebalancer).undo(plan_id, by, wanted.reason))


@router.post("/{plan_id}/withdraw", responses=answers(404, 409))
async def withdraw(node: TheNode, acting: Acting, author: AuthorOf, plan_id: str, wanted: StepRequest) -> PlanDetail:
    """Withdraw a plan: the leader undoes it at once, except what others have changed since."""
    return await _act(acting, author, plan_id, PlanAction.WITHDRAW, wanted)


async def _act(
    acting: Incarnation, author: Sender, plan_id: str, action: PlanAction, wanted: StepRequest
) -> PlanDetail:
    by = author.or_named(wanted.author)
    return _response(acting, await OperatorActions(acting.rebalancer).act(plan_id, action, by, wanted.reason))
