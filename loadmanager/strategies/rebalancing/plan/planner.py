"""The strategy `plan`: runs its stages in order until none finds another move, then explains the decision."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from loadmanager.errors import install_line
from loadmanager.model.cluster import ClusterModel, Floats, spread_of
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision, Move, Stage, percent
from loadmanager.strategies.rebalancing.plan import exact
from loadmanager.strategies.rebalancing.plan.certificate import certificate_of, counted, points
from loadmanager.strategies.rebalancing.plan.draft import Draft, Step
from loadmanager.strategies.rebalancing.plan.exact import search, settle
from loadmanager.strategies.rebalancing.plan.foresight import expectations
from loadmanager.strategies.rebalancing.plan.refusals import candidates_of, refused_brokers
from loadmanager.strategies.rebalancing.plan.stages import (
    evacuate,
    exchange,
    fill,
    place_giants,
    relieve,
    relieve_overload,
    spill,
    spread_groups,
)

PASSES = 50
"""No known model needs more than a few."""

NEARLY_IDLE = 0.05
"""Tolerances do not matter below this usage."""


class Plan:
    """The fewest and smallest moves to reach tolerance under the hard rules, each with its reason.

    Its memory is what it expected of the brokers (`foresight`). Without one it keeps no margins.
    """

    name = "plan"

    def decide(self, model: ClusterModel, settings: Settings, memory: object = None) -> Decision:
        """Decide as `Strategy` says."""
        draft = Draft(model, settings, memory)
        if draft.scale.takes_part.any():
            draft = _settled(_plan(draft))
        moves = [(step.source, step.destination) for step in draft.steps]
        expected = expectations(model, draft.scale, draft.outlook, draft.peak, moves)
        decision = _decision(draft, _whole if draft.cut_short else None)
        return msgspec.structs.replace(decision, memory=expected)


def evacuation(model: ClusterModel, settings: Settings) -> Decision:
    """Only the moves that hard rules and drains require, whatever the balance: for strategies that know neither."""
    draft = Draft(model, settings)
    if draft.scale.takes_part.any():
        evacuate(draft, draft.eligibility.misplaced, Stage.POLICY)
        evacuate(draft, draft.eligibility.drained, Stage.DRAIN)
    return _decision(draft)


def _plan(draft: Draft) -> Draft:
    """Run the cheaper stages first, and all of them again after each that helped, until none does."""
    for _ in range(PASSES):
        before = len(draft.steps)
        _emergencies(draft)
        if draft.hot() or draft.idle():
            _balance(draft)
        if len(draft.steps) == before or draft.moves_left == 0:
            break
    return draft


def _whole(draft: Draft) -> Draft:
    """Continue the plan without the round's limits, to know its final result."""
    draft.lift()
    return _settled(_plan(draft))


def _emergencies(draft: Draft) -> None:
    evacuate(draft, draft.eligibility.misplaced, Stage.POLICY)
    evacuate(draft, draft.eligibility.drained, Stage.DRAIN)
    place_giants(draft)
    relieve_overload(draft)
    spread_groups(draft)


def _balance(draft: Draft) -> None:
    free, before = draft.free_holdings, len(draft.steps)
    relieve(draft, free, Stage.BALANCE)
    fill(draft, free)
    spill(draft, free, Stage.BALANCE)
    if draft.hot() and draft.moves_left and len(draft.steps) == before and not exchange(draft, free):
        search(draft, free)


def _settled(draft: Draft) -> Draft:
    """Settle small pools as a whole, then run the stages again, so that a second round finds nothing."""
    if not draft.steps and not draft.hot() and not draft.idle():
        return draft
    other = settle(draft)
    return draft if other is draft else _plan(other)


def _decision(draft: Draft, go_on: Callable[[Draft], Draft] | None = None) -> Decision:
    """The draft as a decision. A plan that limits cut short is continued last, for the certificate alone."""
    candidates, counts = candidates_of(draft)
    before = np.maximum.reduce(draft.scale.usage, axis=0, initial=0.0)
    decision = Decision(
        moves=tuple(move_of(draft, step) for step in draft.steps),
        reason=_reason(draft, candidates[0].detail if candidates else ""),
        refused=refused_brokers(draft),
        candidates=candidates,
        counts=counts,
        spread_before=spread(draft, before),
        spread_after=spread(draft, draft.peak),
    )
    rows = np.array([step.row for step in draft.steps], np.int64)
    whole = draft if go_on is None else go_on(draft)
    certificate = certificate_of(whole, rows, cut_short=go_on is not None)
    return msgspec.structs.replace(decision, certificate=certificate)


def _reason(draft: Draft, refusal: str) -> str:
    if draft.steps:
        size = sum(float(draft.size[step.row]) for step in draft.steps)
        stages = ", ".join(dict.fromkeys(str(step.stage) for step in draft.steps))
        moves = counted(len(draft.steps), "move")
        told = f"{moves} ({stages}) of together {percent(size)} of a mean broker; {_state(draft)}"
    else:
        told = f"no moves: {_state(draft)}" + (f"; {refusal}" if draft.hot() and refusal else "")
    if exact.SOLVER_INSTALLED or not (draft.steps or draft.hot() or draft.idle()):
        return told
    return f"{told}; the exact stage was left out, as SciPy is missing: {install_line('planner')}"


def _state(draft: Draft) -> str:
    takes_part = draft.scale.takes_part
    if not takes_part.any():
        return "no broker takes part: all are draining, paused or without fresh load data"
    hot = draft.hot()
    among = np.array(hot) if hot else np.flatnonzero(takes_part)
    at = int(among[draft.peak[among].argmax()])
    fullest = (
        f"{draft.model.brokers.ids[at].name} uses {percent(float(draft.peak[at]))}, "
        f"its limit is {percent(float(draft.scale.limit[at]))}"
    )
    if not hot:
        return f"every broker is within tolerance, the fullest, {fullest}"
    if not draft.steps and draft.peak[takes_part].max() < NEARLY_IDLE:
        return f"all brokers are nearly idle, the fullest, {fullest}"
    brokers = f"{counted(len(hot), 'broker')} {'is' if len(hot) == 1 else 'are'}"
    return f"{brokers} out of tolerance, the fullest, {fullest}{_stuck(draft, at)}"


def _stuck(draft: Draft, broker: int) -> str:
    """Why the broker can't be within tolerance beside the largest bundle that it then holds, if that is so."""
    resource = int(draft.usage[:, broker].argmax())
    parts = draft.loads_of(draft.held_after(broker))[resource] * float(draft.scale.per_load[resource, broker])
    largest, rest = float(parts.max(initial=0.0)), float(draft.scale.kept[resource, broker])
    if largest + rest <= draft.scale.limit[broker]:
        return ""
    return f", of which {percent(largest)} are one bundle and {percent(rest)} nothing that can be moved"


WORTH_TELLING = 0.0005
"""A smaller margin would be shown as 0.0 points."""


def limit_of(draft: Draft, broker: int) -> str:
    """The broker's limit, its target, and how much of the tolerance is kept free for what may come."""
    scale, margin = draft.scale, float(draft.outlook.margin[broker])
    kept = f", {points(margin)} kept free" if margin >= WORTH_TELLING else ""
    return f"{percent(float(scale.limit[broker]))} (target {percent(float(scale.target[broker]))}{kept})"


def spread(draft: Draft, peak: Floats) -> float:
    """max/mean - 1 over the brokers that take part; 0 if nothing is used."""
    return spread_of(peak[draft.scale.takes_part])


def move_of(draft: Draft, step: Step) -> Move:
    """The step as a move, with its reason."""
    brokers = draft.model.brokers.ids
    source, destination = brokers[step.source], brokers[step.destination]
    return Move(
        bundle=draft.model.bundles.ids[step.row],
        source=source,
        destination=destination,
        reason=_move_reason(draft, step, source.name, destination.name),
        stage=step.stage,
        load=step.load,
        gain=step.gain,
        source_before=step.before[0],
        source_after=step.after[0],
        destination_before=step.before[1],
        destination_after=step.after[1],
        group=step.group,
    )


def _move_reason(draft: Draft, step: Step, source: str, destination: str) -> str:
    numbers = (
        f"{source} {percent(step.before[0])} → {percent(step.after[0])}, "
        f"{destination} {percent(step.before[1])} → {percent(step.after[1])}"
    )
    match step.stage:
        case Stage.POLICY:
            constraints = draft.model.constraints
            rule = int(constraints.forbidden[constraints.kind[step.row], step.source])
            what = f"{constraints.rules[rule]} forbids {source}" if rule >= 0 else "its group is spread better there"
        case Stage.DRAIN:
            what = f"{source} is draining"
        case Stage.OVERLOAD if step.before[0] > draft.scale.overloaded:
            what = f"{source} is overloaded, above {percent(draft.scale.overloaded)}"
        case _:
            what = _imbalance(draft, step, source, destination)
    return f"{what}: {numbers}"


def _imbalance(draft: Draft, step: Step, source: str, destination: str) -> str:
    if step.before[0] > draft.scale.limit[step.source]:
        return f"{source} is above its limit of {limit_of(draft, step.source)}"
    idle = float(draft.scale.idle[step.destination])
    if step.before[1] < idle:
        return f"{destination} idles below {percent(idle)}"
    if step.group:
        return f"makes room for the other moves of group {step.group}"
    load = draft.load_of(step.row) * draft.scale.per_load[:, step.source]
    if float((draft.usage[:, step.source] + load).max()) > draft.scale.limit[step.source]:
        return f"{source} would end above its limit of {limit_of(draft, step.source)}"
    return "belongs to a more even plan"
