"""Places bundles without an owner in a modelled cluster, with one of the placement strategies."""

from __future__ import annotations

from collections import Counter

import numpy as np

from loadmanager.errors import Unavailable
from loadmanager.strategies.placement.placement import Candidate, Given, Placed
from loadmanager.strategies.placement.registry import PLACEMENTS
from loadmanager.strategies.playground.cluster import SimulatedCluster
from loadmanager.strategies.playground.level import Ruler
from statechannel.law.record import BrokerId


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
