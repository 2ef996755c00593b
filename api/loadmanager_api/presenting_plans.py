"""Fills the shapes of `plan_schemas.py`."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

import msgspec

from loadmanager.decisions.explaining.projection import certificate_shown
from loadmanager.leader.advice.core import told
from loadmanager.leader.plans.advice import Advice, ChangeSettings, CutBundles, Effect, MoveBundles
from loadmanager.leader.plans.plan import Figures, Plan, PlannedMove, Verification
from loadmanager.leader.plans.table import OPEN, offered
from loadmanager.leader.rebalancing.actions import Paused
from loadmanager.leader.rebalancing.rounds import Rebalancer
from loadmanager.leader.rebalancing.status import BalanceStatus, LastRound
from loadmanager.strategies.rebalancing.decision import Certificate, Move
from loadmanager_api.advice_schemas import AdviceShown, EffectShown
from loadmanager_api.plan_schemas import (
    BalancingShown,
    CertificateShown,
    FiguresShown,
    InFlightShown,
    LimitsShown,
    MoveShown,
    PauseShown,
    PlanShown,
    PlanSummary,
    RoundShown,
    StepShown,
    VerificationShown,
)

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
        before=_figures(plan.before),
        predicted=_figures(plan.predicted),
        certificate=_certificate(plan.certificate),
        left_out=dict(plan.left_out),
        steps=[StepShown(action=s.action, at_ms=s.at_ms, author=s.author, reason=s.reason) for s in plan.steps],
        planned=[_move(move, plan.reason, found.status, found.detail) for move, found in plan.pairs(outcomes)],
        verification=_verification(plan.verification),
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
    return None if found is None else CertificateShown(**msgspec.structs.asdict(certificate_shown(found)))


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
