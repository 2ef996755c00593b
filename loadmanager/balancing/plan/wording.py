"""The plan's numbers in words: each move with its reason. Decides nothing."""

from __future__ import annotations

from loadmanager.balancing.decision import Move, Stage
from loadmanager.balancing.model import Floats
from loadmanager.balancing.plan.draft import Draft
from loadmanager.balancing.plan.step import Step


def percent(usage: float) -> str:
    """`58.3 %`, and without the decimal from 100 on."""
    return f"{usage * 100:.1f} %" if usage < 1 else f"{usage * 100:.0f} %"


def spread(draft: Draft, peak: Floats) -> float:
    """max/mean - 1 over the brokers that take part; 0 if nothing is used."""
    mine = peak[draft.scale.takes_part]
    mean = float(mine.mean()) if mine.size else 0.0
    return float(mine.max()) / mean - 1 if mean > 0 else 0.0


def move_of(draft: Draft, step: Step) -> Move:
    """The step as a move, with its reason."""
    brokers = draft.model.brokers.ids
    source, destination = brokers[step.source], brokers[step.destination]
    return Move(
        bundle=draft.model.bundles.ids[step.row],
        source=source,
        destination=destination,
        reason=_reason(draft, step, source.name, destination.name),
        stage=step.stage,
        load=step.load,
        gain=step.gain,
        source_before=step.before[0],
        source_after=step.after[0],
        destination_before=step.before[1],
        destination_after=step.after[1],
        group=step.group,
    )


def _reason(draft: Draft, step: Step, source: str, destination: str) -> str:
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
        case Stage.OVERLOAD:
            what = f"{source} is overloaded, above {percent(draft.scale.overloaded)}"
        case _:
            what = _imbalance(draft, step, source, destination)
    return f"{what}: {numbers}"


def _imbalance(draft: Draft, step: Step, source: str, destination: str) -> str:
    limit, target = float(draft.scale.limit[step.source]), float(draft.scale.target[step.source])
    if step.before[0] > limit:
        return f"{source} is above its limit of {percent(limit)} (target {percent(target)})"
    idle = float(draft.scale.idle[step.destination])
    if step.before[1] < idle:
        return f"{destination} idles below {percent(idle)}"
    return f"makes room for the other moves of group {step.group}"
