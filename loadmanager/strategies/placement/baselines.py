"""Two other placements, to compare with: the better of two brokers, and that of Pulsar."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from math import fsum

from loadmanager.strategies.placement.least_loaded import expected_usage, mean_work
from loadmanager.strategies.placement.placement import Candidate, Given, NoPlace, Placed, count, willing
from loadmanager.strategies.placement.rendezvous import rendezvous
from statechannel.law.bundle import Bundle


class PowerOfTwo:
    """Placement by two choices: the bundle's hash names two brokers, the emptier one gets it.

    It needs little data and is robust. Old load data or many callers at once flood no broker, since each broker is one
    of the two only for few bundles. It cannot balance precisely. The former owner is one of the two.
    """

    name = "power-of-two"

    def choose(self, bundle: Bundle, candidates: Sequence[Candidate], given: Given) -> Placed | NoPlace:
        """The broker for this bundle; a broker that declined it only if there is no other."""
        found = willing(candidates, given)
        if isinstance(found, NoPlace):
            return found
        chosen_from, refused = found

        def order(each: Candidate) -> tuple[bool, int]:
            return each.broker.name != given.preferred, rendezvous(bundle, each.broker)

        two = nsmallest(2, chosen_from, key=lambda each: (*order(each), each.broker))
        mean = mean_work(chosen_from)
        usages = [expected_usage(each, count(each, given), mean) for each in two]
        loads = [usage for usage in usages if usage is not None]
        if len(loads) == len(two):
            chosen = min(zip(two, loads, strict=True), key=lambda pair: (pair[1], count(pair[0], given)))[0]
            why = " and ".join(f"{each.broker.name} {load:.0%}" for each, load in zip(two, loads, strict=True))
        else:
            chosen = min(two, key=lambda each: count(each, given))
            why = " and ".join(f"{each.broker.name} {count(each, given)} bundles" for each in two)
        return Placed(chosen.broker, f"the emptier of {why}", refused)


class LeastResourceUsage:
    """Placement as in Pulsar's extensible load manager (LeastResourceUsageWithWeight).

    Chooses one of the brokers whose usage is below the mean by the margin `Given.margin`,
    or if there is none, of all brokers, however full or unknown. Bundles that a broker was just given do not count, so
    a burst of lookups lands on the few that were low a moment ago. One full broker can lift the mean so little that no
    broker is well below it. Pulsar chooses at random; here the bundle's hash decides.
    """

    name = "least-resource-usage"

    def choose(self, bundle: Bundle, candidates: Sequence[Candidate], given: Given) -> Placed | NoPlace:
        """The broker for this bundle; a broker that declined it only if there is no other."""
        found = willing(candidates, given)
        if isinstance(found, NoPlace):
            return found
        chosen_from, refused = found
        usages = {each.broker: each.usage for each in chosen_from if each.usage is not None}
        mean = fsum(usages.values()) / len(usages) if usages else 0.0
        low = [e for e in chosen_from if e.usage is not None and e.usage + given.margin <= mean]
        best = low or chosen_from
        chosen = next((each for each in best if each.broker.name == given.preferred), None)
        chosen = chosen or min(best, key=lambda each: (rendezvous(bundle, each.broker), each.broker))
        rule = (
            f"{given.margin:.0%} below the mean of {mean:.0%}"
            if low
            else f"no broker is {given.margin:.0%} below the mean"
        )
        return Placed(chosen.broker, f"one of {len(best)} of {len(chosen_from)} brokers: {rule}", refused)
