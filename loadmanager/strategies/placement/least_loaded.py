"""Placement on the least loaded eligible broker, counting the bundles that it was just given.

Load reports are seconds old, and many lookups come at once: by the reports alone, all would go to the coldest broker.
So each bundle that a broker got since its report counts as a mean one of that broker. Brokers within a margin of the
least loaded count as equal. Among them the fewest bundles decide, and if counts are close a hash of bundle and broker,
on which all callers agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadmanager.strategies.placement.least_loaded_batch import LeastLoadedBatch
from loadmanager.strategies.placement.model import Candidate, Given, NoPlace, Placed
from loadmanager.strategies.placement.ranking import RANKS, rendezvous
from loadmanager.strategies.placement.sifting import MARGIN, count, expected_usage, mean_work, willing
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

BLUR = 1 / 32
"""Counts within this fraction are told apart by the bundle's hash as well.

Else callers whose views are 30 records old would all fill the same broker until they notice (3.4 % off even; so 1.9 %,
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
        equal = [each for each in chosen_from if _within_margin(expected[each.broker], least)]
        fewest = min(count(each, given) for each in equal)
        chosen = _preferred(equal, given) or min(equal, key=lambda each: _order(bundle, each, given, fewest))
        return Placed(chosen.broker, _why(chosen, expected[chosen.broker], equal, chosen_from, given), refused)

    def batch(self, candidates: Sequence[Candidate], given: Mapping[BrokerId, int]) -> LeastLoadedBatch:
        """Begin a batch: as `choose` for one bundle after another, each counting as given for the next."""
        return LeastLoadedBatch(self.choose, candidates, given, blur)


def blur(fewest: int) -> float:
    """How much a rank counts, in bundles, if the smallest count is `fewest`."""
    return max(1, fewest) * BLUR / RANKS


def _within_margin(usage: float | None, least: float | None) -> bool:
    return usage is None or least is None or usage <= least + MARGIN


def _preferred(equal: Sequence[Candidate], given: Given) -> Candidate | None:
    return next((each for each in equal if each.broker.name == given.preferred), None)


def _order(bundle: Bundle, candidate: Candidate, given: Given, fewest: int) -> tuple[float, BrokerId]:
    rank = rendezvous(bundle, candidate.broker)
    return count(candidate, given) + blur(fewest) * rank, candidate.broker


def _why(
    chosen: Candidate, usage: float | None, equal: Sequence[Candidate], among: Sequence[Candidate], given: Given
) -> str:
    name, load = chosen.broker.name, "no fresh load data" if usage is None else f"expected usage {usage:.0%}"
    if chosen.broker == given.declined_by:
        return f"{name} declined it, but nobody else may take it"
    if chosen.broker.name == given.preferred:
        return f"{name} had it before and is among the least loaded ({load})"
    bundles = f"{count(chosen, given)} bundles"
    return f"{name} has {bundles}, about the fewest of the {len(equal)} least loaded of {len(among)} brokers ({load})"
