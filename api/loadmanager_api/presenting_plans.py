"""Fills the shapes of `plan_schemas.py`."""

from __future__ import annotations

from collections import Counter
from math import isfinite

from loadmanager.leader.rebalancing.operating import Operating
from loadmanager.leader.rebalancing.pausing import Paused
from loadmanager.leader.rebalancing.plan_model import Figures, Outcome, Plan, PlannedMove, Verification
from loadmanager.leader.rebalancing.plans import OPEN, By, allowed
from loadmanager.leader.rebalancing.standing import LastRound, Standing
from loadmanager.strategies.rebalancing.decision import Certificate
from loadmanager_api.plan_schemas import (
    BalancingShown,
    CertificateShown,
    FiguresShown,
    InFlightShown,
    LimitsShown,
    PauseShown,
    PlannedMoveShown,
    PlanShown,
    PlanSummary,
    RoundMoveShown,
    RoundShown,
    StepShown,
    VerificationShown,
)


def summary_shown(desk: Operating, plan: Plan) -> PlanSummary:
    """In one line."""
    return PlanSummary(
        id=plan.id,
        kind=plan.kind,
        state=plan.state,
        proposed_ms=plan.proposed_ms,
        author=plan.author,
        reason=plan.reason,
        moves=len(plan.moves),
        counts={became.value: count for became, count in Counter(o.became for o in desk.progress(plan)).items()},
        undoes=plan.undoes,
    )


def plan_shown(desk: Operating, plan: Plan) -> PlanShown:
    """All of it."""
    outcomes = desk.progress(plan)
    return PlanShown(
        **summary_shown(desk, plan).model_dump(),
        strategy=plan.strategy,
        settings=dict(plan.settings),
        policies_revision=plan.policies,
        cause=plan.cause,
        wave=plan.wave,
        may=allowed(plan.state, By.OPERATOR) + (["undo"] if "undo" in allowed(plan.state, By.LEADER) else []),
        before=_figures(plan.before),
        predicted=_figures(plan.predicted),
        certificate=_certificate(plan.certificate),
        left_out=dict(plan.left_out),
        steps=[StepShown(action=s.action, at_ms=s.at_ms, author=s.author, reason=s.reason) for s in plan.steps],
        planned=[_move(plan, move, outcome) for move, outcome in zip(plan.moves, outcomes, strict=True)],
        verification=_verification(plan.verification),
    )


def balancing_shown(desk: Operating, found: Standing) -> BalancingShown:
    """Where balance stands."""
    limits = found.limits
    return BalancingShown(
        balancing=found.balancing,
        review=found.review,
        strategy=found.strategy,
        tolerance=found.tolerance,
        spread=found.spread,
        usages=dict(found.usages),
        paused=pause_shown(found.paused, changed=False),
        limits=LimitsShown(total=limits.total, per_broker=limits.per_broker, per_namespace=limits.per_namespace),
        in_flight=InFlightShown(
            total=found.in_flight,
            by_broker=dict(found.in_flight_by_broker),
            by_namespace=dict(found.in_flight_by_namespace),
        ),
        held=list(found.held),
        open_plans=[summary_shown(desk, plan) for plan in desk.plans() if plan.state in OPEN],
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
        moves=[
            RoundMoveShown(
                bundle=str(move.bundle),
                source=move.source.name,
                destination=None if move.destination is None else move.destination.name,
                stage=move.stage,
                reason=move.reason,
                outcome=outcome.outcome,
                detail=outcome.detail,
            )
            for move, outcome in last.moves
        ],
    )


def _move(plan: Plan, move: PlannedMove, outcome: Outcome) -> PlannedMoveShown:
    return PlannedMoveShown(
        bundle=str(move.bundle),
        source=move.source.name,
        destination=None if move.destination is None else move.destination.name,
        stage=move.stage,
        reason=move.reason or plan.reason,
        load=move.load,
        gain=move.gain,
        group=move.group,
        became=outcome.became,
        detail=outcome.detail,
    )


def _certificate(found: Certificate | None) -> CertificateShown | None:
    if found is None:
        return None
    ratio = found.ratio if isfinite(found.ratio) else None
    return CertificateShown(text=found.text, resource=found.resource, bound=found.bound, moved=found.moved, ratio=ratio)


def _figures(found: Figures) -> FiguresShown:
    return FiguresShown(usages=dict(found.usages), spread=found.spread)


def _verification(found: Verification | None) -> VerificationShown | None:
    if found is None:
        return None
    return VerificationShown(
        at_ms=found.at_ms,
        holding=found.holding,
        moved_on=dict(found.moved_on),
        actual=None if found.actual is None else _figures(found.actual),
    )
