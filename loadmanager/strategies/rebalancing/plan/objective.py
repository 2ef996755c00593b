"""The one number that the plan lowers: what the brokers' usages cost, plus what moving costs. Pure arithmetic.

With x = usage above the limit, of a broker that takes part:

    over    target / 4 + 16 x + 16 x²     for being out of tolerance at all, for how much, and the fullest first
    idle    4 (idle - usage)              for each point below a quarter of the target
    empty   target                        for holding no bundle while there is something to hold
    uneven  4                             for each pool with a broker that is out of tolerance
    move    weight (size + target / 500)  a move costs its load, and a fixed part
    barred  1,000,000                     a bundle that a hard rule, or a drain, forbids to be where it is
    group   100                           a namespace that needlessly sits where another of its group does

Overshoot costs four times what undershoot does, as in Dicer. No move is made that doesn't lower the sum.
"""

from __future__ import annotations

import numpy as np

from loadmanager.model.cluster import Floats
from loadmanager.strategies.rebalancing.plan.scale import Scale

OVER, UNDER = 16.0, 4.0
OUT_OF_TOLERANCE = 0.25
UNEVEN = 4.0
FIXED_PART = 0.002
BARRED = 1_000_000.0
TOGETHER = 100.0
EPSILON = 1e-9
"""Usages that differ by less count as equal: they are sums of floating point numbers."""


class Costs:
    """Costs of brokers and moves under one scale; plain Python numbers, as it is called for one broker at a time."""

    def __init__(self, scale: Scale) -> None:
        self._takes_part = scale.takes_part.tolist()
        self._target = scale.target.tolist()
        self._limit = scale.limit.tolist()
        self._idle = scale.idle.tolist()

    def usage(self, broker: int, usage: float, bundles: int) -> float:
        """The cost of this usage of a broker's fullest resource; 0 for a broker that takes no part."""
        if not self._takes_part[broker]:
            return 0.0
        over = usage - self._limit[broker]
        if over > EPSILON:
            return OUT_OF_TOLERANCE * self._target[broker] + OVER * over + OVER * over * over
        idle = self._idle[broker]
        if usage >= idle:
            return 0.0
        empty = self._target[broker] if bundles <= 0 else 0.0
        return UNDER * (idle - usage) + empty

    def usages(self, broker: int, usage: Floats) -> Floats:
        """As `usage`, for many usages of a broker that holds bundles."""
        if not self._takes_part[broker]:
            return np.zeros_like(usage)
        over = np.maximum(0.0, usage - self._limit[broker])
        cost = np.where(over > EPSILON, OUT_OF_TOLERANCE * self._target[broker] + OVER * over * (1 + over), 0.0)
        return cost + UNDER * np.maximum(0.0, self._idle[broker] - usage)

    def move(self, size: float, weight: float, target: float) -> float:
        """The cost of moving a bundle to or from a broker with this target."""
        return weight * (size + FIXED_PART * target)
