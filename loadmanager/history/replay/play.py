"""Plays one window on one executor: makes its game, plays every candidate, and judges them.

Strategies and placements are those of production, unchanged, on the simulator's cluster, from the recorded placement,
under the rests and policies that held. The same arguments give the same outcome. One window is in memory at a time. A
strategy that breaks a rule, or fails, loses that window: the reason is kept, and counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from loadmanager.history.replay.candidates import Candidate
from loadmanager.history.replay.cost import Gaps, Judge, Objective, Terms, least
from loadmanager.history.replay.game import Frame, Missing, Recorded, RecordedGame, Step, recorded, sliced
from loadmanager.history.replay.ruling import Ruling
from loadmanager.model.cluster import Flags, Ints
from loadmanager.settings import Settings
from loadmanager.strategies.playground.bounds import Ruler
from loadmanager.strategies.playground.cluster import Conditions, Placer, SimulatedCluster, View, observe
from loadmanager.strategies.playground.game import InvariantViolation, check
from loadmanager.strategies.rebalancing.decision import Decision
from loadmanager.strategies.rebalancing.strategy import Strategy
from loadmanager.strategies.registry import STRATEGIES


class Played(msgspec.Struct, frozen=True, eq=False):
    """The outcome: `owner` (T, m) who had each bundle after each round's moves, and the moves."""

    owner: Ints
    steps: tuple[Step, ...]


def played_out(scenario: Recorded, strategy: str, settings: Settings, seed: int = 0) -> Played:
    """Play the scenario. The strategy sees, of each broker, the bundles that a report has.

    Raises InvariantViolation if the strategy breaks a rule that every strategy must keep, and any error of the
    strategy.
    """
    settings = settings.model_copy(update={"balancing_interval_s": scenario.interval_s})
    game = _Game(scenario, STRATEGIES.make(strategy), settings, seed)
    owner = np.empty((scenario.rounds, len(scenario.bundles)), np.int64)
    for at in range(scenario.rounds):
        owner[at] = game.round(at)
    return Played(owner, tuple(game.steps))


class _Cluster(SimulatedCluster):
    """A cluster that knows the moves before the game."""

    def __init__(self, scenario: Recorded, settings: Settings) -> None:
        super().__init__(scenario, settings)
        for each in scenario.rests:
            self._left.setdefault(each.bundle, []).append((each.round, each.source))
            self.moved_at[each.bundle] = each.round
            self._asked_when_moved[each.bundle] = each.load


class _Placer(Placer):
    """Skips brokers where policies forbid a bundle, if there are others."""

    def __init__(self, cluster: SimulatedCluster, ruler: Ruler, name: str, ruling: Ruling | None) -> None:
        super().__init__(cluster, ruler, name)
        self._ruling = ruling

    def place(self, bundle: int, declined_by: int) -> int:
        if self._ruling is None:
            return super().place(bundle, declined_by)
        every, allowed = self._candidates, self._ruling.allowed(bundle)
        self._candidates = [each for each in every if allowed[self._row_of[each.broker]]] or every
        try:
            return super().place(bundle, declined_by)
        finally:
            self._candidates = every


class _Game:
    def __init__(self, scenario: Recorded, strategy: Strategy, settings: Settings, seed: int) -> None:
        self.steps: list[Step] = []
        self._scenario = scenario
        self._strategy = strategy
        self._settings = settings
        self._conditions = Conditions(top_bundles=settings.load_top_bundles)
        self._rng = np.random.default_rng(seed)
        self._ruler = Ruler.of(settings)
        self._cluster = _Cluster(scenario, settings)
        self._memory: object = None

    def round(self, at: int) -> Ints:
        """Play round `at`; (m,) who has each bundle then."""
        cluster, ruling = self._cluster, self._scenario.ruling
        self._give_away(cluster.begin(at))
        view = observe(cluster, self._settings, self._conditions, self._rng)
        if ruling is not None:
            ruled = ruling.applied(view, cluster, self._settings.bundle_rest_s)
            view = msgspec.structs.replace(view, model=ruled)
        decision = self._strategy.decide(view.model, self._settings, self._memory)
        self._memory = decision.memory
        check(view.model, decision, self._strategy.name, f"{self._scenario.name}, round {at}")
        self._carry_out(decision, view)
        return cluster.place

    def _give_away(self, orphans: list[int]) -> None:
        """Place bundles whose owner is gone; those of a broker that stopped on purpose are planned moves."""
        if not orphans:
            return
        cluster, at = self._cluster, self._cluster.at
        leaving: Flags = self._scenario.draining[max(0, at - 1)]
        placer = self._placer()
        for bundle in orphans:
            source = int(cluster.place[bundle])
            destination = placer.place(bundle, source)
            if at > 0 and leaving[source]:
                self.steps.append(Step(at, bundle, "hand over"))
                cluster.move(bundle, destination)
            else:
                self.steps.append(Step(at, bundle, "death"))
                cluster.adopt(bundle, destination)

    def _carry_out(self, decision: Decision, view: View) -> None:
        if not decision.moves:
            return
        cluster, placer = self._cluster, None
        rows = {bundle: row for row, bundle in enumerate(view.model.bundles.ids)}
        brokers = view.model.brokers.rows
        for move in decision.moves:
            bundle = int(view.bundle_rows[rows[move.bundle]])
            if move.destination is not None:
                destination, how = int(view.broker_rows[brokers[move.destination]]), "transfer"
            else:
                placer = placer or self._placer()
                destination, how = placer.place(bundle, int(cluster.place[bundle])), "unload"
            self.steps.append(Step(cluster.at, bundle, how))
            cluster.move(bundle, destination)

    def _placer(self) -> _Placer:
        return _Placer(self._cluster, self._ruler, self._settings.placement, self._scenario.ruling)


class Rules(msgspec.Struct, frozen=True):
    """What holds for every window and candidate. `settings` are the cluster's own."""

    settings: Settings
    candidates: tuple[Candidate, ...]
    objective: Objective
    gaps: Gaps
    coverage: float
    seed: int = 0
    own: Mapping[str, Settings] = {}
    """Candidates' settings by name, where they are combined already (that takes as long as some rounds)."""


class Outcome(msgspec.Struct, frozen=True):
    """One candidate in one window. `broke`: the broken rule or the raised error; `terms` is None then."""

    candidate: int
    bound: float
    terms: Terms | None = None
    broke: str = ""
    ruled: bool = False
    """The record says which policies held."""


def outcomes(table: Any, frame: Frame, rules: Rules, chosen: Sequence[int]) -> Missing | list[Outcome]:
    """Play the candidates with these numbers on the rows of one window (pyarrow.Table of `slicing.EVENT`)."""
    usual = rules.settings
    game = recorded(sliced(table, frame), rules.coverage, usual.load_window_s)
    if isinstance(game, Missing):
        return game
    judge = Judge(game.scenario, Ruler.of(rules.settings), rules.objective, rules.gaps)
    bound, ruled = least(judge), game.scenario.ruling is not None
    found = (_outcome(game, judge, bound, rules, number) for number in chosen)
    return [msgspec.structs.replace(each, ruled=ruled) for each in found]


def _outcome(game: RecordedGame, judge: Judge, bound: float, rules: Rules, number: int) -> Outcome:
    candidate = rules.candidates[number]
    if candidate.is_recorded:
        return Outcome(number, bound, judge.terms(game.owner, game.steps))
    try:
        run = played(game, candidate, rules)
    except InvariantViolation as violation:
        return Outcome(number, bound, broke=str(violation))
    except Exception as error:  # noqa: BLE001 - strategies are plug-ins, and may raise anything
        return Outcome(number, bound, broke=f"{candidate.strategy} failed: {type(error).__name__}: {error}")
    return Outcome(number, bound, judge.terms(run.owner, run.steps))


def played(game: RecordedGame, candidate: Candidate, rules: Rules) -> Played:
    """Play the candidate from the recorded placement. Raises InvariantViolation, and any error of the strategy."""
    settings = rules.own.get(candidate.name) or candidate.settings(rules.settings)
    return played_out(game.scenario, candidate.strategy, settings, rules.seed)
