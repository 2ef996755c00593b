"""Placement by rendezvous hashing alone: every caller gets the same answer, whatever it knows of load.

For services whose bundles cost about the same, or that want to find what they cached before: a broker that comes or
goes affects only its own bundles.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadmanager.strategies.placement.model import Candidate, Given, NoPlace, Placed
from loadmanager.strategies.placement.ranking import rendezvous
from loadmanager.strategies.placement.sifting import willing
from statechannel.law.bundle import Bundle


class Rendezvous:
    """Rendezvous hashing. The former owner has no advantage: if it had the lowest rank, it gets the bundle again."""

    name = "rendezvous"

    def choose(self, bundle: Bundle, candidates: Sequence[Candidate], given: Given) -> Placed | NoPlace:
        """The broker for this bundle; a broker that declined it only if there is no other."""
        found = willing(candidates, given)
        if isinstance(found, NoPlace):
            return found
        chosen_from, refused = found
        chosen = min(chosen_from, key=lambda each: (rendezvous(bundle, each.broker), each.broker)).broker
        return Placed(chosen, f"{chosen.name} has the lowest rank of {len(chosen_from)} brokers", refused)
