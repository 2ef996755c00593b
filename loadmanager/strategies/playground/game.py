"""Plays one game: a strategy on a scenario, round by round, and records it.

In each round brokers come and go, and a leader observes and decides. The rules for all strategies are checked. The
moves are carried out before the next round, unless the conditions make them take longer. The same arguments give the
same run.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from loadmanager.model.cluster import ALLOWED, FREE, ClusterModel, Flags, Floats, Ints
from loadmanager.settings import Settings
from loadmanager.strategies.playground.bounds import Ruler, allowed_usage, even_usage, load_that_had_to_move
from loadmanager.strategies.playground.cluster import Conditions, Placer, SimulatedCluster, View, observe, summed
from loadmanager.strategies.playground.scenario import CPU, Scenario
from loadmanager.strategies.rebalancing.decision import Decision, Move
from loadmanager.strategies.rebalancing.strategy import Strategy
from loadmanager.strategies.registry import STRATEGIES
from statechannel.law.bundle import Bundle

RESTS = frozenset({"plan"})
"""Strategies that promise not to return a bundle within its rest time unless its load has really changed."""


class InvariantViolation(AssertionError):
    """A strategy broke a rule; the message names round, move and rule."""


def check(model: ClusterModel, decision: Decision, strategy: str, where: str) -> None:
    """Raises InvariantViolation if a decision breaks a rule for all strategies, or the promise of a strategy in RESTS.

    Judges by the model that the strategy had. `where` names the game and the round.
    """
    broken = next(_violations(model, decision), None)
    if broken is None and strategy in RESTS:
        broken = next(_returns(model, decision), None)
    if broken is not None:
        raise InvariantViolation(f"{where}: {strategy} {broken}")


def _violations(model: ClusterModel, decision: Decision) -> Iterator[str]:
    row_of = _rows(model) if decision.moves else {}
    seen: set[Bundle] = set()
    for move in decision.moves:
        row = row_of.get(move.bundle)
        if row is None:
            yield f"moves {move.bundle}, which no broker reported"
            continue
        if move.bundle in seen:
            yield f"moves {move.bundle} twice in one decision"
        seen.add(move.bundle)
        yield from _about_bundle(model, move, row)
        yield from _about_destination(model, move, row)


def _about_bundle(model: ClusterModel, move: Move, row: int) -> Iterator[str]:
    bundles, constraints = model.bundles, model.constraints
    if model.brokers.rows.get(move.source) != int(bundles.owner[row]):
        yield f"moves {move.bundle} from {move.source}, which does not hold it"
    if bundles.in_flight[row]:
        yield f"moves {move.bundle}, which is in flight"
    if constraints.fixed[row] != FREE:
        yield f"moves {move.bundle}, which is fixed: {constraints.rules[constraints.fixed[row]]}"


def _about_destination(model: ClusterModel, move: Move, row: int) -> Iterator[str]:
    if move.destination is None:
        return
    brokers = model.brokers
    destination = brokers.rows.get(move.destination)
    if destination is None:
        yield f"moves {move.bundle} to {move.destination}, which does not run"
        return
    if move.destination == move.source:
        yield f"moves {move.bundle} to where it is"
    for flags, wrong in ((brokers.draining, "drains"), (brokers.paused, "is paused"), (~brokers.known, "is unknown")):
        if flags[destination]:
            yield f"moves {move.bundle} to {move.destination}, which {wrong}"
    if model.constraints.forbidden[model.constraints.kind[row], destination] != ALLOWED:
        yield f"moves {move.bundle} to {move.destination}, where it may not be"


def _returns(model: ClusterModel, decision: Decision) -> Iterator[str]:
    row_of = _rows(model) if decision.moves else {}
    for move in decision.moves:
        row = row_of[move.bundle]
        if move.destination is None or model.bundles.changed[row]:
            continue
        destination = model.brokers.rows[move.destination]
        if destination in model.bundles.left.get(row, ()) and not no_other_way(model, row):
            age_s = model.bundles.moved_s[row]
            yield f"returns {move.bundle} to {move.destination} after {age_s:.0f} s; its load did not change"


def no_other_way(model: ClusterModel, bundle: int) -> bool:
    """Whether the bundle must leave its broker and has already left all others that may take it.

    Then it may return, whatever was promised.
    """
    brokers, constraints = model.brokers, model.constraints
    source, forbidden = int(model.bundles.owner[bundle]), constraints.forbidden[constraints.kind[bundle]] != ALLOWED
    if not (brokers.draining[source] or forbidden[source]):
        return False
    may = brokers.known & ~brokers.draining & ~brokers.paused & ~forbidden
    may[[source, *model.bundles.left.get(bundle, ())]] = False
    return not may.any()


def _rows(model: ClusterModel) -> dict[Bundle, int]:
    return {bundle: row for row, bundle in enumerate(model.bundles.ids)}


class Moved(msgspec.Struct, frozen=True):
    """One bundle that changed its broker. `share` is its load as a share of the mean broker's capacity."""

    round: int
    bundle: int
    source: int
    destination: int
    share: float
    how: str
    """`transfer`; `unload` (then placed); `hand over` (its broker stopped); `death` (its broker died)."""
    stage: str = ""
    reason: str = ""
    returned: bool = False
    """The bundle came back within its rest time, although its load had not changed."""


class Run(msgspec.Struct, frozen=True, eq=False):
    """A record of T rounds with n brokers. Usages are after the round's moves, NaN for brokers that don't run."""

    scenario: Scenario
    strategy: str
    ruler: Ruler
    moved: tuple[Moved, ...]
    usage: Floats
    """(T, n)"""
    allowed: Floats
    """(T, n): up to which usage a broker is within tolerance."""
    even: Floats
    """(T,)"""
    taking_part: Flags
    """(T, n): the broker runs, and is not about to stop."""
    had_to_move: Floats
    """(T,), as a share."""
    certified: Floats
    """(T, 2): bound and load of the whole plan in the strategy's own certificates, NaN where nothing is proven."""
    load: Floats
    """(T,): the load of all bundles, as a share."""

    @property
    def above(self) -> Flags:
        """(T, n): beyond tolerance."""
        return self.taking_part & (self.usage > self.allowed * (1 + 1e-9))


def play(
    scenario: Scenario,
    strategy: str | Strategy,
    settings: Settings | None = None,
    *,
    conditions: Conditions | None = None,
    placement: str | None = None,
    seed: int = 0,
) -> Run:
    """Play a game. `placement` serves unloads and orphans, by default that of the settings.

    Raises ValueError if there is no strategy or placement of that name, InvariantViolation if the strategy breaks a
    rule for all strategies.
    """
    settings = (settings or Settings()).model_copy(update={"balancing_interval_s": scenario.interval_s})
    chosen = STRATEGIES.make(strategy) if isinstance(strategy, str) else strategy
    game = _Game(scenario, chosen, settings, conditions or Conditions(), placement or settings.placement, seed)
    for at in range(scenario.rounds):
        game.round(at)
    return game.run()


class _Game:
    def __init__(
        self,
        scenario: Scenario,
        strategy: Strategy,
        settings: Settings,
        conditions: Conditions,
        placement: str,
        seed: int,
    ) -> None:
        self._scenario = scenario
        self._strategy = strategy
        self._settings = settings
        self._conditions = conditions
        self._placement = placement
        self._rng = np.random.default_rng(seed)
        self._ruler = Ruler.of(settings)
        self._cluster = SimulatedCluster(scenario, settings)
        self._memory: object = None
        self._moved: list[Moved] = []
        shape = (scenario.rounds, scenario.brokers)
        self._usage, self._allowed = np.full(shape, np.nan), np.full(shape, np.nan)
        self._even, self._bound, self._load = np.zeros(shape[0]), np.zeros(shape[0]), np.zeros(shape[0])
        self._certified = np.full((shape[0], 2), np.nan)

    def round(self, at: int) -> None:
        """Play round `at`."""
        cluster = self._cluster
        owners = cluster.place.copy()
        orphans = cluster.begin(at)
        stopped = self._give_away(orphans)
        before = np.where(stopped, owners, cluster.place)
        view = observe(cluster, self._settings, self._conditions, self._rng)
        decision = self._strategy.decide(view.model, self._settings, self._memory)
        self._memory = decision.memory
        check(view.model, decision, self._strategy.name, f"{self._scenario.name}, round {at}")
        self._carry_out(decision, view)
        self._record(before, decision)

    def _give_away(self, orphans: list[int]) -> Flags:
        """Place bundles whose owner is gone; if it stopped on purpose, they count as planned moves."""
        cluster, at = self._cluster, self._cluster.at
        handed = np.zeros(len(cluster.place), np.bool_)
        if not orphans:
            return handed
        shares = self._shares(cluster.place)
        placer = Placer(cluster, self._ruler, self._placement)
        for bundle in orphans:
            source = int(cluster.place[bundle])
            on_purpose = at > 0 and bool(self._scenario.draining[at - 1][source])
            destination = placer.place(bundle, source)
            handed[bundle] = on_purpose
            how = "hand over" if on_purpose else "death"
            self._moved.append(Moved(at, bundle, source, destination, float(shares[bundle]), how))
            if on_purpose:
                cluster.move(bundle, destination)
            else:
                cluster.adopt(bundle, destination)
        return handed

    def _carry_out(self, decision: Decision, view: View) -> None:
        cluster = self._cluster
        if not decision.moves:
            return
        shares = self._shares(cluster.place)
        rows = {bundle: row for row, bundle in enumerate(view.model.bundles.ids)}
        brokers, changed = view.model.brokers.rows, cluster.changed()
        placer = None
        for move in decision.moves:
            row = rows[move.bundle]
            bundle, source = int(view.bundle_rows[row]), int(view.broker_rows[brokers[move.source]])
            if move.destination is not None:
                destination, how = int(view.broker_rows[brokers[move.destination]]), "transfer"
            else:
                placer = placer or Placer(cluster, self._ruler, self._placement)
                destination, how = placer.place(bundle, source), "unload"
            self._moved.append(
                Moved(
                    cluster.at, bundle, source, destination, float(shares[bundle]), how,
                    move.stage.value, move.reason,
                    destination in cluster.left(bundle) and not changed[bundle] and not no_other_way(view.model, row),
                )
            )  # fmt: skip
            cluster.move(bundle, destination, self._conditions.delay_rounds)

    def _shares(self, owners: Ints) -> Floats:
        """(m,): each bundle's load as a share of the mean running broker."""
        capacity = self._scenario.capacity[self._scenario.present[self._cluster.at]]
        return self._ruler.shares(self._cluster.loads(owners), capacity)

    def _record(self, before: Ints, decision: Decision) -> None:
        scenario, cluster, ruler, at = self._scenario, self._cluster, self._ruler, self._cluster.at
        present, leaving = scenario.present[at], scenario.draining[at]
        active = present & ~leaving
        loads = cluster.loads(cluster.holder)
        self._usage[at, present] = ruler.usage(cluster.broker_loads(cluster.holder), scenario.capacity)[present]
        foreign, capacity = scenario.foreign[at], scenario.capacity
        # a machine that is five times slower has a fifth of the cores
        worth = capacity.copy()
        worth[:, CPU] /= scenario.slowness[at]
        self._even[at] = even_usage(ruler, worth[active], foreign[active], scenario.total(at))
        largest = np.zeros(scenario.brokers)
        own = (loads / capacity[cluster.holder] * ruler.weights).max(axis=1)
        np.maximum.at(largest, cluster.holder, own)
        self._allowed[at] = allowed_usage(ruler, self._even[at], foreign, largest, capacity)
        self._load[at] = self._shares(cluster.holder).sum()
        if not np.array_equal(before, cluster.place):
            self._bound[at] = self._had_to_move(before, present, leaving)
        found = decision.certificate
        if found is not None and found.proven:
            self._certified[at] = found.bound, found.moved if found.whole is None else found.whole

    def _had_to_move(self, before: Ints, present: Flags, leaving: Flags) -> float:
        """The load that had to move from `before` to the present places; loads as at their sources."""
        scenario, cluster, at = self._scenario, self._cluster, self._cluster.at
        loads, foreign = cluster.loads(before), scenario.foreign[at]
        was = summed(loads, before, scenario.brokers) + foreign
        became = summed(loads, cluster.place, scenario.brokers) + foreign
        gone = ~present
        # a broker that stopped since the last round had to give everything away, and counts with what it had
        rows = present | (np.bincount(before, minlength=scenario.brokers) > 0)
        capacity = np.where(present[:, None], scenario.capacity, scenario.capacity[present].mean(axis=0))
        return load_that_had_to_move(
            self._ruler, was[rows], became[rows], capacity[rows], float(self._even[at]), (leaving | gone)[rows],
            sound=bool((scenario.slowness[at] == 1).all()),
        )  # fmt: skip

    def run(self) -> Run:
        """The run so far."""
        scenario = self._scenario
        return Run(
            scenario=scenario,
            strategy=self._strategy.name,
            ruler=self._ruler,
            moved=tuple(self._moved),
            usage=self._usage,
            allowed=self._allowed,
            even=self._even,
            taking_part=scenario.present & ~scenario.draining,
            had_to_move=self._bound,
            certified=self._certified,
            load=self._load,
        )
