"""A modelled cluster for strategies: owners of bundles, moves under way, recent moves.

It has the state that a live leader gets from the channel and its history, and changes by moves and by brokers that come
and go. It decides nothing: destinations come from the strategy or the given placement.
"""

from __future__ import annotations

import numpy as np

from loadmanager.model.cluster import NOWHERE, Flags, Floats, Ints
from loadmanager.settings import Settings
from loadmanager.strategies.playground.scenario import BYTES_IN, BYTES_OUT, MESSAGES, Scenario, broker_names
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
        self._change = settings.load_change_percent / 100

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
        """Give a new owner to a bundle whose owner is gone. This is no planned move, so the bundle does not rest."""
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
        """(m,): whether a bundle's load differs from that at its last planned move by `load_change_percent`.

        Judged by messages and bytes, as in the live leader: a bundle that left a slow machine did not change.
        """
        asked = self.scenario.asked(self.at)
        before, now = self._asked_when_moved[:, ASKED], asked[:, ASKED]
        whole = summed(asked, self.place, self.scenario.brokers)[self.place][:, ASKED]
        differs = np.abs(now - before) > np.maximum(self._change * before, LEAST_PART * whole)
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
