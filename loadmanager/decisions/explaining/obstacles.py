"""Why a bundle stays: the hard rules that apply to it whatever the strategy. Pure.

What a strategy weighed beyond these (gain, budget, tolerance) is in its decision, or in `judgement.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loadmanager.decisions.explaining.answer import Obstacle, Target, listed, percent, span
from loadmanager.decisions.explaining.situation import fullness, mean_usage
from loadmanager.decisions.explaining.targets import owner_name, rule_text
from loadmanager.model.cluster import ALLOWED, FREE, NOWHERE, ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.plan.eligibility import IN_FLIGHT, KEPT, NO_OWNER, PAUSED, RESTING, UNKNOWN

NOWHERE_TO_GO = "no broker may take it"
TOO_LARGE = "too large"
__all__ = ["IN_FLIGHT", "KEPT", "NOWHERE_TO_GO", "PAUSED", "RESTING", "TOO_LARGE", "UNKNOWN"]


def rest_left_s(model: ClusterModel, row: int) -> float:
    """How long a bundle still rests after its last planned move; 0 if it does not rest."""
    bundles = model.bundles
    if bundles.changed[row]:
        return 0.0
    return max(0.0, float(model.constraints.rest_s[row] - bundles.moved_s[row]))


def must_go(model: ClusterModel, row: int) -> bool:
    """Whether its broker drains, or a hard rule forbids its broker: then it moves whatever the gain."""
    owner = int(model.bundles.owner[row])
    if owner == NOWHERE:
        return False
    misplaced = int(model.constraints.forbidden[model.constraints.kind[row], owner]) != ALLOWED
    return misplaced or bool(model.brokers.draining[owner])


def obstacles(model: ClusterModel, settings: Settings, row: int, targets: tuple[Target, ...]) -> Iterator[Obstacle]:
    """Every hard rule that keeps a bundle, the strongest first. `targets` are the bundle's."""
    yield from _of_the_bundle(model, settings, row)
    yield from _of_the_owner(model, row)
    yield from _of_the_targets(model, settings, row, targets)


def _of_the_bundle(model: ClusterModel, settings: Settings, row: int) -> Iterator[Obstacle]:
    bundles = model.bundles
    if bundles.in_flight[row]:
        sentence = "it is being moved, split or revoked at this moment"
        yield Obstacle(IN_FLIGHT, sentence, ("that change is over (see `bundles show`), or `cancel` stops it",))
    rule = int(model.constraints.fixed[row])
    if rule != FREE:
        text = rule_text(model, rule)
        yield Obstacle(KEPT, f"a policy keeps it: {text}", (f"the policy is lifted: {text}",))
    left_s = rest_left_s(model, row)
    if left_s > 0 and not must_go(model, row):
        yield _resting(model, settings, row, left_s)


def _resting(model: ClusterModel, settings: Settings, row: int, left_s: float) -> Obstacle:
    moved, rest = span(float(model.bundles.moved_s[row])), span(float(model.constraints.rest_s[row]))
    sentence = f"it rests for another {span(left_s)}: it was moved {moved} ago, and a moved bundle rests {rest}"
    return Obstacle(
        RESTING,
        sentence,
        (
            f"{span(left_s)} pass",
            f"its load changes by {settings.load_change_percent:g}% or more",
            "its broker drains, or a policy forbids it where it is",
        ),
    )


def _of_the_owner(model: ClusterModel, row: int) -> Iterator[Obstacle]:
    owner, name = int(model.bundles.owner[row]), owner_name(model, row)
    if owner == NOWHERE:
        yield Obstacle(NO_OWNER, "it has no owner: a lookup assigns it, balancing does not", ())
        return
    brokers = model.brokers
    if brokers.paused[owner]:
        yield Obstacle(PAUSED, f"automatic decisions leave {name} alone: it is paused", (f"{name} is resumed",))
    if not brokers.known[owner] and not brokers.draining[owner]:
        sentence = f"{name} has reported no fresh load: it neither gives nor takes"
        yield Obstacle(UNKNOWN, sentence, (f"{name} reports its load again",))


def _of_the_targets(
    model: ClusterModel, settings: Settings, row: int, targets: tuple[Target, ...]
) -> Iterator[Obstacle]:
    if model.bundles.owner[row] == NOWHERE:
        return
    if not targets:
        yield Obstacle(NOWHERE_TO_GO, "there is no other broker", ("another broker joins",))
    elif all(target.rule for target in targets):
        rules = list(dict.fromkeys(target.rule for target in targets))
        lifted = tuple(f"this no longer holds: {rule}" for rule in rules[:3])
        yield Obstacle(NOWHERE_TO_GO, f"no other broker may take it: {listed(rules)}", lifted)
    elif not must_go(model, row):
        yield from _too_large(model, settings, row, targets)


def _too_large(model: ClusterModel, settings: Settings, row: int, targets: tuple[Target, ...]) -> Iterator[Obstacle]:
    """An obstacle if its broker is too full, but every allowed one would be at least as full with the bundle."""
    owner = int(model.bundles.owner[row])
    if owner == NOWHERE or not model.brokers.known[owner] or not np.any(model.bundles.load[row]):
        return
    here = float(fullness(model.brokers, settings)[owner])
    if here <= mean_usage(model.brokers, settings) * (1 + settings.tolerance):
        return
    open_to = [target for target in targets if not target.rule and target.after is not None]
    best = min((target for target in open_to), key=lambda each: each.after or 0.0, default=None)
    if best is None or best.after is None or best.after < here:
        return
    sentence = (
        f"it is too large: {best.broker}, the emptiest that may take it, would be {percent(best.after)} full with it, "
        f"and {owner_name(model, row)} is {percent(here)} full now"
    )
    yield Obstacle(
        TOO_LARGE,
        sentence,
        ("it is split", f"its broker gets fuller than {percent(best.after)}", "a larger or emptier broker joins"),
    )
