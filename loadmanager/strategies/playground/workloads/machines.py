"""Workloads of machines: unequal, degraded, coming and going; too large a bundle; several resources."""

from __future__ import annotations

import msgspec
import numpy as np

from loadmanager.model.cluster import Floats
from loadmanager.strategies.playground.scenario import (
    BYTES_IN,
    BYTES_OUT,
    BYTES_PER_MESSAGE,
    CORES,
    CPU,
    MESSAGES,
    MESSAGES_PER_CORE,
    PLAIN,
    Scenario,
    Size,
    scenario,
)

NEIGHBOUR = (0.3, 0.5)
"""The fraction of a broker's cores that a foreign process takes."""
SLOWER = 5.0
DRAIN_ROUNDS = 4
AWAY_ROUNDS = 2
BIG = 0.6
"""The fraction of the largest broker's cores that one bundle needs."""


def _calm(size: Size, rng: np.random.Generator) -> Floats:
    """Loads that differ between bundles, constant in time but for noise of 2 %."""
    noise = rng.normal(1.0, 0.02, (size.rounds, size.bundles)).clip(0.9, 1.1)
    return rng.lognormal(0.0, 0.6, size.bundles) * noise


def unequal(size: Size, rng: np.random.Generator) -> Scenario:
    """Brokers of a half, one and two times the usual size, each with equally many bundles at first."""
    return scenario("unequal", size, rng, _calm(size, rng), cores=_unequal_cores(size))


def unequal_big(size: Size, rng: np.random.Generator) -> Scenario:
    """The same brokers, and one bundle that is too large for the usual ones."""
    cores = _unequal_cores(size)
    activity = _with_a_giant(_calm(size, rng), BIG * CORES * 2, 0.5 * float(cores.sum()))
    return scenario("unequal-big", size, rng, activity, cores=cores)


def _unequal_cores(size: Size) -> Floats:
    return CORES * np.array([0.5, 1.0, 2.0])[np.arange(size.brokers) % 3]


def noisy(size: Size, rng: np.random.Generator) -> Scenario:
    """Each sixth broker has a neighbour that takes a third to a half of its cores, in the middle half of the game."""
    made = scenario("noisy", size, rng, _calm(size, rng))
    foreign = made.foreign.copy()
    struck = rng.permutation(size.brokers)[: max(1, size.brokers // 6)]
    middle = slice(size.rounds // 4, size.rounds * 3 // 4)
    foreign[middle, struck, CPU] = CORES * rng.uniform(*NEIGHBOUR, len(struck))
    return msgspec.structs.replace(made, foreign=foreign)


def grey(size: Size, rng: np.random.Generator) -> Scenario:
    """One broker's CPU becomes five times slower in the middle third, without any report of it."""
    made = scenario("grey", size, rng, _calm(size, rng), usage=0.4)
    slowness = made.slowness.copy()
    slowness[size.rounds // 3 : size.rounds * 2 // 3, rng.integers(size.brokers)] = SLOWER
    return msgspec.structs.replace(made, slowness=slowness)


def restart(size: Size, rng: np.random.Generator) -> Scenario:
    """A rolling restart: each broker drains, is away, and comes back empty, before the next one begins.

    In a game that is too short for all, the last ones stay as they are.
    """
    made = scenario("restart", size, rng, _calm(size, rng), usage=0.45)
    present, draining = made.present.copy(), made.draining.copy()
    step = max(3, size.rounds // (size.brokers + 2))
    drain = min(DRAIN_ROUNDS, step - 2)
    for broker in range(min(size.brokers, size.rounds // step - 1)):
        begin = step * (broker + 1)
        draining[begin : begin + drain, broker] = True
        present[begin + drain : begin + drain + min(AWAY_ROUNDS, step - drain), broker] = False
    return msgspec.structs.replace(made, present=present, draining=draining)


def autoscaling(size: Size, rng: np.random.Generator) -> Scenario:
    """Half of the brokers, then all, then half again (5→10→5 with ten): they come empty, and drain before they go."""
    few = max(1, size.brokers // 2)
    home = rng.permutation(size.bundles) % few
    made = scenario("autoscaling", size, rng, _calm(size, rng), home=home, usage=0.6 * few / size.brokers)
    present, draining = made.present.copy(), made.draining.copy()
    grow, shrink = size.rounds // 4, size.rounds * 5 // 8
    present[:grow, few:] = False
    draining[shrink : shrink + DRAIN_ROUNDS, few:] = True
    present[shrink + DRAIN_ROUNDS :, few:] = False
    return msgspec.structs.replace(made, present=present, draining=draining)


def big(size: Size, rng: np.random.Generator) -> Scenario:
    """One bundle needs more than half a broker, and sits among as many others as every broker has."""
    usage = 0.5
    activity = _with_a_giant(_calm(size, rng), BIG * CORES, usage * CORES * size.brokers)
    return scenario("big", size, rng, activity, usage=usage)


def _with_a_giant(activity: Floats, giant: float, total: float) -> Floats:
    """The activity with a first bundle that needs `giant` cores, of `total` for all."""
    rest = activity.sum(axis=1).mean() * (1 - giant / total)
    activity[:, 0] = 0.0
    activity *= rest / activity.sum(axis=1).mean()
    activity[:, 0] = rest * giant / (total - giant)
    return activity


def mixed(size: Size, rng: np.random.Generator) -> Scenario:
    """Three kinds of tenants: CPU, many readers, or many small messages. All resources count."""
    made = scenario("mixed", size, rng, _calm(size, rng), usage=0.4)
    kinds = np.tile(PLAIN, (3, 1))
    kinds[0, [BYTES_IN, BYTES_OUT, MESSAGES]] *= 0.3
    kinds[1, CPU] *= 0.6
    kinds[1, BYTES_OUT] *= 3.0
    kinds[2, CPU] *= 0.6
    kinds[2, MESSAGES] *= 2.5
    capacity = made.capacity.copy()
    capacity[:, [BYTES_IN, BYTES_OUT]] = CORES * MESSAGES_PER_CORE * BYTES_PER_MESSAGE * np.array([0.8, 1.2])
    capacity[:, MESSAGES] = CORES * MESSAGES_PER_CORE * 1.6
    return msgspec.structs.replace(made, profile=kinds[rng.integers(3, size=size.bundles)], capacity=capacity)
