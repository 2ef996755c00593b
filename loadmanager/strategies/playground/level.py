"""Computes how full brokers are, how full they would be if evenly loaded, and how much load had to move for a result.

Closed forms that know nothing of how a strategy works, so that they can judge all of them. `active` brokers run and are
not about to stop. Loads (n, DIMENSIONS) are in natural units; shares are fractions of the mean active broker's capacity
in the resource in question.
"""

from __future__ import annotations

import msgspec
import numpy as np

from loadmanager.model.cluster import Flags, Floats
from loadmanager.settings import Settings

IDLE = 0.05
"""Below this usage no broker counts as too full, however empty the others are: nothing is gained there."""
BESIDE = 0.01
"""The usage that a broker may have in addition to load that nobody can take from it."""


class Ruler(msgspec.Struct, frozen=True, eq=False):
    """The measure of usages: the weight of each resource, and by how much a broker may be fuller than even."""

    weights: Floats
    tolerance: float
    overloaded: float

    @classmethod
    def of(cls, settings: Settings) -> Ruler:
        weights = (settings.weight_cpu, settings.weight_memory, *[settings.weight_bandwidth] * 2)
        return cls(
            np.array([*weights, settings.weight_message_rate]), settings.tolerance, settings.overloaded_percent / 100
        )

    def usage(self, load: Floats, capacity: Floats) -> Floats:
        """(n,): the fullest resource of each broker."""
        return (load / capacity * self.weights).max(axis=1)

    def shares(self, load: Floats, capacity: Floats) -> Floats:
        """Each bundle's (or broker's) load in its largest resource, as a share of the mean broker's."""
        return (load * self.per_resource(capacity)).max(axis=1)

    def per_resource(self, capacity: Floats) -> Floats:
        """(DIMENSIONS,): one natural unit as a share of the mean broker; 0 for resources that don't count."""
        counted = np.isfinite(capacity).all(axis=0)
        return np.where(counted, self.weights / np.where(counted, capacity, 1.0).mean(axis=0), 0.0)


def water_level(capacity: Floats, foreign: Floats, movable: float) -> float:
    """The usage w at which Σ max(0, w · capacity - foreign) = movable, for one resource.

    Brokers above w by foreign load alone get nothing. `capacity` and `foreign` are (n,).
    """
    order = np.argsort(foreign / capacity)
    levels = (foreign / capacity)[order]
    capacities = np.cumsum(capacity[order])
    poured = np.cumsum(foreign[order])
    reached = (movable + poured) / capacities
    # the lowest level at which exactly the brokers below it are filled
    fits = np.flatnonzero(reached >= levels)
    return float(reached[fits[-1]]) if len(fits) else float(levels[0])


def even_usage(ruler: Ruler, capacity: Floats, foreign: Floats, movable: Floats) -> float:
    """The water level of the resource in which it is highest; `movable` (DIMENSIONS,)."""
    counted = np.flatnonzero(np.isfinite(capacity).all(axis=0) & (ruler.weights > 0))
    return max(
        ruler.weights[each] * water_level(capacity[:, each], foreign[:, each], movable[each]) for each in counted
    )


def allowed_usage(ruler: Ruler, even: float, foreign: Floats, largest: Floats, capacity: Floats) -> Floats:
    """(n,): up to which usage each broker counts as within tolerance.

    That is the even level plus the tolerance. A broker is not blamed for foreign load above it, nor for a larger
    bundle, which has to be somewhere; but then next to nothing else may be there. `largest` (n,) is each broker's usage
    by its largest bundle alone.
    """
    floor = ruler.usage(foreign, capacity) + largest
    return np.maximum(floor + BESIDE, max(IDLE, (1 + ruler.tolerance) * even))


def load_that_had_to_move(
    ruler: Ruler, before: Floats, after: Floats, capacity: Floats, even: float, leaving: Flags, *, sound: bool = True
) -> float:
    """The load that any algorithm had to move, as a share, to get as far as this outcome.

    That is the load by which brokers were above the even level, as far as they came down to it, or by which they were
    below and were filled. Load that left a broker below the level, that came back, or was swapped to and fro adds
    nothing. Brokers that are `leaving` have level 0. With several resources the largest of their results counts. If
    machines are not `sound`, a load differs at its destination, and only load that was given away counts.
    """
    scale = ruler.per_resource(capacity)
    counted = np.flatnonzero(scale > 0)
    goal = np.where(leaving, 0.0, even)[:, None] * capacity[:, counted] / ruler.weights[counted]
    was, became = before[:, counted], after[:, counted]
    given = np.maximum(0.0, was - np.maximum(became, goal)).sum(axis=0)
    if len(counted) > 1 or not sound:
        # with several resources only a broker's fullest must reach the level: the others don't show who was too empty
        return float((given * scale[counted]).max())
    taken = np.maximum(0.0, np.minimum(became, goal) - was)[~leaving].sum(axis=0)
    return float((np.maximum(given, taken) * scale[counted]).max())
