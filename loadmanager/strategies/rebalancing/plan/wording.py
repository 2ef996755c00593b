"""Formats the plan's numbers in words: each move with its reason. Decides nothing."""

from __future__ import annotations

import msgspec

from loadmanager.model.cluster import Floats, Ints
from loadmanager.strategies.rebalancing.decision import Certificate, Move, Stage
from loadmanager.strategies.rebalancing.plan.draft import Draft
from loadmanager.strategies.rebalancing.plan.objective import EPSILON
from loadmanager.strategies.rebalancing.plan.step import Step

WORTH_TELLING = 0.0005
"""A smaller margin would be told as 0.0 points."""


def percent(usage: float) -> str:
    """`58.3 %`; without the decimal from 100 % on."""
    return f"{usage * 100:.1f} %" if usage < 1 else f"{usage * 100:.0f} %"


def counted(count: int, noun: str) -> str:
    """`1 broker`, `2 brokers`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def limit_of(draft: Draft, broker: int) -> str:
    """The broker's limit, its target, and how much of the tolerance is kept free for what may come."""
    scale, margin = draft.scale, float(draft.outlook.margin[broker])
    kept = f", {_points(margin)} kept free" if margin >= WORTH_TELLING else ""
    return f"{percent(float(scale.limit[broker]))} (target {percent(float(scale.target[broker]))}{kept})"


def spread(draft: Draft, peak: Floats) -> float:
    """max/mean - 1 over the brokers that take part; 0 if nothing is used."""
    mine = peak[draft.scale.takes_part]
    mean = float(mine.mean()) if mine.size else 0.0
    return float(mine.max()) / mean - 1 if mean > 0 else 0.0


class Attained(msgspec.Struct, frozen=True, eq=False):
    """What a whole plan leaves undone. Usages are summed over brokers."""

    must: Ints
    """Bundles that must go and have a possible place; `stay` of them stay."""
    stay: int
    above: int
    """Brokers above their ceiling."""
    excess: float
    """Their usage above their ceilings."""
    unavoidable: float
    """The excess that every placement leaves."""
    idleness: float
    pinned: bool
    """Whether load that can't be taken away keeps a broker above its limit: its ceiling is that load."""

    @property
    def out_of_tolerance(self) -> str:
        """What the excess counts."""
        return "out of tolerance" + (", beside load that can't be moved" if self.pinned else "")

    @property
    def proven(self) -> bool:
        """Whether no placement does better: no bundle that must go stays, and the excess is unavoidable."""
        return not self.stay and self.excess <= self.unavoidable + EPSILON


def certified(found: Certificate, attained: Attained, *, idle: int, cut_short: bool) -> str:
    """The proven statement, and how much the plan moves."""
    does, whole = _moves(found, cut_short=cut_short), found.moved if found.whole is None else found.whole
    left = f" ({counted(idle, 'broker')} {'stays' if idle == 1 else 'stay'} idle)" if idle else ""
    if found.proven and not attained.above:
        goal = "to have no broker out of tolerance that need not be"
    elif found.proven:
        excess = f"{_points(attained.excess)} {attained.out_of_tolerance}"
        goal = f"brokers can't be together less than {excess}; to have no more"
    else:
        goal = f"to do no worse than this plan, which leaves {_undone(attained)}"
    if found.bound <= 0:
        return f"{goal}{left}, nothing is proven to have to move; {does}"
    times = f", {whole / found.bound:.3f} times as much" if found.proven else ""
    had = f"at least {percent(found.bound)} of a mean broker's {found.resource} must move, whatever the algorithm"
    return f"{goal}{left}, {had}; {does}{times}"


def _moves(found: Certificate, *, cut_short: bool) -> str:
    moved, whole = percent(found.moved), percent(found.moved if found.whole is None else found.whole)
    return f"this round moves {moved}, the whole plan {whole}" if cut_short else f"this plan moves {moved}"


def _undone(attained: Attained) -> str:
    they = "it" if attained.stay == 1 else "they"
    parts = [f"{counted(attained.stay, 'bundle')} where {they} may not be"] if attained.stay else []
    if attained.above:
        known = f"of which {_points(attained.unavoidable)} are proven to be unavoidable"
        brokers = f"{counted(attained.above, 'broker')} together {_points(attained.excess)}"
        parts.append(f"{brokers} {attained.out_of_tolerance}, {known}")
    return " and ".join(parts)


def _points(usage: float) -> str:
    return f"{usage * 100:.1f} points"


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
