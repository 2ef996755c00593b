"""Answers `explain BROKER`: how full it is and of what, and why no (more) bundles were moved from or to it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from loadmanager.decisions.explaining.bundle import (
    NO_ROUND,
    PLAN,
    Load,
    Obstacle,
    RoundSaid,
    judgement_of,
    refused_candidate,
    round_said,
    rule_text,
    stand_in,
    whither,
    why_not,
)
from loadmanager.decisions.explaining.situation import Situation
from loadmanager.model.cluster import FREE, UNITS, UNLIMITED, ClusterModel
from loadmanager.model.load import RESOURCES
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision, percent

HELD_TOLD = 10
EQUAL = 1e-9
"""Usages within this are equal: sums of floating point numbers differ in their last digits."""


class BundleShare(msgspec.Struct, frozen=True):
    """A reported bundle of a broker: its part of the broker, and why it stays."""

    bundle: str
    usage: float
    rule: str
    sentence: str


class BrokerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `explain BROKER`."""

    broker: str
    at_ms: int
    answer: str
    usage: float | None = None
    mean: float = 0.0
    round: RoundSaid | None = None
    loads: tuple[Load, ...] = ()
    bundles: int = 0
    max_bundles: int | None = None
    held: tuple[BundleShare, ...] = ()
    taken: tuple[str, ...] = ()
    """The round's moves away from it."""
    given: tuple[str, ...] = ()
    not_taken: tuple[Obstacle, ...] = ()
    """Why nothing (more) was moved away from it."""
    not_given: tuple[Obstacle, ...] = ()
    in_flight: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def explain_broker(situation: Situation, name: str) -> BrokerAnswer | None:
    """The answer; None if the situation has no such broker."""
    model, at = situation.model, situation.names.get(name)
    if model is None:
        return _by_decision_alone(situation, name)
    if at is None:
        return None
    full = float(model.brokers.fullness(situation.settings)[at])
    mean = model.brokers.mean_usage(situation.settings)
    taken, given = _moves(situation, name)
    not_taken = tuple(_not_taken(situation, model, at)) if not taken else ()
    not_given = tuple(_not_given(situation, model, at)) if not given else ()
    known, most = bool(model.brokers.known[at]), int(model.brokers.max_bundles[at])
    leaving = (model.bundles.owner == at) & model.bundles.in_flight
    return BrokerAnswer(
        broker=name,
        at_ms=situation.at_ms,
        answer=_answer(name, full if known else None, mean, (taken, given), (not_taken, not_given)),
        usage=full if known else None,
        mean=mean,
        round=round_said(situation),
        loads=_loads(model, situation.settings, at),
        bundles=int(model.brokers.bundles[at]),
        max_bundles=None if most == UNLIMITED else most,
        held=_held(situation, model, at),
        taken=taken,
        given=given,
        not_taken=not_taken,
        not_given=not_given,
        in_flight=tuple(str(model.bundles.ids[row]) for row in np.flatnonzero(leaving).tolist()),
        policies=_policies(model, at),
        notes=tuple(stand_in(situation) if situation.round else [NO_ROUND]),
    )


def _by_decision_alone(situation: Situation, name: str) -> BrokerAnswer:
    taken, given = _moves(situation, name)
    why = situation.without_model or "the round recorded none"
    return BrokerAnswer(
        broker=name,
        at_ms=situation.at_ms,
        answer=f"the data of the round on {name} is not available ({why})",
        round=round_said(situation),
        taken=taken,
        given=given,
    )


def _moves(situation: Situation, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The round's moves from the broker, and those to it."""
    if situation.round is None:
        return (), ()
    moves = situation.round.decision.moves
    taken = tuple(f"{m.bundle} to {whither(m)}: {m.reason}" for m in moves if m.source.name == name)
    coming = [m for m in moves if m.destination is not None and m.destination.name == name]
    return taken, tuple(f"{m.bundle} from {m.source.name}: {m.reason}" for m in coming)


def _answer(
    name: str,
    full: float | None,
    mean: float,
    moves: tuple[tuple[str, ...], tuple[str, ...]],
    why: tuple[tuple[Obstacle, ...], tuple[Obstacle, ...]],
) -> str:
    if full is None:
        return f"{name} has reported no fresh load: it neither gives nor takes"
    said = [f"{name} is {percent(full)} full, the brokers that take part {percent(mean)} on average"]
    (taken, given), (not_taken, not_given) = moves, why
    if taken:
        said.append(f"{len(taken)} bundles were taken from it")
    elif full > mean and not_taken:
        said.append(f"nothing was taken from it: {not_taken[0].sentence}")
    if given:
        said.append(f"{len(given)} were given to it")
    elif full <= mean and not_given:
        said.append(f"nothing was given to it: {not_given[0].sentence}")
    return "; ".join(said)


def _loads(model: ClusterModel, settings: Settings, at: int) -> tuple[Load, ...]:
    brokers, bundles = model.brokers, model.bundles
    weighted = brokers.usages(settings)[at]
    reported = bundles.load[bundles.owner == at].sum(axis=0)
    found: list[Load] = []
    for resource, (name, unit) in enumerate(zip(RESOURCES, UNITS, strict=True)):
        used, capacity = float(brokers.used[at, resource]), float(brokers.capacity[at, resource])
        finite = bool(np.isfinite(capacity))
        if used <= 0 and not finite:
            continue
        foreign = max(0.0, used - float(reported[resource]))
        found.append(
            Load(name, used, unit, float(weighted[resource]) if finite else None, capacity if finite else None, foreign)
        )
    return tuple(found)


def _held(situation: Situation, model: ClusterModel, at: int) -> tuple[BundleShare, ...]:
    """Its hottest bundles, each with the strongest reason why it stays."""
    rows = np.flatnonzero(model.bundles.owner == at)
    weight = model.brokers.usages(situation.settings)[at]
    used = model.brokers.used[at]
    per_load = np.divide(weight, used, out=np.zeros(len(used)), where=used > 0)
    part = (model.bundles.load[rows] * per_load).max(axis=1, initial=0.0)
    found: list[BundleShare] = []
    for index in np.argsort(-part, kind="stable")[:HELD_TOLD].tolist():
        row = int(rows[index])
        bundle = model.bundles.ids[row]
        reasons = why_not(situation, bundle, judgement_of(situation, row))
        moved = situation.round is not None and any(m.bundle == bundle for m in situation.round.decision.moves)
        rule, sentence = ("moved", "the round moved it") if moved else ("", "")
        if not moved and reasons:
            rule, sentence = reasons[0].rule, reasons[0].sentence
        found.append(BundleShare(str(bundle), float(part[index]), rule, sentence))
    return tuple(found)


def _not_taken(situation: Situation, model: ClusterModel, at: int) -> Iterator[Obstacle]:
    name = model.brokers.ids[at].name
    yield from _aside(model, at)
    decision = situation.round.decision if situation.round else None
    if decision is not None:
        yield from _said_of(decision, name)
    yield from _in_balance(situation, model, at, above=True)
    if decision is not None:
        mine = [each for each in decision.candidates if each.source.name == name]
        for each in mine:
            found = refused_candidate(each)
            yield msgspec.structs.replace(found, sentence=f"{each.bundle} {found.sentence}")
    if not (model.bundles.owner == at).any():
        sentence = "it reported no bundle that could go" if model.brokers.bundles[at] else "it holds no bundle"
        yield Obstacle("no bundles", sentence)
    if decision is not None:
        yield Obstacle("the round", decision.reason)


def _not_given(situation: Situation, model: ClusterModel, at: int) -> Iterator[Obstacle]:
    brokers, name = model.brokers, model.brokers.ids[at].name
    if brokers.draining[at]:
        yield Obstacle("draining", f"{name} drains: it gives everything away and takes nothing", ("the drain ends",))
    yield from _aside(model, at)
    if brokers.bundles[at] >= brokers.max_bundles[at]:
        yield Obstacle("full", f"it has {int(brokers.max_bundles[at])} bundles, as many as it may have")
    barred = _barring(model, at)
    if barred:
        rule, count = max(barred.items(), key=lambda item: item[1])
        yield Obstacle("policy", f"{rule} bars it for {count} of {len(model.bundles)} reported bundles")
    decision = situation.round.decision if situation.round else None
    if decision is not None:
        yield from _said_of(decision, name)
        here = [each for each in decision.candidates if each.destination.name == name]
        yield from (
            Obstacle(c.rule, f"{c.bundle} of {c.source.name} did not come: {c.rule} ({c.detail})") for c in here
        )
    yield from _in_balance(situation, model, at, above=False)
    if decision is not None:
        yield Obstacle("the round", decision.reason)


def _aside(model: ClusterModel, at: int) -> Iterator[Obstacle]:
    name = model.brokers.ids[at].name
    if model.brokers.paused[at]:
        yield Obstacle("paused", f"automatic decisions leave {name} alone: it is paused", (f"{name} is resumed",))
    if not model.brokers.known[at]:
        yield Obstacle("no load data", f"{name} has reported no fresh load", ("it reports again",))


def _said_of(decision: Decision, name: str) -> Iterator[Obstacle]:
    for each in decision.refused:
        if each.subject == name or each.subject.rpartition("#")[0] == name:
            yield Obstacle(
                each.rule, f"the round left it out: {each.rule}" + (f" ({each.detail})" if each.detail else "")
            )


def _in_balance(situation: Situation, model: ClusterModel, at: int, *, above: bool) -> Iterator[Obstacle]:
    """Compare it with the others; yields an obstacle if that alone shows that there is nothing to do."""
    if not model.brokers.takes_part[at]:
        return
    full = float(model.brokers.fullness(situation.settings)[at])
    mean = model.brokers.mean_usage(situation.settings)
    limit = mean * (1 + situation.settings.tolerance)
    if situation.strategy == PLAN and situation.draft is not None:
        limit = float(situation.draft.scale.limit[at])
    if above and full <= limit:
        sentence = f"it is within tolerance: {percent(full)} full, and up to {percent(limit)} is fine"
        yield Obstacle("within tolerance", sentence, (f"it gets fuller than {percent(limit)}",))
    elif not above and full >= mean - EQUAL:
        yield Obstacle("no room", f"it is as full as the others or fuller: {percent(full)}, on average {percent(mean)}")


def _barring(model: ClusterModel, at: int) -> dict[str, int]:
    """How many reported bundles each rule keeps from the broker."""
    column = model.constraints.forbidden[:, at][model.constraints.kind] if len(model.bundles) else np.zeros(0, np.int16)
    rules, counts = np.unique(column[column >= 0], return_counts=True)
    return {rule_text(model, int(rule)): int(count) for rule, count in zip(rules, counts, strict=True)}


def _policies(model: ClusterModel, at: int) -> tuple[str, ...]:
    said: list[str] = []
    if model.brokers.draining[at]:
        said.append("it drains")
    if model.brokers.paused[at]:
        said.append("it is paused")
    said += [f"{rule}: bars it for {count} reported bundles" for rule, count in _barring(model, at).items()]
    mine = model.bundles.owner == at
    fixed = model.constraints.fixed[mine]
    for rule in np.unique(fixed[fixed != FREE]).tolist():
        said.append(f"{rule_text(model, rule)}: keeps {int((fixed == rule).sum())} of its bundles")
    return tuple(said)
