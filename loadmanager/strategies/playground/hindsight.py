"""The least load that anybody had to move in a whole game, with full foresight: a lower bound, by an LP.

In each of some sampled rounds, enough of a broker's home bundles must have left that the rest fits. The bound lets
bundles be cut, ignores their destinations, and lets each leave when it is lightest since the round before. So no
strategy that keeps the cluster within tolerance in those rounds moves less.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loadmanager.errors import needs_extra
from loadmanager.model.cluster import Floats, Ints
from loadmanager.strategies.playground.level import Ruler, allowed_usage, even_usage
from loadmanager.strategies.playground.scenario import CPU, Scenario

GRACE_ROUNDS = 10
"""In these first rounds nobody needs to have balanced anything."""
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
