"""How often each fault and request happens: drawn anew for each run, or given by name to test a corner."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

SWARM = (0, 0, 1, 1, 5)


class FaultProfile:
    """Weights of a run's faults and requests. `given`: only these, with these weights; else each run draws its own.

    Many of a few kinds and none of others finds more than a little of everything (Groce et al., Swarm Testing, ISSTA
    2012).
    """

    def __init__(self, random: Random, given: Mapping[str, int] | None = None) -> None:
        self._random = random
        self._given = given

    def weigh(self, usual: Mapping[str, int]) -> dict[str, int]:
        """The weights of this run, for choices that usually have these."""
        if self._given is not None:
            weights = {name: self._given.get(name, 0) for name in usual}
        else:
            weights = {name: weight * self._random.choice(SWARM) for name, weight in usual.items()}
        return weights if any(weights.values()) else dict(usual)
