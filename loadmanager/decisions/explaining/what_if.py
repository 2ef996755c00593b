"""What would be decided: on the recorded input, now, or if brokers, settings, loads or policies were different. Pure.

`decide_again` says whether a recorded decision is reproduced. `what_if` runs the strategy on the model and on the
changed one. A removed broker drains in the model, so that its bundles find a place. New brokers are like the median
one, or have the given capacity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from pydantic import ValidationError

from loadmanager.decisions.codec import BadDecision, given_memory
from loadmanager.decisions.explaining.edits import all_rested, multiplied, with_brokers, with_constraints, with_settings
from loadmanager.decisions.explaining.situation import (
    Situation,
    situation_of,
)
from loadmanager.decisions.record import DecisionRecord, Outcome
from loadmanager.errors import Conflict, Invalid
from loadmanager.model.cluster import ALLOWED, Brokers, ClusterModel
from loadmanager.model.load import CAPACITIES
from loadmanager.model.policies.codec import fold, key_of, named
from loadmanager.model.policies.constraints import Holdings, constraints_for, grouped, with_policies
from loadmanager.model.policies.model import TYPES, Policies, Policy
from loadmanager.model.policies.validation import check_fields, check_name
from loadmanager.settings import Settings
from loadmanager.settings.removed import check_settable
from loadmanager.strategies.rebalancing.decision import Certificate, Decision, Move
from loadmanager.strategies.registry import STRATEGIES
from statechannel.law.record import BrokerId

DIFFERENCES_TOLD = 5
CLOSE = 1e-9
"""Another machine's arithmetic may differ in the last digits."""


class Again(msgspec.Struct, frozen=True):
    """Whether the recorded decision was reproduced; `same` None: it could not be tried, for the reason in `why`."""

    id: str
    same: bool | None
    why: str = ""
    differences: tuple[str, ...] = ()


def decide(situation: Situation) -> Decision:
    """The strategy's decision in this situation. Raises BadDecision if an input is missing."""
    if situation.model is None:
        raise BadDecision(situation.without_model or "the round recorded no model")
    try:
        strategy = STRATEGIES.make(situation.strategy)
    except ValueError as error:
        raise BadDecision(str(error)) from None
    memory = given_memory(situation.memory, strategy)
    return strategy.decide(situation.model, situation.settings, memory)


def decide_again(record: DecisionRecord) -> Again:
    """Run the strategy on exactly its recorded input, and compare."""
    if record.model is not None and record.model.digest != record.digest:
        return Again(record.id, None, "the model in the record is not the model of the decision")
    try:
        again = decide(situation_of(record))
    except BadDecision as error:
        return Again(record.id, None, str(error))
    differences = tuple(_differences(record.decision, again))
    return Again(record.id, not differences, differences=differences[:DIFFERENCES_TOLD])


def _differences(then: Decision, now: Decision) -> list[str]:
    found: list[str] = []
    if then.reason != now.reason:
        found.append(f"reason: {then.reason!r} then, {now.reason!r} now")
    for place in range(max(len(then.moves), len(now.moves))):
        one = then.moves[place] if place < len(then.moves) else None
        other = now.moves[place] if place < len(now.moves) else None
        if one is None or other is None or not _close(one, other):
            found.append(f"move {place + 1}: {_move_text(one)} then, {_move_text(other)} now")
    parts = ("refused", "candidates", "counts", "certificate")
    found += [f"{name} differ" for name in parts if not _close(getattr(then, name), getattr(now, name))]
    return found


def _close(one: object, other: object) -> bool:
    """Whether two values are equal apart from the last digits of numbers."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or abs(one - other) <= CLOSE * max(1.0, abs(one), abs(other))
    a, b = msgspec.to_builtins(one), msgspec.to_builtins(other)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_close(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_close(x, y) for x, y in zip(a, b, strict=True))
    return _close(a, b) if isinstance(a, float) and isinstance(b, float) else a == b


def _move_text(move: Move | None) -> str:
    if move is None:
        return "none"
    return f"{move.bundle} from {move.source} to {move.destination} ({move.reason})"


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
    before_full, after_full = model.brokers.fullness(settings), after.brokers.fullness(settings)
    part = model.brokers.takes_part
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
        mean=after.brokers.mean_usage(settings),
        spread_before=model.brokers.spread(settings),
        spread_after=after.brokers.spread(settings),
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


BROKERS_AT_MOST = 1_000
NEW_NAME = "new-{}:0"


class Edits(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The changes.

    `capacity` is that of each new broker (`cpu` in cores, …; default: the median of all). `loads` multiplies the loads
    of namespaces. `policies` are changed documents by `kind/name`, as in JSON; None: deleted. `rested`: as if no bundle
    had moved lately.
    """

    add_brokers: int = 0
    capacity: Mapping[str, float] = msgspec.field(default_factory=dict)
    remove_brokers: tuple[str, ...] = ()
    settings: Mapping[str, Any] = msgspec.field(default_factory=dict)
    loads: Mapping[str, float] = msgspec.field(default_factory=dict)
    policies: Mapping[str, Any] = msgspec.field(default_factory=dict)
    rested: bool = False


class WhatIf(msgspec.Struct, frozen=True):
    """The decision without and with the changes."""

    at_ms: int
    strategy: str
    changes: tuple[str, ...]
    as_it_is: Projection
    changed: Projection
    notes: tuple[str, ...]


class Preview(msgspec.Struct, frozen=True):
    """A dry run: what a round would do now."""

    at_ms: int
    strategy: str
    digest: str
    projection: Projection


def preview(situation: Situation) -> Preview:
    """The decision in this situation. Raises Conflict if it cannot be computed."""
    model = _model_of(situation)
    return Preview(situation.at_ms, situation.strategy, model.digest, _projected(situation))


def what_if(situation: Situation, edits: Edits, documents: Mapping[str, Policy] | None) -> WhatIf:
    """Both decisions. `documents` are the policies in force.

    None if they are not known: then the hard rules stay, and none apply to new brokers. Raises Invalid for impossible
    changes, Conflict if there is nothing to work with.
    """
    model, notes = _model_of(situation), list[str]()
    settings = _settings(situation.settings, edits.settings)
    changed = _with_loads(model, edits.loads)
    changed = all_rested(changed) if edits.rested else changed
    changed = _with_more(changed, edits)
    changed = _without(changed, edits.remove_brokers, notes)
    if documents is not None and (edits.policies or edits.settings or edits.add_brokers):
        changed = _under(changed, _policies(documents, edits.policies), settings)
    elif edits.policies:
        raise Conflict("the policies of that time are not known here, so you cannot add any")
    elif edits.add_brokers:
        notes.append("the policies of that time are not known here: none applies to the new brokers")
    after = msgspec.structs.replace(
        situation, model=changed, settings=settings, strategy=settings.balancing_strategy, round=None
    )
    return WhatIf(
        at_ms=situation.at_ms,
        strategy=after.strategy,
        changes=tuple(_said(edits)),
        as_it_is=_projected(situation),
        changed=_projected(after),
        notes=tuple(notes),
    )


def _model_of(situation: Situation) -> ClusterModel:
    if situation.model is None:
        raise Conflict(f"there is no model to work with: {situation.without_model or 'the round recorded none'}")
    return situation.model


def _projected(situation: Situation) -> Projection:
    model = _model_of(situation)
    try:
        return projection(model, situation.settings, decide(situation))
    except BadDecision as error:
        raise Conflict(f"the strategy {situation.strategy} cannot be run: {error}") from None


def _settings(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    check_settable(changes)
    try:
        return with_settings(settings, changes)
    except ValidationError as error:
        raise Invalid("; ".join(_line(e["type"], e["loc"], e["msg"]) for e in error.errors())) from None


def _line(kind: str, place: tuple[int | str, ...], message: str) -> str:
    name = ".".join(map(str, place)) or "settings"
    return f"there is no setting {name}" if kind == "extra_forbidden" else f"{name}: {message}"


def _with_loads(model: ClusterModel, loads: Mapping[str, float]) -> ClusterModel:
    for namespace, times in loads.items():
        if not 0 <= times <= 1e6:
            raise Invalid(f"{namespace}: {times:g} times its load is not possible; give a factor of 0 or more")
        if namespace not in model.bundles.namespaces:
            known = ", ".join(model.bundles.namespaces[:5]) or "none"
            raise Invalid(f"no bundle of {namespace} was reported, so its load is not known; reported are: {known}")
        model = multiplied(model, model.bundles.namespace == model.bundles.namespaces.index(namespace), times)
    return model


def _with_more(model: ClusterModel, edits: Edits) -> ClusterModel:
    if not 0 <= edits.add_brokers <= BROKERS_AT_MOST:
        raise Invalid(f"{edits.add_brokers} new brokers: give 0 to {BROKERS_AT_MOST}")
    if unknown := sorted(set(edits.capacity) - set(CAPACITIES)):
        raise Invalid(f"{unknown[0]!r} is not a capacity; there are {', '.join(CAPACITIES)}")
    if any(not value > 0 for value in edits.capacity.values()):
        raise Invalid("a capacity must be above 0")
    if not edits.add_brokers:
        return model
    if not len(model.brokers):
        raise Conflict("there is no broker yet, so the capacity of a usual one is not known")
    count, brokers = edits.add_brokers, model.brokers
    capacity = np.median(brokers.capacity, axis=0)
    for name, value in edits.capacity.items():
        capacity[CAPACITIES.index(name)] = value
    model = with_brokers(model, **_more_columns(brokers, count, capacity))
    constraints = model.constraints
    forbidden = _wider(constraints.forbidden, count, ALLOWED)
    groups = {
        name: None if column is None else _wider(column, count, 0)
        for name, column in (("presence", constraints.presence), ("namespace_here", constraints.namespace_here))
    }
    return with_constraints(model, forbidden=forbidden, **groups)


def _more_columns(brokers: Brokers, count: int, capacity: Any) -> dict[str, Any]:
    def longer(column: Any, value: Any) -> Any:
        return np.concatenate((column, np.full((count, *column.shape[1:]), value, column.dtype)))

    newest = max(brokers.versions, default="")
    return {
        "ids": (*brokers.ids, *(BrokerId(NEW_NAME.format(number), 0) for number in range(1, count + 1))),
        "capacity": np.concatenate((brokers.capacity, np.tile(capacity, (count, 1)))),
        "used": longer(brokers.used, 0.0),
        "known": longer(brokers.known, value=True),
        "draining": longer(brokers.draining, value=False),
        "paused": longer(brokers.paused, value=False),
        "bundles": longer(brokers.bundles, 0),
        "max_bundles": longer(brokers.max_bundles, int(np.sort(brokers.max_bundles)[len(brokers) // 2])),
        "rate_msg_s": longer(brokers.rate_msg_s, 0.0),
        "throughput_bytes_s": longer(brokers.throughput_bytes_s, 0.0),
        "domains": (*brokers.domains, *("",) * count),
        "versions": (*brokers.versions, *(newest,) * count),
        "report_age_s": None if brokers.report_age_s is None else longer(brokers.report_age_s, 0.0),
    }


def _wider(column: Any, count: int, value: int) -> Any:
    return np.concatenate((column, np.full((len(column), count), value, column.dtype)), axis=1)


def _without(model: ClusterModel, names: Iterable[str], notes: list[str]) -> ClusterModel:
    draining = model.brokers.draining.copy()
    rows = {broker.name: row for row, broker in enumerate(model.brokers.ids)}
    for name in names:
        if name not in rows:
            raise Invalid(f"there is no broker {name}; there are {', '.join(rows) or 'none'}")
        row = rows[name]
        draining[row] = True
        reported = int((model.bundles.owner == row).sum())
        silent = int(model.brokers.bundles[row]) - reported
        if silent > 0:
            notes.append(f"{name} holds {silent} bundles that it did not report: they would be placed by lookups")
    return with_brokers(model, draining=draining)


def _policies(documents: Mapping[str, Policy], edits: Mapping[str, Any]) -> Policies:
    """The policies after the changes."""
    values = dict(documents)
    for key, raw in edits.items():
        try:
            kind, name = named(key)
            if raw is None:
                values.pop(key, None)
            else:
                check_name(kind, name)
                policy = values[key_of(kind, name)] = msgspec.convert(raw, TYPES[kind])
                check_fields(policy)
        except (ValueError, msgspec.ValidationError, Invalid) as error:
            raise Invalid(f"policy {key}: {error}") from None
    return fold(values, -1)


def _under(model: ClusterModel, policies: Policies, settings: Settings) -> ClusterModel:
    """The model under these policies; values that brokers declared stay."""
    brokers = with_policies(policies, model.brokers)
    rules = constraints_for(policies, brokers, model.bundles, _holdings(model, policies), settings)
    return msgspec.structs.replace(model, brokers=brokers, constraints=rules)


def _holdings(model: ClusterModel, policies: Policies) -> Holdings:
    """How many bundles of grouped namespaces each broker holds.

    By the whole table as far as the model has it, else by the reported bundles.
    """
    bundles, here, found = model.bundles, model.constraints.namespace_here, dict[str, dict[BrokerId, int]]()
    for at, name in enumerate(bundles.namespaces):
        if name not in grouped(policies.namespaces):
            continue
        mine = bundles.owner[(bundles.namespace == at) & (bundles.owner >= 0)]
        counts = np.bincount(mine, minlength=len(model.brokers))
        if here is not None and here[at].any():
            counts = here[at]
        found[name] = {model.brokers.ids[row]: int(count) for row, count in enumerate(counts) if count > 0}
    return found


def _said(edits: Edits) -> Iterable[str]:
    if edits.add_brokers:
        size = ", ".join(f"{name} {value:g}" for name, value in edits.capacity.items()) or "like the median one"
        yield f"{edits.add_brokers} brokers more ({size})"
    yield from (f"without {name}" for name in edits.remove_brokers)
    yield from (f"{name} = {value}" for name, value in edits.settings.items())
    yield from (f"{times:g} times the load of {namespace}" for namespace, times in edits.loads.items())
    if edits.rested:
        yield "every bundle rested"
    yield from (f"policy {key} {'deleted' if value is None else 'set'}" for key, value in edits.policies.items())
