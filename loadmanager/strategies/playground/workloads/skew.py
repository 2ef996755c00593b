"""Skewed loads: Zipf with drifting ranks, heavy tails, bursts."""

from __future__ import annotations

import numpy as np

from loadmanager.model.cluster import Floats
from loadmanager.strategies.playground.scenario import Scenario, Size, scenario

EXPONENTS = (0.6, 0.9)
"""The range of Zipf exponents. Above 1 the first bundle alone would fill a broker: that is the workload `big`."""
DRIFT = 1 / 4800
"""The fraction of all ranks by which the order turns in a round."""
BURST = 5.0
"""The factor of a bundle's load in a burst."""
TO_BURST, TO_CALM = 0.01, 0.2
"""Probabilities per round: a bundle bursts every 100 rounds, for 5."""
TAIL = 1.5
"""The exponent of the Pareto part: a finite mean, no finite variance."""
LARGEST = 30.0
"""The largest load as a multiple of the mean; what no broker can carry would not compare strategies."""


def zipf_weights(bundles: int, exponent: float) -> Floats:
    """Zipf's law: the weight of rank r (from 1) is r^-exponent, scaled to the sum 1."""
    weights = np.arange(1, bundles + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


def zipf(size: Size, rng: np.random.Generator) -> Scenario:
    """Zipf weights whose ranks turn slowly: hot bundles cool down, and others get hot.

    In round t bundle i has the weight at the place `(rank_i + t · DRIFT · m) mod m` of the ring, interpolated between
    neighbouring ranks.
    """
    weights = zipf_weights(size.bundles, rng.uniform(*EXPONENTS))
    ranks = rng.permutation(size.bundles)
    # a triangle over the ring of ranks: a bundle rises and falls, and never jumps from the last rank to the first
    hill = np.concatenate([weights[::2], weights[1::2][::-1]])
    places = ranks[None, :] + np.arange(size.rounds)[:, None] * DRIFT * size.bundles
    low = np.floor(places).astype(np.int64)
    part = places - low
    activity = (1 - part) * hill[low % size.bundles] + part * hill[(low + 1) % size.bundles]
    return scenario("zipf", size, rng, activity)


def heavy(size: Size, rng: np.random.Generator) -> Scenario:
    """Log-normal and Pareto bundles, constant but for noise of a few per cent."""
    body = rng.lognormal(0.0, 1.0, size.bundles)
    tail = rng.pareto(TAIL, size.bundles) + 1.0
    weights = np.where(rng.random(size.bundles) < 0.8, body, tail)
    weights = np.minimum(weights, LARGEST * weights.mean())
    noise = rng.normal(1.0, 0.03, (size.rounds, size.bundles)).clip(0.8, 1.2)
    return scenario("heavy", size, rng, weights * noise)


def bursty(size: Size, rng: np.random.Generator) -> Scenario:
    """Markov-modulated: each bundle is calm or bursts, and switches at random (MMPP, its rates as loads)."""
    weights = rng.lognormal(0.0, 0.7, size.bundles)
    stationary = TO_BURST / (TO_BURST + TO_CALM)
    bursts = rng.random(size.bundles) < stationary
    activity = np.empty((size.rounds, size.bundles))
    for at in range(size.rounds):
        activity[at] = weights * np.where(bursts, BURST, 1.0)
        dice = rng.random(size.bundles)
        bursts = np.where(bursts, dice >= TO_CALM, dice < TO_BURST)
    return scenario("bursty", size, rng, activity)
