"""A modelled cluster for strategies: owners of bundles, moves under way, recent moves, and what a leader sees of it.

It has the state that a live leader gets from the channel and its history, and changes by moves and by brokers that come
and go. It decides nothing: destinations come from the strategy or the given placement. What the leader sees comes from
reports that may be stale. As in the live leader, moves under way count as done, and load that no reported bundle
explains is foreign.
"""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from loadmanager.errors import Unavailable
from loadmanager.model.cluster import (
    FREE,
    NOWHERE,
    UNLIMITED,
    Brokers,
    Bundles,
    ClusterModel,
    Constraints,
    Flags,
    Floats,
    Ints,
    unconstrained,
)
from loadmanager.model.observation import LOAD_CHANGE
from loadmanager.settings import Settings
from loadmanager.strategies.placement.placement import Candidate, Given, Placed
from loadmanager.strategies.playground.bounds import Ruler
from loadmanager.strategies.playground.scenario import BYTES_IN, BYTES_OUT, MESSAGES, Scenario, broker_names
from loadmanager.strategies.registry import PLACEMENTS
from statechannel.law.record import BrokerId

LEAST_PART = 0.01
"""Changes below this fraction of the broker's load do not count, as in the live leader."""
ASKED = [BYTES_IN, BYTES_OUT, MESSAGES]
"""The demand on a bundle, independent of its cost on a machine. Every profile has some of it."""


class SimulatedCluster:
    """The state in one round. `place` counts moves under way as done, `holder` does not. Rows as in the scenario."""

    def __init__(self, scenario: Scenario, settings: Settings) -> None:
        bundles = len(scenario.bundles)
        self.scenario = scenario
        self.at = 0
        self.place: Ints = scenario.home.astype(np.int64)
        self.holder = self.place.copy()
        self.lands = np.full(bundles, NOWHERE)
        """The round in which a move under way ends."""
        self.moved_at = np.full(bundles, -np.inf)
        self._asked_when_moved = np.zeros((bundles, scenario.capacity.shape[1]))
        self._left: dict[int, list[tuple[int, int]]] = {}
        self._incarnation = [1] * scenario.brokers
        self._rest_s = settings.bundle_rest_s

    @property
    def broker_ids(self) -> list[BrokerId]:
        """The present incarnation of each name, running or not."""
        names = broker_names(self.scenario.brokers)
        return [BrokerId(name, number) for name, number in zip(names, self._incarnation, strict=True)]

    def begin(self, at: int) -> list[int]:
        """Begin round `at`: moves end, brokers come and go. Returns the bundles that lost their owner."""
        self.at = at
        landed = (self.lands != NOWHERE) & (self.lands <= at)
        self.holder[landed] = self.place[landed]
        self.lands[landed] = NOWHERE
        present = self.scenario.present[at]
        if at > 0:
            for row in np.flatnonzero(present & ~self.scenario.present[at - 1]):
                self._incarnation[row] += 1
        # a move from or to a broker that is gone ends as well
        orphans = (self.place >= 0) & ~present[self.place]
        dead_source = (self.lands != NOWHERE) & ~present[self.holder]
        self.holder[dead_source] = self.place[dead_source]
        self.lands[orphans | dead_source] = NOWHERE
        return np.flatnonzero(orphans).tolist()

    def move(self, bundle: int, destination: int, delay_rounds: int = 0) -> None:
        """Make a planned move: it is remembered, and under way for `delay_rounds`."""
        self._left.setdefault(bundle, []).append((self.at, int(self.place[bundle])))
        self.moved_at[bundle] = self.at
        self._asked_when_moved[bundle] = self.scenario.asked(self.at)[bundle]
        self.place[bundle] = destination
        if delay_rounds:
            self.lands[bundle] = self.at + delay_rounds
        else:
            self.holder[bundle] = destination

    def adopt(self, bundle: int, owner: int) -> None:
        """Give a new owner to a bundle whose owner is gone. The move was not planned, so the bundle does not rest."""
        self.place[bundle] = self.holder[bundle] = owner

    def loads(self, owners: Ints) -> Floats:
        """(m, DIMENSIONS): the present cost of bundles with these owners."""
        return self.scenario.loads(self.at, owners)

    def broker_loads(self, owners: Ints) -> Floats:
        """(n, DIMENSIONS): the present load of brokers with these owners, foreign load included."""
        return summed(self.loads(owners), owners, self.scenario.brokers) + self.scenario.foreign[self.at]

    def moved_s(self) -> Floats:
        """(m,): how long ago each bundle's last planned move was, infinite without one."""
        return (self.at - self.moved_at) * self.scenario.interval_s

    def left(self, bundle: int) -> set[int]:
        """The brokers that planned moves took it from within its rest time."""
        recent = [each for each in self._left.get(bundle, []) if self._age_s(each[0]) < self._rest_s]
        return {row for _, row in recent}

    def moved_lately(self) -> list[int]:
        """Bundles for which `left` is not empty."""
        return [bundle for bundle, moves in self._left.items() if self._age_s(moves[-1][0]) < self._rest_s]

    def changed(self) -> Flags:
        """(m,): whether a bundle's load differs from that at its last planned move by the fraction `LOAD_CHANGE`.

        Judged by messages and bytes, as in the live leader: a bundle that left a slow machine did not change.
        """
        asked = self.scenario.asked(self.at)
        before, now = self._asked_when_moved[:, ASKED], asked[:, ASKED]
        whole = summed(asked, self.place, self.scenario.brokers)[self.place][:, ASKED]
        differs = np.abs(now - before) > np.maximum(LOAD_CHANGE * before, LEAST_PART * whole)
        changed: Flags = np.logical_or.reduce(differs, axis=1)
        return np.isfinite(self.moved_at) & changed

    def _age_s(self, round_: int) -> float:
        return (self.at - round_) * self.scenario.interval_s


def summed(loads: Floats, owners: Ints, brokers: int) -> Floats:
    """(brokers, DIMENSIONS): the sum over each broker's bundles; bundles without an owner do not count."""
    owned = owners >= 0
    sums: Floats = np.zeros((brokers, loads.shape[1]))
    for each in range(loads.shape[1]):
        sums[:, each] = np.bincount(owners[owned], loads[owned, each], brokers)
    return sums


class Conditions(msgspec.Struct, frozen=True):
    """Impairments of what a leader sees and does."""

    delay_rounds: int = 0
    """How many rounds moves take; with 0 they are done before the next round."""
    stale_rounds: int = 0
    """The most rounds by which a broker's report lags; drawn for each broker and round."""
    missing: float = 0.0
    """The probability that a broker's load is unknown in a round."""
    top_bundles: int | None = None
    """How many bundles a broker reports; None: all."""
    noise: float = 0.0
    """How wrongly a broker divides its load among its bundles: the standard deviation of the logarithm of each part,
    drawn for each bundle and round. The broker's own load is right."""


class View(msgspec.Struct, frozen=True, eq=False):
    """A model, with the scenario's rows of its brokers and bundles."""

    model: ClusterModel
    broker_rows: Ints
    bundle_rows: Ints


def observe(cluster: SimulatedCluster, settings: Settings, conditions: Conditions, rng: np.random.Generator) -> View:
    """The model of this round."""
    scenario, at = cluster.scenario, cluster.at
    rows = np.flatnonzero(scenario.present[at])
    model_row = np.full(scenario.brokers + 1, NOWHERE)
    model_row[rows] = np.arange(len(rows))
    lag = _lags(cluster, conditions, rng)
    loads = _reported(cluster, lag)
    ids = cluster.broker_ids
    used = (summed(loads, cluster.place, scenario.brokers) + scenario.foreign[at])[rows]
    loads = _attributed(loads, cluster.place, scenario.brokers, conditions.noise, rng)
    bundle_rows = _top(cluster, settings, conditions, loads)
    brokers = Brokers(
        ids=tuple(ids[row] for row in rows),
        capacity=scenario.capacity[rows],
        used=used,
        known=rng.random(len(rows)) >= conditions.missing,
        draining=scenario.draining[at][rows],
        paused=np.zeros(len(rows), np.bool_),
        bundles=np.bincount(cluster.place, minlength=scenario.brokers)[rows],
        max_bundles=np.full(len(rows), UNLIMITED),
        rate_msg_s=used[:, MESSAGES],
        throughput_bytes_s=used[:, BYTES_IN] + used[:, BYTES_OUT],
        domains=("",) * len(rows),
        versions=("",) * len(rows),
        report_age_s=(lag[rows] * scenario.interval_s).astype(np.float64),
    )
    bundles = _bundles(cluster, loads, bundle_rows, model_row)
    constraints = _constraints(cluster, settings, len(rows), bundle_rows)
    return View(ClusterModel(brokers, bundles, constraints, int(at * scenario.interval_s * 1000)), rows, bundle_rows)


def _lags(cluster: SimulatedCluster, conditions: Conditions, rng: np.random.Generator) -> Ints:
    """(n,): by how many rounds each broker's report lags."""
    if not conditions.stale_rounds:
        return np.zeros(cluster.scenario.brokers, np.int64)
    return np.minimum(cluster.at, rng.integers(0, conditions.stale_rounds + 1, cluster.scenario.brokers))


def _reported(cluster: SimulatedCluster, lag: Ints) -> Floats:
    loads = cluster.loads(cluster.place)
    if lag.any():
        scenario = cluster.scenario
        rounds = (cluster.at - lag)[cluster.place]
        then = scenario.activity[rounds, np.arange(len(rounds))]
        now = scenario.activity[cluster.at]
        loads = loads * np.divide(then, now, out=np.ones_like(now), where=now > 0)[:, None]
    return loads


def _attributed(loads: Floats, owners: Ints, brokers: int, noise: float, rng: np.random.Generator) -> Floats:
    """The loads as brokers divide them: each part is wrong, their sum is right."""
    if not noise:
        return loads
    wrong = loads * rng.lognormal(0.0, noise, len(loads))[:, None]
    true, told = summed(loads, owners, brokers), summed(wrong, owners, brokers)
    return wrong * np.divide(true, told, out=np.ones_like(true), where=told > 0)[owners]


def _top(cluster: SimulatedCluster, settings: Settings, conditions: Conditions, loads: Floats) -> Ints:
    """The bundles that brokers report: all, or each broker's with the largest shares of its load."""
    everything = np.arange(len(loads))
    if conditions.top_bundles is None:
        return everything
    totals = summed(loads, cluster.place, cluster.scenario.brokers)[cluster.place]
    heat = np.divide(loads, totals, out=np.zeros_like(loads), where=totals > 0).max(axis=1)
    order = np.lexsort((everything, -heat, cluster.place))
    owners = cluster.place[order]
    rank = np.arange(len(order)) - np.searchsorted(owners, owners)
    return np.sort(order[rank < conditions.top_bundles])


def _bundles(cluster: SimulatedCluster, loads: Floats, rows: Ints, model_row: Ints) -> Bundles:
    scenario = cluster.scenario
    loads = loads[rows]
    row_in_model = {int(row): number for number, row in enumerate(rows)}
    left = {
        row_in_model[bundle]: tuple(sorted(int(model_row[row]) for row in there if model_row[row] != NOWHERE))
        for bundle in cluster.moved_lately()
        if bundle in row_in_model and (there := cluster.left(bundle))
    }
    return Bundles(
        ids=scenario.bundles if len(rows) == len(scenario.bundles) else [scenario.bundles[row] for row in rows],
        namespaces=scenario.namespaces,
        namespace=scenario.namespace[rows],
        owner=model_row[cluster.place[rows]],
        load=loads,
        rate_msg_s=loads[:, MESSAGES],
        throughput_bytes_s=loads[:, BYTES_IN] + loads[:, BYTES_OUT],
        in_flight=(cluster.lands != NOWHERE)[rows],
        moved_s=cluster.moved_s()[rows],
        changed=cluster.changed()[rows],
        left={row: brokers for row, brokers in left.items() if brokers},
    )


def _constraints(cluster: SimulatedCluster, settings: Settings, brokers: int, rows: Ints) -> Constraints:
    free = unconstrained(brokers, len(rows), settings.bundle_rest_s)
    pinned = cluster.scenario.fixed[rows]
    if not pinned.any():
        return free
    return msgspec.structs.replace(
        free, rules=("pinned where it is",), fixed=np.where(pinned, 0, FREE).astype(np.int16)
    )


class Placer:
    """One round's placements: by the brokers' reports at its beginning, and the bundles given since."""

    def __init__(self, cluster: SimulatedCluster, ruler: Ruler, name: str) -> None:
        self._placement = PLACEMENTS.make(name)
        self._bundles = cluster.scenario.bundles
        self._ids = cluster.broker_ids
        self._row_of = {broker: row for row, broker in enumerate(self._ids)}
        self._given: Counter[BrokerId] = Counter()
        scenario, at = cluster.scenario, cluster.at
        present = scenario.present[at]
        owners = np.where((cluster.place >= 0) & present[cluster.place], cluster.place, -1)
        usage = ruler.usage(cluster.broker_loads(owners), scenario.capacity)
        counts = np.bincount(owners[owners >= 0], minlength=scenario.brokers)
        self._candidates = [
            Candidate(
                broker=self._ids[row],
                bundles=int(counts[row]),
                usage=float(usage[row]),
                reported_bundles=int(counts[row]),
                draining=bool(scenario.draining[at][row]),
            )
            for row in np.flatnonzero(present).tolist()
        ]

    def place(self, bundle: int, declined_by: int) -> int:
        """The row of the broker that gets the bundle; the declining one only if there is no other."""
        given = Given(bundles=self._given, declined_by=self._ids[declined_by] if declined_by >= 0 else None)
        answer = self._placement.choose(self._bundles[bundle], self._candidates, given)
        if not isinstance(answer, Placed):
            raise Unavailable(f"no broker is left for {self._bundles[bundle]}: {answer.reason}")
        self._given[answer.broker] += 1
        return self._row_of[answer.broker]
