"""Loads of which a few bundles have the most: Zipf with drifting ranks, heavy tails, bursts."""

from __future__ import annotations

import numpy as np

from loadmanager.model.cluster import Floats
from loadmanager.strategies.playground.scenario import Scenario, Size, scenario

EXPONENTS = (0.6, 0.9)
"""Of Zipf's law; drawn between. Above 1 the first bundle alone would fill a broker: that is the workload `big`."""
DRIFT = 1 / 4800
"""By which part of all ranks the order turns in a round."""
BURST = 5.0
"""By how much a bundle in a burst has more than when calm."""
TO_BURST, TO_CALM = 0.01, 0.2
"""Chances a round: a bundle bursts every 100 rounds, for 5."""
TAIL = 1.5
"""Of the Pareto part: a finite mean, no finite variance."""
LARGEST = 30.0
"""Times the mean; the tail is cut there, because what no broker can carry is nobody's merit."""


def zipf_weights(bundles: int, exponent: float) -> Floats:
    """Zipf's law: the weight of rank r (from 1) is r^-exponent, scaled to the sum 1."""
    weights = np.arange(1, bundles + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


def zipf(size: Size, rng: np.random.Generator) -> Scenario:
    """Zipf weights whose ranks turn slowly: what is hot cools down, and something else gets hot.

    Bundle i has in round t the weight of the place `(rank_i + t · DRIFT · m) mod m` of the ring, taken between
    neighbouring ranks.
    """
    weights = zipf_weights(size.bundles, rng.uniform(*EXPONENTS))
    ranks = rng.permutation(size.bundles)
    # a triangle over the ring of ranks, so that a bundle rises and falls and does not jump from the last to the first
    hill = np.concatenate([weights[::2], weights[1::2][::-1]])
    places = ranks[None, :] + np.arange(size.rounds)[:, None] * DRIFT * size.bundles
    low = np.floor(places).astype(np.int64)
    part = places - low
    activity = (1 - part) * hill[low % size.bundles] + part * hill[(low + 1) % size.bundles]
    return scenario("zipf", size, rng, activity)


def heavy(size: Size, rng: np.random.Generator) -> Scenario:
    """Log-normal and Pareto bundles that stay as they are, but for noise of a few per cent."""
    body = rng.lognormal(0.0, 1.0, size.bundles)
    tail = rng.pareto(TAIL, size.bundles) + 1.0
    weights = np.where(rng.random(size.bundles) < 0.8, body, tail)
    weights = np.minimum(weights, LARGEST * weights.mean())
    noise = rng.normal(1.0, 0.03, (size.rounds, size.bundles)).clip(0.8, 1.2)
    return scenario("heavy", size, rng, weights * noise)


def bursty(size: Size, rng: np.random.Generator) -> Scenario:
    """Markov-modulated: each bundle is calm or bursts, and changes over by chance (MMPP, its rates as loads)."""
    weights = rng.lognormal(0.0, 0.7, size.bundles)
    stationary = TO_BURST / (TO_BURST + TO_CALM)
    bursts = rng.random(size.bundles) < stationary
    activity = np.empty((size.rounds, size.bundles))
    for at in range(size.rounds):
        activity[at] = weights * np.where(bursts, BURST, 1.0)
        dice = rng.random(size.bundles)
        bursts = np.where(bursts, dice >= TO_CALM, dice < TO_BURST)
    return scenario("bursty", size, rng, activity)
