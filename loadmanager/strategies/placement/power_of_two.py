"""Placement by two choices: the bundle's hash names two brokers, the emptier one gets it.

It needs little data and is robust: if load data are old, or many ask at once, no broker is flooded, since each is one
of the two only for few bundles. It cannot balance precisely.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest

from loadmanager.strategies.placement.model import Candidate, Given, NoPlace, Placed
from loadmanager.strategies.placement.ranking import rendezvous
from loadmanager.strategies.placement.sifting import count, expected_usage, mean_work, willing
from statechannel.law.bundle import Bundle


class PowerOfTwo:
    """The better of two brokers; the former owner is one of them."""

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
