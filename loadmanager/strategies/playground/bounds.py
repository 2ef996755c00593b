"""How much load had to move: by the levels of brokers, and in hindsight by an LP. Lower bounds for every strategy.

The levels are closed forms that know nothing of how a strategy works. `active` brokers run and are not about to stop.
Loads (n, DIMENSIONS) are in natural units; shares are fractions of the mean active broker's capacity in the resource in
question.

The LP has full foresight over a whole game. In each of some sampled rounds, enough of a broker's home bundles must have
left that the rest fits. It lets bundles be cut, ignores their destinations, and lets each leave when it is lightest
since the round before. So no strategy that keeps the cluster within tolerance in those rounds moves less.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadmanager.errors import needs_extra
from loadmanager.model.cluster import Flags, Floats, Ints
from loadmanager.settings import Settings
from loadmanager.strategies.playground.scenario import CPU, Scenario

IDLE = 0.05
"""Below this usage no broker counts as too full, however empty the others are: nothing is gained there."""
BESIDE = 0.01
"""The usage that a broker may have in addition to load that no broker can take from it."""


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

    That is the even level plus the tolerance. A broker may be above it because of foreign load, or of a larger bundle,
    which has to be somewhere; but then next to nothing else may be there. `largest` (n,) is each broker's usage
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
        # with several resources only a broker's fullest must reach the level: the others don't show which is too empty
        return float((given * scale[counted]).max())
    taken = np.maximum(0.0, np.minimum(became, goal) - was)[~leaving].sum(axis=0)
    return float((np.maximum(given, taken) * scale[counted]).max())


GRACE_ROUNDS = 10
"""In these first rounds a strategy need not have balanced anything."""
SAMPLES = 12


def hindsight_bound(scenario: Scenario, ruler: Ruler) -> float:
    """The bound, in shares of the mean broker; 0 if nothing had to move.

    NaN, which proves nothing, if several resources count, or no broker runs all the time.
    """
    here = scenario.present & ~scenario.draining
    if not scenario.one_dimension or not here.all(axis=0).any():
        return float("nan")
    rounds = np.unique(np.linspace(min(GRACE_ROUNDS, scenario.rounds - 1), scenario.rounds - 1, SAMPLES).astype(int))
    resource = int(np.flatnonzero(np.isfinite(scenario.capacity).any(axis=0))[0])
    stayed = np.logical_and.accumulate(here, axis=0)
    excess = np.array([_excess(scenario, ruler, int(at), resource) for at in rounds])
    excess[~stayed[rounds]] = 0.0
    share = float(ruler.per_resource(scenario.capacity)[resource])
    total = 0.0
    for broker in np.flatnonzero(excess.max(axis=0) > 0):
        mine = np.flatnonzero(scenario.home == broker)
        total += _least(scenario, resource, rounds, mine, excess[:, broker], int(broker))
    return total * share


def _excess(scenario: Scenario, ruler: Ruler, at: int, resource: int) -> Floats:
    """(n,): the home load that must be elsewhere in this round."""
    capacity, foreign = scenario.capacity, scenario.foreign[at]
    active = scenario.present[at] & ~scenario.draining[at]
    worth = capacity.copy()
    worth[:, CPU] /= scenario.slowness[at]
    even = even_usage(ruler, worth[active], foreign[active], scenario.total(at))
    load = scenario.loads(at, scenario.home)[:, resource]
    # Its own largest bundle may stay. One from elsewhere raises the allowed usage by less than it adds.
    largest = np.zeros(scenario.brokers)
    np.maximum.at(largest, scenario.home, ruler.weights[resource] * load / capacity[scenario.home, resource])
    allowed = allowed_usage(ruler, even, foreign, largest, capacity) * capacity[:, resource] / ruler.weights[resource]
    mine = np.bincount(scenario.home, load, scenario.brokers) + foreign[:, resource]
    return np.maximum(0.0, mine - allowed)


def _least(
    scenario: Scenario, resource: int, rounds: NDArray[np.int64], mine: Ints, excess: Floats, broker: int
) -> float:
    """One broker's LP. away[k, i] is the fraction of bundle i that is away in sample k; leaves[k, i] ≥ its growth."""
    with needs_extra("playground", "the least that had to move"):
        from scipy.optimize import linprog  # takes a moment to import
        from scipy.sparse import block_diag, csr_matrix, eye, hstack, vstack

    load = scenario.activity[:, mine] * scenario.profile[mine, resource]
    if resource == CPU:
        load = load * scenario.slowness[:, broker, None]
    starts = np.concatenate([[0], rounds[:-1] + 1])
    price = np.array([load[a : b + 1].min(axis=0) for a, b in zip(starts, rounds, strict=True)]).ravel()
    size, many = len(price), len(mine)
    growth = eye(size, format="csr") - eye(size, k=-many, format="csr")
    rule = hstack([growth, -eye(size, format="csr")])
    fits = hstack([block_diag([-load[at][None, :] for at in rounds]), csr_matrix((len(rounds), size))])
    answer = linprog(
        np.concatenate([np.zeros(size), price]),
        A_ub=vstack([rule, fits], format="csr"),
        b_ub=np.concatenate([np.zeros(size), -excess]),
        bounds=(0, 1),
        method="highs",
    )
    if not answer.success:
        raise RuntimeError(f"the bound of {scenario.name} was not found: {answer.message}")
    return float(answer.fun)
