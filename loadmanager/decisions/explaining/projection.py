"""Presents a decision: moves by name, and every broker before and after. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from loadmanager.decisions.explaining.edits import with_brokers
from loadmanager.decisions.explaining.situation import fullness, mean_usage, spread, taking_part
from loadmanager.decisions.record import DecisionRecord, Outcome
from loadmanager.model.cluster import ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Certificate, Decision, Move


class ExplainedMove(msgspec.Struct, frozen=True):
    """One move; usages as in `rebalancing.decision.Move`. `destination` is empty if a lookup chooses it."""

    bundle: str
    source: str
    destination: str
    reason: str
    stage: str
    load: float
    gain: float
    source_before: float
    source_after: float
    destination_before: float
    destination_after: float
    group: int = 0
    outcome: str = ""
    detail: str = ""


class ExplainedCandidate(msgspec.Struct, frozen=True):
    """A refused move, and the rule that refused it."""

    bundle: str
    source: str
    destination: str
    gain: float
    rule: str
    detail: str


class ExplainedCertificate(msgspec.Struct, frozen=True):
    """A certificate; `ratio` None: nothing had to move but something did, or a better plan may exist."""

    bound: float
    moved: float
    ratio: float | None
    resource: str
    text: str


class ExplainedDecision(msgspec.Struct, frozen=True):
    """A decision, real or hypothetical."""

    reason: str
    moves: tuple[ExplainedMove, ...]
    spread_before: float
    spread_after: float
    certificate: ExplainedCertificate | None
    candidates: tuple[ExplainedCandidate, ...]
    counts: Mapping[str, int]
    refused: tuple[Mapping[str, str], ...]


class ExplainedRecord(msgspec.Struct, frozen=True):
    """A decision record without the columns of its model."""

    id: str
    at_ms: int
    leader: str
    strategy: str
    policies_revision: int
    digest: str
    brokers: int | None
    bundles: int | None
    without_model: str
    memory_lost: str
    settings: Mapping[str, object]
    decision: ExplainedDecision


class ExplainedBroker(msgspec.Struct, frozen=True):
    """A broker's fullest resource before and after the moves (None: not known), and how many bundles go and come."""

    broker: str
    before: float | None
    after: float | None
    takes_part: bool
    taken: int
    given: int


class Projection(msgspec.Struct, frozen=True):
    """A decision, and its effect on a model. `mean` is over the brokers that take part, after the moves."""

    decision: ExplainedDecision
    mean: float
    spread_before: float
    spread_after: float
    load_moved: float
    """Sum over the moves, as fractions of the destinations' capacity."""
    brokers: tuple[ExplainedBroker, ...]


def projection(model: ClusterModel, settings: Settings, decision: Decision) -> Projection:
    """The effect of the decision's moves on the model."""
    after = moved(model, decision.moves)
    before_full, after_full = fullness(model.brokers, settings), fullness(after.brokers, settings)
    part = taking_part(model.brokers)
    names = [broker.name for broker in model.brokers.ids]
    taken = [sum(move.source.name == name for move in decision.moves) for name in names]
    coming = [move.destination.name for move in decision.moves if move.destination is not None]
    brokers = tuple(
        ExplainedBroker(
            name,
            float(before_full[at]) if model.brokers.known[at] else None,
            float(after_full[at]) if model.brokers.known[at] else None,
            bool(part[at]),
            taken[at],
            coming.count(name),
        )
        for at, name in enumerate(names)
    )
    return Projection(
        decision=decision_shown(decision),
        mean=mean_usage(after.brokers, settings),
        spread_before=spread(model.brokers, settings),
        spread_after=spread(after.brokers, settings),
        load_moved=sum(move.load for move in decision.moves),
        brokers=brokers,
    )


def moved(model: ClusterModel, moves: Sequence[Move]) -> ClusterModel:
    """The model after the moves; the load of moves without a destination is removed."""
    rows = {bundle: row for row, bundle in enumerate(model.bundles.ids)}
    used, at = model.brokers.used.copy(), model.brokers.rows
    for move in moves:
        row = rows.get(move.bundle)
        if row is None:
            continue
        load = model.bundles.load[row]
        used[at[move.source]] = np.maximum(0.0, used[at[move.source]] - load)
        if move.destination is not None:
            used[at[move.destination]] += load
    return with_brokers(model, used=used)


def decision_shown(decision: Decision, outcomes: Sequence[Outcome] = ()) -> ExplainedDecision:
    """The decision with names in place of ids."""
    known = [*outcomes, *[None] * (len(decision.moves) - len(outcomes))]
    return ExplainedDecision(
        reason=decision.reason,
        moves=tuple(_move(move, outcome) for move, outcome in zip(decision.moves, known, strict=False)),
        spread_before=decision.spread_before,
        spread_after=decision.spread_after,
        certificate=None if decision.certificate is None else certificate_shown(decision.certificate),
        candidates=tuple(
            ExplainedCandidate(str(c.bundle), c.source.name, c.destination.name, c.gain, c.rule, c.detail)
            for c in decision.candidates
        ),
        counts=dict(decision.counts),
        refused=tuple({"subject": r.subject, "rule": r.rule, "detail": r.detail} for r in decision.refused),
    )


def record_shown(record: DecisionRecord) -> ExplainedRecord:
    """The record without the columns of its model."""
    model = record.model
    return ExplainedRecord(
        id=record.id,
        at_ms=record.at_ms,
        leader=record.leader.name,
        strategy=record.strategy,
        policies_revision=record.policies_revision,
        digest=record.digest,
        brokers=None if model is None else len(model.brokers),
        bundles=None if model is None else len(model.bundles),
        without_model=record.without_model,
        memory_lost=record.memory.lost,
        settings=record.settings,
        decision=decision_shown(record.decision, record.outcomes),
    )


def _move(move: Move, outcome: Outcome | None) -> ExplainedMove:
    return ExplainedMove(
        bundle=str(move.bundle),
        source=move.source.name,
        destination="" if move.destination is None else move.destination.name,
        reason=move.reason,
        stage=move.stage.value,
        load=move.load,
        gain=move.gain,
        source_before=move.source_before,
        source_after=move.source_after,
        destination_before=move.destination_before,
        destination_after=move.destination_after,
        group=move.group,
        outcome="" if outcome is None else outcome.outcome,
        detail="" if outcome is None else outcome.detail,
    )


def certificate_shown(found: Certificate) -> ExplainedCertificate:
    """The certificate, with a ratio only if it is finite."""
    ratio = found.ratio if np.isfinite(found.ratio) else None
    return ExplainedCertificate(found.bound, found.moved, ratio, found.resource, found.text)
