"""Placement on the least loaded eligible broker, counting the bundles that it was just given.

Load reports are seconds old, and many lookups come at once: by the reports alone, all would go to the coldest broker.
So each bundle that a broker got since its report counts as a mean one of that broker. Brokers within a margin of the
least loaded count as equal. Among them the fewest bundles decide, and if counts are close a hash of bundle and broker,
on which all callers agree.

After the loss of many brokers, tens of thousands of bundles need a place among hundreds of brokers. `LeastLoadedBatch`
gives each the broker that `LeastLoaded` would, but in columns: arrays hold the figures of each broker, and only those
of the broker that was just chosen change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum, inf

import numpy as np
from numpy.typing import NDArray

from loadmanager.model.load import share
from loadmanager.strategies.placement.placement import Candidate, Given, NoPlace, Placed, count, willing
from loadmanager.strategies.placement.rendezvous import RANKS, ranks, rendezvous, seeds
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

BLUR = 1 / 32
"""Counts within this fraction are told apart by the bundle's hash as well.

Else callers whose views are 30 records old would all fill the same broker until they notice (3.4 % off even; now 1.9 %,
with 1,024 bundles on 3 brokers).
"""


class LeastLoaded:
    """The least loaded broker."""

    name = "least-loaded"

    def choose(self, bundle: Bundle, candidates: Sequence[Candidate], given: Given) -> Placed | NoPlace:
        """The broker for this bundle; a broker that declined it only if there is no other."""
        found = willing(candidates, given)
        if isinstance(found, NoPlace):
            return found
        chosen_from, refused = found
        mean = mean_work(chosen_from)
        expected = {each.broker: expected_usage(each, count(each, given), mean) for each in chosen_from}
        least = min((usage for usage in expected.values() if usage is not None), default=None)
        equal = [
            each
            for each in chosen_from
            if (usage := expected[each.broker]) is None or least is None or usage <= least + MARGIN
        ]
        chosen = next((each for each in equal if each.broker.name == given.preferred), None)
        if chosen is None:
            blurred = blur(min(count(each, given) for each in equal))
            order = {e.broker: count(e, given) + blurred * rendezvous(bundle, e.broker) for e in equal}
            chosen = min(equal, key=lambda each: (order[each.broker], each.broker))
        return Placed(chosen.broker, _why(chosen, expected[chosen.broker], equal, chosen_from, given), refused)

    def batch(self, candidates: Sequence[Candidate], given: Mapping[BrokerId, int]) -> LeastLoadedBatch:
        """Begin a batch: as `choose` for one bundle after another, each counting as given for the next."""
        return LeastLoadedBatch(self, candidates, given)


def blur(fewest: int) -> float:
    """How much a rank counts, in bundles, if the smallest count is `fewest`."""
    return max(1, fewest) * BLUR / RANKS


def _why(
    chosen: Candidate, usage: float | None, equal: Sequence[Candidate], among: Sequence[Candidate], given: Given
) -> str:
    name, load = chosen.broker.name, "no fresh load data" if usage is None else f"expected usage {usage:.0%}"
    if chosen.broker == given.declined_by:
        return f"{name} declined it, but no other broker may take it"
    if chosen.broker.name == given.preferred:
        return f"{name} had it before and is among the least loaded ({load})"
    bundles = f"{count(chosen, given)} bundles"
    return f"{name} has {bundles}, about the fewest of the {len(equal)} least loaded of {len(among)} brokers ({load})"


FORESEEN = 512
"""How many bundles are ranked together: enough that numpy's calls don't count, few enough to fit into a cache."""

Floats = NDArray[np.float64]


class LeastLoadedBatch:
    """A batch over the same candidates. The single placement serves the rare cases."""

    def __init__(self, single: LeastLoaded, candidates: Sequence[Candidate], given: Mapping[BrokerId, int]) -> None:
        self._single = single
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
        """The broker for this bundle, None if no broker may take it. A caller that gives it the bundle calls `gave`."""
        if not self._eligible:
            return None
        if declined_by in self._rows:
            given = Given(self._given, declined_by, preferred)
            outcome = self._single.choose(bundle, self._candidates, given)
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
        """The broker was given one more bundle, or one less (-1), by any broker; the table does not show it yet."""
        if broker not in self._given:
            return
        self._given[broker] += change
        row = self._rows.get(broker)
        if row is None or change not in (1, -1):
            self._begin()
            return
        if change == -1:  # the mean bundle stays the same
            self._counts[row] -= 1
            if self._known[row]:
                self._expected[row] = self._estimate(row)
            self._compare()
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
        self._blurred = blur(self._fewest)


MARGIN = 0.10
"""Usages this close count as equal: smaller differences are measurement noise."""

BUSY = 0.75
"""From this usage on a broker is spared although its bundles have no traffic.

Such a broker is busy with something else (its start, lookups, a neighbour). Below this, the load will pass, and must
not decide where bundles live for weeks.
"""

_FULL = 1.0

Slope = tuple[float, float, float]
"""The reported usage, the number of bundles then, and the usage that each further one adds."""


def mean_work(candidates: Sequence[Candidate]) -> float:
    """The mean usage that one bundle causes on these brokers; independent of their order."""
    reported = [each for each in candidates if each.usage is not None]
    return share(fsum(map(_work, reported)), sum(each.reported_bundles for each in reported))


def expected_usage(candidate: Candidate, bundles: int, mean: float) -> float | None:
    """The usage with this many bundles, at most that of a full broker: beyond it an estimate means nothing."""
    return None if candidate.usage is None else estimate(slope(candidate, mean), bundles)


def slope(candidate: Candidate, mean: float) -> Slope:
    """How its usage grows with each bundle beyond its report."""
    reported = candidate.reported_bundles
    return _own_usage(candidate), reported, share(_work(candidate), reported) if reported else mean


def estimate(of: Slope, bundles: int) -> float:
    """See `expected_usage`."""
    usage, reported, per_bundle = of
    came = bundles - reported
    return max(usage, min(_FULL, usage + came * per_bundle)) if came > 0 else usage


def slopes(candidates: Sequence[Candidate]) -> Floats:
    """(3, n): the `slope` of each candidate, by the same formula; meaningless if its usage is unknown."""
    usage = np.array([each.usage or 0.0 for each in candidates], np.float64)
    reported = np.array([0 if each.usage is None else each.reported_bundles for each in candidates], np.float64)
    traffic = np.array([each.traffic for each in candidates], np.bool_)
    own = np.where(traffic | (usage >= BUSY), usage, 0.0)
    work = np.maximum(0.0, own - MARGIN)
    mean = share(fsum(work), reported.sum())  # unknown brokers have no work
    return np.array([own, reported, np.where(reported > 0, work / np.maximum(reported, 1.0), mean)])


def estimates(of: Floats, bundles: Floats) -> Floats:
    """(n,): `estimate` of each."""
    usage, reported, per_bundle = of
    came = bundles - reported
    return np.where(came > 0, np.maximum(usage, np.minimum(_FULL, usage + came * per_bundle)), usage)


def _own_usage(candidate: Candidate) -> float:
    """The usage that counts: all, or 0 if the broker's bundles are idle and it is not busy otherwise."""
    usage = candidate.usage or 0.0
    return usage if candidate.traffic or usage >= BUSY else 0.0


def _work(candidate: Candidate) -> float:
    """The usage that its bundles cause: what exceeds the margin.

    A process without work also uses a few percent. Attributed to its first bundles, they would make each further one
    look expensive.
    """
    return max(0.0, _own_usage(candidate) - MARGIN)
