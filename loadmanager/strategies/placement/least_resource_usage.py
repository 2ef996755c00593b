"""Placement as in Pulsar's extensible load manager (LeastResourceUsageWithWeight); a baseline that ours improves on.

Chooses one of the brokers whose usage is well below the mean, or if there is none, of all brokers, however full or
unknown. Bundles that a broker was just given do not count, so a burst of lookups lands on the few that were low a
moment ago; and one full broker can lift the mean so little that nobody is well below it. Pulsar chooses at random, here
the bundle's hash decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from loadmanager.strategies.placement.model import Candidate, Given, NoPlace, Placed
from loadmanager.strategies.placement.ranking import rendezvous
from loadmanager.strategies.placement.sifting import willing
from statechannel.law.bundle import Bundle


class LeastResourceUsage:
    """Pulsar's placement. Its margin is `Given.margin`, the setting `placement_margin_percent`."""

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
            else f"nobody is {given.margin:.0%} below the mean"
        )
        return Placed(chosen.broker, f"one of {len(best)} of {len(chosen_from)} brokers: {rule}", refused)
