"""Many bundles placed on the least loaded brokers, with the same outcome as one after the other, in columns.

After the loss of many brokers tens of thousands of bundles need a place among hundreds of brokers. Asked singly, the
placement looks at all brokers for each of them, in Python. Here the figures of each broker are kept in arrays, and only
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
"""Bundles whose ranks are worked out together: so many that numpy's calls don't count, so few that they fit a cache."""

Floats = NDArray[np.float64]


class LeastLoadedBatch:
    """One sitting over the same candidates. `choose` must be the placement's own, for the rare cases."""

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
        """These will be asked for next, if nothing changes."""
        some = bundles[:FORESEEN]
        self._foreseen = dict(zip(some, ranks(some, self._seeds), strict=True))

    def choose(
        self, bundle: Bundle, declined_by: BrokerId | None = None, preferred: str | None = None
    ) -> BrokerId | None:
        """The broker for this bundle, None if nobody may take it. Whoever acts on it says `gave`."""
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
        """The broker was given one more bundle, or one less (-1), by this batch or by others; the table does not show
        it yet."""
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
            self._begin()  # that changes what a mean bundle is
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
        """One that takes bundles has one less: what a mean bundle is does not change by that."""
        self._counts[row] -= 1
        if self._known[row]:
            self._expected[row] = self._estimate(row)
        self._compare()

    def _begin(self) -> None:
        """All figures anew."""
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
        """What is expected of a broker whose usage is known, with what it holds by now."""
        usage, reported, per_bundle = self._slopes[:, row].tolist()
        return estimate((usage, reported, per_bundle), int(self._counts[row]))

    def _compare(self) -> None:
        """Who counts as equal to the least loaded: whoever does not has an infinite place in the order."""
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
