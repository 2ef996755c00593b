"""Finds changes that would make a bundle move, by running the strategy on them. Pure.

First every hard rule that keeps the bundle is lifted. If it still stays, a few changes are tried in addition: a heavier
bundle, a fuller broker, a tighter tolerance, a larger budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from loadmanager.decisions.explaining.answer import Change, Obstacle, percent
from loadmanager.decisions.explaining.edits import (
    admitted,
    burdened,
    freed,
    landed,
    multiplied,
    rested,
    resumed,
    with_settings,
)
from loadmanager.decisions.explaining.obstacles import IN_FLIGHT, KEPT, NOWHERE_TO_GO, PAUSED, RESTING, UNKNOWN
from loadmanager.decisions.explaining.situation import fullness, usages
from loadmanager.decisions.explaining.targets import owner_name
from loadmanager.decisions.explaining.verdicts import whither
from loadmanager.model.cluster import NOWHERE, ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.strategy import Strategy

TRIED_BUNDLES = 3_000
TRIED_BROKERS = 300
"""Above these sizes the strategy is too slow to run a dozen times for one question."""

_TIMES = (1.25, 1.5, 2.0, 3.0, 5.0, 8.0)
_FULLER = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8)


class OutOfPatience(Exception):
    """There is no time to run the strategy once more."""


class Trial:
    """Asks the strategy where it would move one bundle, while `may_try` says so."""

    def __init__(self, strategy: Strategy, memory: object, row: int, may_try: Callable[[], bool]) -> None:
        self._may_try = may_try
        self._strategy = strategy
        self._memory = memory
        self._row = row

    def goes_to(self, model: ClusterModel, settings: Settings) -> str:
        """Where the bundle would go, empty if it would stay. Raises OutOfPatience."""
        if not self._may_try():
            raise OutOfPatience
        bundle = model.bundles.ids[self._row]
        moves = self._strategy.decide(model, settings, self._memory).moves
        return next((whither(move) for move in moves if move.bundle == bundle), "")


def changes(
    model: ClusterModel, settings: Settings, row: int, obstacles: Sequence[Obstacle], trial: Trial
) -> tuple[Change, ...]:
    """The changes that would move it, the smallest first; without those that certainly would not."""
    if len(model.bundles) > TRIED_BUNDLES or len(model.brokers) > TRIED_BROKERS:
        return tuple(Change(text, tried=False) for obstacle in obstacles for text in obstacle.lifted_by)
    found: list[Change] = []
    try:
        found.extend(_tried(model, settings, row, [obstacle.rule for obstacle in obstacles], trial))
    except OutOfPatience:
        found.append(Change("something else changed", tried=False))
    return tuple(found)


def _tried(model: ClusterModel, settings: Settings, row: int, rules: Sequence[str], trial: Trial) -> Iterator[Change]:
    free, lifted = _lifted(model, row, rules)
    if lifted:
        goes_to = trial.goes_to(free, settings)
        yield Change(" and ".join(lifted), goes_to)
        if goes_to:
            return
    also = "in addition " if lifted else ""
    for text, goes_to in _pushed(free, settings, row, trial):
        yield Change(f"{also}{text}", goes_to)


def _lifted(model: ClusterModel, row: int, rules: Sequence[str]) -> tuple[ClusterModel, list[str]]:
    """The model without these hard rules for the bundle, and the change in words."""
    owner, said = int(model.bundles.owner[row]), list[str]()
    if IN_FLIGHT in rules:
        model = landed(model, row)
        said.append("it had arrived")
    if KEPT in rules:
        model = freed(model, row)
        said.append("no policy kept it there")
    if RESTING in rules:
        model = rested(model, row)
        said.append("its rest were over")
    if (PAUSED in rules or UNKNOWN in rules) and owner != NOWHERE:
        model = resumed(model, owner)
        said.append(f"{owner_name(model, row)} took part again")
    if NOWHERE_TO_GO in rules:
        model = admitted(model, row)
        said.append("every broker might take it")
    return model, said


def _pushed(model: ClusterModel, settings: Settings, row: int, trial: Trial) -> Iterator[tuple[str, str]]:
    yield from _first(_heavier(model, settings, row), trial)
    yield from _first(_fuller(model, settings, row), trial)
    if settings.tolerance > 0.05:
        tight = with_settings(settings, {"balancing_tolerance": "tight"})
        yield from _first([("balancing_tolerance were tight", model, tight)], trial)
    if settings.balancing_budget < 1:
        unlimited = with_settings(settings, {"balancing_budget": 1.0, "balancing_moves_per_round": 10_000})
        yield from _first([("a round had no budget", model, unlimited)], trial)


Question = tuple[str, ClusterModel, Settings]


def _first(questions: Sequence[Question] | Iterator[Question], trial: Trial) -> Iterator[tuple[str, str]]:
    """The first of a series of growing changes that moves the bundle."""
    for text, model, settings in questions:
        goes_to = trial.goes_to(model, settings)
        if goes_to:
            yield text, goes_to
            return


def _heavier(model: ClusterModel, settings: Settings, row: int) -> Iterator[Question]:
    if not np.any(model.bundles.load[row]):
        return
    for times in _TIMES:
        yield f"it had {times:g} times its load", multiplied(model, [row], times), settings


def _fuller(model: ClusterModel, settings: Settings, row: int) -> Iterator[Question]:
    owner = int(model.bundles.owner[row])
    if owner == NOWHERE or not model.brokers.known[owner]:
        return
    now = float(fullness(model.brokers, settings)[owner])
    by_resource = usages(model.brokers, settings)[owner]
    resource = int(by_resource.argmax())
    capacity = float(model.brokers.capacity[owner, resource])
    weight = (
        0.0 if not by_resource[resource] else float(by_resource[resource]) / float(model.brokers.used[owner, resource])
    )
    if weight <= 0 or not np.isfinite(capacity):
        return
    for more in _FULLER:
        text = f"{owner_name(model, row)} were {percent(now + more)} full instead of {percent(now)}"
        yield text, burdened(model, owner, resource, (now + more) / weight), settings
