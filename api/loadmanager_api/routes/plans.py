"""`/v1/plans`: changes that are looked at before they are made: moves of the strategy, bulk unloads, advice of the load
history. Any broker answers; the leader runs them. Nothing is done because it was published.

`/v1/balancing` says where balance stands, and pauses and resumes it.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, Field

from loadmanager.broker.node import Incarnation, Node
from loadmanager.decisions.explaining.what_if import certificate_shown
from loadmanager.leader.advice.core import told
from loadmanager.leader.plans.advice import Advice, ChangeSettings, CutBundles, Effect, MoveBundles
from loadmanager.leader.plans.plan import Plan, PlanKind, PlannedMove, PlanState
from loadmanager.leader.plans.store import publish
from loadmanager.leader.plans.table import OPEN, PlanAction, offered
from loadmanager.leader.rebalancing import actions
from loadmanager.leader.rebalancing.actions import OperatorActions, Paused, Unload
from loadmanager.leader.rebalancing.rounds import Rebalancer
from loadmanager.leader.rebalancing.status import BalanceStatus, LastRound, balance_status
from loadmanager.model.policies.model import AccessRole
from loadmanager.strategies.rebalancing.decision import Certificate, Move
from loadmanager_api.access.access import May
from loadmanager_api.access.sender import Sender
from loadmanager_api.openapi import answers
from loadmanager_api.paging import Cursor, Limit, Paging
from loadmanager_api.routing import Acting, AuthorOf, ControlRouter, Permission, TheNode
from loadmanager_api.shapes import STRICT, WHOLE, Shown, Whole

LongText = Annotated[str, Field(max_length=2_000)]
Name = Annotated[str, Field(min_length=1, max_length=300)]
Scalar = bool | int | float | str | None
Ms = Annotated[int, Field(strict=True, ge=0, le=1 << 53), WHOLE]
Number = Annotated[float, Field(allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = STRICT


class SettingWished(_Strict):
    """One setting by our name and in our unit: its value in the data, and the proposed one."""

    name: Name
    was: Scalar
    to: Scalar


class SettingsWished(_Strict):
    """Settings to change together."""

    type: Literal["settings"]
    changes: Annotated[list[SettingWished], Field(max_length=100)]


class CutWished(_Strict):
    """A bundle to cut into equal ranges."""

    bundle: Name
    parts: Whole


class SplitsWished(_Strict):
    """More bundles for a namespace. `was` is their present number."""

    type: Literal["splits"]
    namespace: Name
    was: Whole
    cuts: Annotated[list[CutWished], Field(max_length=1_000)]


class MoveWished(_Strict):
    """One move: a bundle, and its brokers by name."""

    bundle: Name
    source: Name
    destination: Name


class MovesWished(_Strict):
    """Moves to make before a peak, which begins at `not_after_ms`."""

    type: Literal["moves"]
    moves: Annotated[list[MoveWished], Field(max_length=1_000)]
    not_before_ms: Ms
    not_after_ms: Ms


class ExpectedWished(_Strict):
    """The expected improvement, `before - after`. It lies between `low` and `high` with 95 % confidence."""

    measure: Literal["spread", "above_tolerance"]
    before: Number
    after: Number
    low: Number
    high: Number


class ProvenanceWished(_Strict):
    """Where the advice comes from: cluster, time of the data, job, release, and versions of the tables."""

    cluster: Name
    data_from_ms: Ms
    data_to_ms: Ms
    job: Name
    job_version: Name
    method: Name
    tables: dict[str, Whole] = {}


class AdviceWished(_Strict):
    """Advice to publish. `id` may be left out: it is a digest of the rest."""

    change: Annotated[SettingsWished | SplitsWished | MovesWished, Field(discriminator="type")]
    reason: LongText
    expected: ExpectedWished
    provenance: ProvenanceWished
    expires_ms: Ms
    id: str = ""
    format: Whole = 1
    type: Literal["advice"] = "advice"


class EffectShown(BaseModel):
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


class AdviceShown(BaseModel):
    """What a plan is made of, and what it promises. Its effect is compared with the time `baseline`, before it."""

    change: dict[str, Any]
    expected: dict[str, Any]
    provenance: dict[str, Any]
    expires_ms: int
    baseline: dict[str, Any] | None
    effect: EffectShown | None


Text = Annotated[str, Field(max_length=500)]


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


class CertificateShown(Shown):
    """The least load that any algorithm has to move, and the load that this plan moves.

    `ratio` compares the two for the whole plan. It is null if nothing had to move, or if a better plan may exist.
    """

    text: str
    resource: str
    bound: float
    moved: float
    ratio: float | None


class FiguresShown(Shown):
    """The usage of each broker (its fullest resource, as a fraction), and their spread (max/mean - 1)."""

    usages: dict[str, float]
    spread: float


class StepShown(Shown):
    """An action that changed the state of the plan."""

    action: str
    at_ms: int
    author: str
    reason: str


class VerificationShown(Shown):
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


class LimitsShown(Shown):
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


NAMED = 3
"""How many bundles a line names."""


def summary_shown(rebalancer: Rebalancer, plan: Plan) -> PlanSummary:
    """A plan in one line."""
    statuses = Counter(outcome.status for outcome in rebalancer.plans.progress(plan))
    return PlanSummary(
        id=plan.id,
        kind=plan.kind,
        state=plan.state,
        proposed_ms=plan.proposed_ms,
        author=plan.author,
        reason=plan.reason,
        moves=len(plan.moves),
        counts={status.value: count for status, count in statuses.items()},
        undoes=plan.undoes,
        what=in_words(plan),
        may=offered(plan),
        waiting=rebalancer.waiting.get(plan.id, ""),
    )


def plan_shown(rebalancer: Rebalancer, plan: Plan) -> PlanShown:
    """A whole plan."""
    outcomes = rebalancer.plans.progress(plan)
    return PlanShown(
        **summary_shown(rebalancer, plan).model_dump(),
        strategy=plan.strategy,
        settings=dict(plan.settings),
        policies_revision=plan.policies,
        cause=plan.cause,
        wave=plan.wave,
        before=FiguresShown.model_validate(plan.before),
        predicted=FiguresShown.model_validate(plan.predicted),
        certificate=_certificate(plan.certificate),
        left_out=dict(plan.left_out),
        steps=[StepShown.model_validate(step) for step in plan.steps],
        planned=[_move(move, plan.reason, found.status, found.detail) for move, found in plan.pairs(outcomes)],
        verification=None if plan.verification is None else VerificationShown.model_validate(plan.verification),
        advice=None if plan.advice is None else _advice(plan, plan.advice),
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
            shown = [f"{m.bundle} to {m.destination.name if m.destination else 'nobody'}" for m in plan.moves[:NAMED]]
            return f"move {_some(shown, len(plan.moves))}"


def _some(texts: list[str], count: int) -> str:
    return ", ".join(texts) + (f" and {count - len(texts)} more" if count > len(texts) else "")


def _advice(plan: Plan, advice: Advice) -> AdviceShown:
    return AdviceShown(
        change=msgspec.to_builtins(advice.change),
        expected=msgspec.to_builtins(advice.expected),
        provenance=msgspec.to_builtins(advice.provenance),
        expires_ms=advice.expires_ms,
        baseline=None if plan.baseline is None else msgspec.to_builtins(plan.baseline),
        effect=None if plan.effect is None else _effect(plan.effect),
    )


def _effect(found: Effect) -> EffectShown:
    return EffectShown(
        measure=found.measure,
        before=found.before,
        after=found.after,
        change=found.change,
        bound=found.bound,
        harm=found.harm,
        measured_from=_utc(found.period.begin_ms),
        measured_to=_utc(found.period.end_ms),
        rounds=found.period.rounds,
        text=told(found),
    )


def _utc(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def balancing_shown(rebalancer: Rebalancer, found: BalanceStatus) -> BalancingShown:
    """The status of balancing, as shown."""
    return BalancingShown(
        balancing=found.balancing,
        review=found.review,
        strategy=found.strategy,
        tolerance=found.tolerance,
        spread=found.spread,
        usages=dict(found.usages),
        paused=pause_shown(found.paused, changed=False),
        limits=LimitsShown.model_validate(found.limits),
        in_flight=InFlightShown(
            total=found.in_flight,
            by_broker=dict(found.in_flight_by_broker),
            by_namespace=dict(found.in_flight_by_namespace),
        ),
        held=list(found.held),
        open_plans=[summary_shown(rebalancer, plan) for plan in rebalancer.plans.all() if plan.state in OPEN],
        last=None if found.last is None else _round(found.last),
    )


def pause_shown(paused: Paused, *, changed: bool) -> PauseShown:
    """All that is paused."""
    return PauseShown(
        changed=changed,
        cluster=paused.cluster,
        reason=paused.reason,
        namespaces=list(paused.namespaces),
        brokers=list(paused.brokers),
    )


def _round(last: LastRound) -> RoundShown:
    decision = last.decision
    return RoundShown(
        id=last.id,
        at_ms=last.at_ms,
        leader=last.leader,
        strategy=last.strategy,
        reason=decision.reason,
        spread_before=decision.spread_before,
        spread_after=decision.spread_after,
        certificate=_certificate(decision.certificate),
        moves=[_move(move, "", outcome.outcome, outcome.detail) for move, outcome in last.moves],
    )


def _move(move: Move | PlannedMove, reason: str, outcome: str, detail: str) -> MoveShown:
    """One move; `reason` is used where the move has none of its own."""
    return MoveShown(
        bundle=str(move.bundle),
        source=move.source.name,
        destination=None if move.destination is None else move.destination.name,
        stage=move.stage,
        reason=move.reason or reason,
        load=move.load,
        gain=move.gain,
        group=move.group,
        outcome=outcome,
        detail=detail,
    )


def _certificate(found: Certificate | None) -> CertificateShown | None:
    return None if found is None else CertificateShown.model_validate(certificate_shown(found))


balancing_router = ControlRouter(prefix="/v1/balancing", tags=["balance"])


@balancing_router.get("")
async def show_balancing(node: TheNode, acting: Acting) -> BalancingShown:
    """Show the last round's decision, moves under way, pauses, what is held back, and how even the brokers are."""
    rebalancer = acting.rebalancer
    status = await balance_status(rebalancer, node.decisions, node.settings.advertised)
    return balancing_shown(rebalancer, status)


@balancing_router.post("/pause", responses=answers(404, 409, 412))
async def pause(node: TheNode, acting: Acting, author: AuthorOf, may: Permission, wish: PauseWish) -> PauseShown:
    """Pause automatic moves and moves of plans: in the cluster, in a namespace, or from and to a broker."""
    may.require(AccessRole.OPERATOR, None if wish.broker else wish.namespace)
    subject = actions.Subject(wish.namespace, wish.broker)
    changed = await actions.pause(node.policies, subject, author.or_named(wish.author), wish.reason)
    return _paused(node, may, changed=changed)


@balancing_router.post("/resume", responses=answers(409, 412))
async def resume(node: TheNode, acting: Acting, author: AuthorOf, may: Permission, wish: PauseWish) -> PauseShown:
    """End a pause: the cluster's, or that of the given namespace or broker. Other pauses stay."""
    may.require(AccessRole.OPERATOR, None if wish.broker else wish.namespace)
    subject = actions.Subject(wish.namespace, wish.broker)
    changed = await actions.resume(node.policies, subject, author.or_named(wish.author), wish.reason)
    return _paused(node, may, changed=changed)


def _paused(node: Node, may: May, *, changed: bool) -> PauseShown:
    """What is paused, without namespaces that the sender may not view."""
    found = actions.paused(node.policies.current())
    seen = tuple(name for name in found.namespaces if may.has(AccessRole.VIEWER, name))
    return pause_shown(msgspec.structs.replace(found, namespaces=seen), changed=changed)


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
    return [
        summary_shown(acting.rebalancer, plan) for plan in paging.of(found, _newest_first, limit, cursor, r"\d+\..+")
    ]


def _newest_first(plan: Plan) -> str:
    return f"{2**53 - plan.proposed_ms}.{plan.id}"


@router.post("", status_code=201, responses=answers(409, 412))
async def propose(node: TheNode, acting: Acting, author: AuthorOf, wish: ProposalWish) -> PlanShown:
    """Propose what the strategy would do now, as a plan that waits for approval. 409 if it would do nothing."""
    overrides = {
        name: value for name, value in (("strategy", wish.strategy), ("tolerance", wish.tolerance)) if value is not None
    }
    return _shown(
        acting, await OperatorActions(acting.rebalancer).propose(author.or_named(wish.author), wish.reason, overrides)
    )


@router.post("/unload", status_code=201, responses=answers(404, 409, 412))
async def unload(node: TheNode, acting: Acting, author: AuthorOf, may: Permission, wish: UnloadWish) -> PlanShown:
    """Unload all bundles of a namespace or broker in waves, or move them to one broker. Answers at once.

    GET of the plan shows its progress, its `cancel` stops it. With `review` it waits for approval.
    """
    may.require(AccessRole.OPERATOR, None if wish.broker else wish.namespace)
    what = Unload(wish.namespace, wish.broker, wish.to, wish.wave)
    actions = OperatorActions(acting.rebalancer)
    return _shown(acting, await actions.unload(what, author.or_named(wish.author), wish.reason, review=wish.review))


@router.post("/advice", status_code=201, responses=answers(409, 412))
async def publish_advice(node: TheNode, acting: Acting, wish: AdviceWished) -> PlanShown:
    """Propose advice as a plan that waits for approval. The same advice again changes nothing.

    412: out of bounds, stale, or of another cluster. 409: too much advice waits already.
    """
    settings, advice = node.settings, msgspec.convert(wish.model_dump(), Advice)
    return _shown(acting, await publish(node.plans, advice, settings.cluster, node.world.wall_ms(), settings))


@router.get("/{plan_id}", responses=answers(404))
async def show_plan(node: TheNode, acting: Acting, plan_id: str) -> PlanShown:
    """Show one plan, with the present status of each move."""
    return _shown(acting, await OperatorActions(acting.rebalancer).plan(plan_id))


@router.post("/{plan_id}/approve", responses=answers(404, 409))
async def approve(node: TheNode, acting: Acting, author: AuthorOf, plan_id: str, wish: Wish) -> PlanShown:
    """Approve a plan: it may run. 409 if somebody else was faster, or if all its bundles have moved since."""
    return await _act(acting, author, plan_id, PlanAction.APPROVE, wish)


@router.post("/{plan_id}/reject", responses=answers(404, 409))
async def reject(node: TheNode, acting: Acting, author: AuthorOf, plan_id: str, wish: Wish) -> PlanShown:
    """Reject a plan: it must not run."""
    return await _act(acting, author, plan_id, PlanAction.REJECT, wish)


@router.post("/{plan_id}/run", responses=answers(404, 409))
async def run(node: TheNode, acting: Acting, author: AuthorOf, plan_id: str, wish: Wish) -> PlanShown:
    """Run a plan: the leader begins its moves, within the limits. Bundles that have moved since are skipped."""
    return await _act(acting, author, plan_id, PlanAction.RUN, wish)


@router.post("/{plan_id}/cancel", responses=answers(404, 409))
async def cancel_plan(node: TheNode, acting: Acting, author: AuthorOf, plan_id: str, wish: Wish) -> PlanShown:
    """Cancel a plan: no more of its moves begin; those under way are completed."""
    return await _act(acting, author, plan_id, PlanAction.CANCEL, wish)


@router.post("/{plan_id}/verify", responses=answers(404, 409))
async def verify(node: TheNode, acting: Acting, author: AuthorOf, plan_id: str, wish: Wish) -> PlanShown:
    """Compare a plan with the present: which of its moves still hold, and how full its brokers are against the
    prediction.
    """
    return _shown(acting, await OperatorActions(acting.rebalancer).verify(plan_id, author.or_named(wish.author)))


@router.post("/{plan_id}/undo", status_code=201, responses=answers(404, 409))
async def undo(node: TheNode, acting: Acting, author: AuthorOf, plan_id: str, wish: Wish) -> PlanShown:
    """Propose a plan that moves back every bundle that still is where this plan put it; `left_out` lists the others."""
    by = author.or_named(wish.author)
    return _shown(acting, await OperatorActions(acting.rebalancer).undo(plan_id, by, wish.reason))


@router.post("/{plan_id}/withdraw", responses=answers(404, 409))
async def withdraw(node: TheNode, acting: Acting, author: AuthorOf, plan_id: str, wish: Wish) -> PlanShown:
    """Withdraw a plan: the leader undoes it at once, except what somebody else has changed since."""
    return await _act(acting, author, plan_id, PlanAction.WITHDRAW, wish)


async def _act(acting: Incarnation, author: Sender, plan_id: str, action: PlanAction, wish: Wish) -> PlanShown:
    by = author.or_named(wish.author)
    return _shown(acting, await OperatorActions(acting.rebalancer).act(plan_id, action, by, wish.reason))


def _shown(acting: Incarnation, plan: Plan) -> PlanShown:
    return plan_shown(acting.rebalancer, plan)
