"""Places many bundles on the least loaded brokers, with the same result as one after the other, but in columns.

After the loss of many brokers tens of thousands of bundles need a place among hundreds of brokers. Singly, the
placement would look at all brokers for each bundle, in Python. Here arrays hold the figures of each broker, and only
those of the broker that was just chosen change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from loadmanager.strategies.placement.model import Candidate, Given, NoPlace, Placed
from loadmanager.strategies.placement.ranking import ranks, seeds
from loadmanager.strategies.placement.sifting import MARGIN, estimate, estimates, slopes
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

FORESEEN = 512
"""How many bundles are ranked together: enough that numpy's calls don't count, few enough to fit into a cache."""

Floats = NDArray[np.float64]


class LeastLoadedBatch:
    """A batch over the same candidates. `choose` must be the placement's own; it serves the rare cases."""

    def __init__(
        self,
        choose: Callable[[Bundle, Sequence[Candidate], Given], Placed | NoPlace],
        candidates: Sequence[Candidate],
        given: Mapping[BrokerId, int],
        blur: Callable[[int], float],
    ) -> None:
        self._choose = choose
        self._blur = blur
        self._candidates = sorted(candidates, key=lambda each: each.broker)
        self._given = {each.broker: given.get(each.broker, 0) for each in candidates}
        self._foreseen: dict[Bundle, Floats] = {}
        self._begin()

    def foresee(self, bundles: Sequence[Bundle]) -> None:
        """Rank the bundles that come next, unless figures change before."""
        some = bundles[:FORESEEN]
        self._foreseen = dict(zip(some, ranks(some, self._seeds), strict=True))

    def choose(
        self, bundle: Bundle, declined_by: BrokerId | None = None, preferred: str | None = None
    ) -> BrokerId | None:
        """The broker for this bundle, None if nobody may take it. A caller that gives it the bundle calls `gave`."""
        if not self._eligible:
            return None
        if declined_by in self._rows:
            given = Given(self._given, declined_by, preferred)
            outcome = self._choose(bundle, self._candidates, given)
            return outcome.broker if isinstance(outcome, Placed) else None
        before = self._by_name.get(preferred)
        if before is not None and np.isfinite(self._order[before]):
            return self._eligible[before].broker
        rank = self._foreseen.pop(bundle, None)
        if rank is None or len(rank) != len(self._eligible):
            rank = ranks([bundle], self._seeds)[0]
        np.multiply(rank, self._blurred, out=self._scratch)
        self._scratch += self._order
        return self._eligible[int(self._scratch.argmin())].broker

    def gave(self, broker: BrokerId, change: int = 1) -> None:
        """The broker was given one more bundle, or one less (-1), by anybody, which the table does not show yet."""
        if broker not in self._given:
            return
        self._given[broker] += change
        row = self._rows.get(broker)
        if row is None or change not in (1, -1):
            self._begin()
            return
        if change == -1:
            self._take_back(row)
            return
        now, most = self._counts[row] + 1, self._most[row]
        if most is not None and now >= most:
            self._begin()  # a full broker drops out, which changes the mean bundle
            return
        self._counts[row] = now
        if self._known[row] and (usage := self._estimate(row)) != (before := self._expected[row]):
            self._expected[row] = usage
            if before <= self._least or usage > self._least + MARGIN:
                self._compare()
                return
        if self._order[row] == now - 1:
            self._order[row] = now
            if now - 1 == self._fewest:
                self._at_fewest -= 1
                if self._at_fewest == 0:
                    self._count()

    def _take_back(self, row: int) -> None:
        """An eligible broker has one bundle less; that does not change the mean bundle."""
        self._counts[row] -= 1
        if self._known[row]:
            self._expected[row] = self._estimate(row)
        self._compare()

    def _begin(self) -> None:
        """Compute all figures again."""
        held = {each.broker: each.bundles + self._given[each.broker] for each in self._candidates}
        self._eligible = [
            each
            for each in self._candidates
            if not each.draining and (each.max_bundles is None or held[each.broker] < each.max_bundles)
        ]
        self._rows = {each.broker: row for row, each in enumerate(self._eligible)}
        self._by_name: dict[str | None, int] = {each.broker.name: row for row, each in enumerate(self._eligible)}
        self._seeds = seeds([each.broker for each in self._eligible])
        self._foreseen.clear()
        self._counts = np.array([held[each.broker] for each in self._eligible], np.float64)
        self._most = [each.max_bundles for each in self._eligible]
        self._known = np.array([each.usage is not None for each in self._eligible], np.bool_)
        self._slopes = slopes(self._eligible)
        self._expected = np.where(self._known, estimates(self._slopes, self._counts), inf)
        self._scratch = np.empty(len(self._expected))
        self._compare()

    def _estimate(self, row: int) -> float:
        """The expected usage of a broker with known usage, with its present bundles."""
        usage, reported, per_bundle = self._slopes[:, row].tolist()
        return estimate((usage, reported, per_bundle), int(self._counts[row]))

    def _compare(self) -> None:
        """Find the brokers that count as equal to the least loaded; the others get an infinite place in the order."""
        if not self._eligible:
            return
        self._least = float(self._expected.min())
        equal = ~self._known | (self._expected <= self._least + MARGIN)
        self._order = np.where(equal, self._counts, inf)
        self._count()

    def _count(self) -> None:
        self._fewest = int(self._order.min())
        self._at_fewest = int((self._order == self._fewest).sum())
        self._blurred = self._blur(self._fewest)
