"""Answers `explain BUNDLE`: why a bundle is at its place, why it did not move, what would make it move, and where to.

Pure: from a situation and the bundle's records in the channel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from loadmanager.decisions.errors import BadDecision
from loadmanager.decisions.explaining.answer import BundleAnswer, Change, Event, Load, Obstacle, RoundSaid, span
from loadmanager.decisions.explaining.changes import Trial, changes
from loadmanager.decisions.explaining.obstacles import rest_left_s
from loadmanager.decisions.explaining.situation import Situation
from loadmanager.decisions.explaining.targets import judgement_of, rule_text, targets
from loadmanager.decisions.explaining.verdicts import move_of, moved_text, why_not
from loadmanager.decisions.memory import given_memory
from loadmanager.model.cluster import ALLOWED, FREE, NOWHERE, UNITS, ClusterModel
from loadmanager.model.load import RESOURCES, weights_of
from loadmanager.strategies.rebalancing.registry import STRATEGIES
from loadmanager.strategies.rebalancing.strategy import Strategy
from statechannel.law.bundle import Bundle

NO_ROUND = "no round is recorded for this moment: this is what a round would see"


class Whereabouts(msgspec.Struct, frozen=True):
    """A bundle at one moment, by the channel. `exists` is False if there is no such bundle (any more)."""

    exists: bool
    state: str = ""
    owner: str = ""
    target: str = ""
    events: tuple[Event, ...] = ()


def explain_bundle(
    situation: Situation, bundle: Bundle, whereabouts: Whereabouts, may_try: Callable[[], bool] | None
) -> BundleAnswer:
    """The answer. The strategy also runs on changes, for the time of up to a dozen rounds, while `may_try` says so.

    None: do not run it.
    """
    row, notes = situation.rows.get(bundle), list(_notes(situation, bundle, whereabouts))
    model = situation.model
    judged = judgement_of(situation, row) if row is not None else None
    towards = targets(situation, judged) if judged is not None else ()
    moved = _moved(situation, bundle)
    why = () if moved or not whereabouts.exists else why_not(situation, bundle, judged)
    found: tuple[Change, ...] = ()
    if why and may_try is not None and model is not None and row is not None:
        strategy, memory = _strategy(situation, notes)
        if strategy is not None:
            found = changes(model, situation.settings, row, why, Trial(strategy, memory, row, may_try))
    return BundleAnswer(
        bundle=str(bundle),
        at_ms=situation.at_ms,
        answer=_answer(whereabouts, moved, why),
        state=whereabouts.state,
        owner=whereabouts.owner,
        because=whereabouts.events,
        round=round_said(situation),
        obstacles=why,
        moved=moved,
        rest_left_s=rest_left_s(model, row) if model is not None and row is not None else 0.0,
        loads=_loads(model, situation, row) if model is not None and row is not None else (),
        targets=towards,
        next_best=next((target for target in towards if not target.rule), None),
        changes=found,
        policies=_policies(model, situation, row) if model is not None and row is not None else (),
        notes=tuple(notes),
    )


def round_said(situation: Situation) -> RoundSaid | None:
    """The round of a situation."""
    taken = situation.round
    if taken is None:
        return None
    decision = taken.decision
    return RoundSaid(taken.id, taken.at_ms, taken.leader, situation.strategy, decision.reason, len(decision.moves))


def _moved(situation: Situation, bundle: Bundle) -> str:
    if situation.round is None:
        return ""
    at = move_of(situation.round.decision, bundle)
    return "" if at is None else moved_text(situation.round, at)


def _answer(whereabouts: Whereabouts, moved: str, why: Sequence[Obstacle]) -> str:
    if not whereabouts.exists:
        return "there is no such bundle"
    going = f", on its way to {whereabouts.target}" if whereabouts.target else ""
    where = (
        f"it is at {whereabouts.owner}{going}" if whereabouts.owner else f"it is {whereabouts.state} and has no owner"
    )
    if moved:
        return f"{where}; the round {moved}"
    return f"{where}, and stays: {why[0].sentence}" if why else where


def stand_in(situation: Situation) -> list[str]:
    """A note if the numbers are not those of the round."""
    if not situation.model_of:
        return []
    return [
        f"round {situation.round.id if situation.round else ''} kept no model ({situation.without_model}): "
        f"the numbers are those of round {situation.model_of}"
    ]


def _notes(situation: Situation, bundle: Bundle, whereabouts: Whereabouts) -> list[str]:
    notes: list[str] = []
    if situation.round is None:
        notes.append(NO_ROUND)
    notes += stand_in(situation)
    if situation.model is None:
        reason = situation.without_model or "the round recorded none"
        notes.append(f"the model of that round is not available ({reason}): there are no numbers and no changes")
    elif bundle not in situation.rows and whereabouts.exists:
        notes.append(
            "its owner did not report it among its hottest bundles (load_top_bundles), so no round weighed it: "
            "its load counts as foreign there"
        )
    return notes


def _strategy(situation: Situation, notes: list[str]) -> tuple[Strategy | None, object]:
    """The strategy and its memory; notes what is missing."""
    try:
        strategy = STRATEGIES.make(situation.strategy)
    except ValueError as error:
        notes.append(f"no change was tried: {error}")
        return None, None
    try:
        return strategy, given_memory(situation.memory, strategy)
    except BadDecision as error:
        notes.append(f"changes were tried without the strategy's memory: {error}")
        return strategy, None


def _loads(model: ClusterModel, situation: Situation, row: int) -> tuple[Load, ...]:
    """Its load, by resource that it uses."""
    owner, weights = int(model.bundles.owner[row]), weights_of(situation.settings).row
    found: list[Load] = []
    for resource, (name, unit) in enumerate(zip(RESOURCES, UNITS, strict=True)):
        load = float(model.bundles.load[row, resource])
        if load <= 0:
            continue
        capacity = float(model.brokers.capacity[owner, resource]) if owner != NOWHERE else np.inf
        counts = np.isfinite(capacity) and weights[resource] > 0
        found.append(Load(name, load, unit, load / capacity * weights[resource] if counts else None))
    return tuple(found)


def _policies(model: ClusterModel, situation: Situation, row: int) -> tuple[str, ...]:
    """The rules that apply to it, each with the brokers that it excludes."""
    constraints = model.constraints
    found: dict[str, list[str]] = {}
    if constraints.fixed[row] != FREE:
        found[rule_text(model, int(constraints.fixed[row]))] = []
    for at, rule in enumerate(constraints.forbidden[constraints.kind[row]].tolist()):
        if rule != ALLOWED:
            found.setdefault(rule_text(model, rule), []).append(model.brokers.ids[at].name)
    said = [f"{rule}: bars {_few(names)}" if names else rule for rule, names in found.items()]
    if constraints.rest_s[row] != situation.settings.bundle_rest_s:
        said.append(f"rests {span(float(constraints.rest_s[row]))} after a move, by a policy")
    if constraints.weight[row] != 1.0:
        said.append(f"a move of it counts {constraints.weight[row]:g} times")
    if constraints.group[row] != FREE:
        said.append(f"its namespace is in the anti-affinity group {constraints.groups[constraints.group[row]]!r}")
    return tuple(said)


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
