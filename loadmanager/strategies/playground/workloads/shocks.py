"""Loads that change suddenly: a flash crowd, a deployment, a batch at the full hour."""

from __future__ import annotations

import numpy as np

from loadmanager.strategies.playground.scenario import Scenario, Size, scenario, tiled

CROWDS = 3
CROWD = (10.0, 30.0)
"""The factor of a bundle's load at the crowd's peak."""
RAMP_S = 120.0
HALF_LIFE_S = 600.0
CROWDED_BUNDLES = 4
HOUR_S = 3_600.0
BATCH_S = 600.0
BATCH = 2.5


def flash(size: Size, rng: np.random.Generator) -> Scenario:
    """Crowds on a few bundles of one namespace: up ten- to thirtyfold within two minutes, then half every ten minutes.

    The height of a crowd is 1 + (peak - 1) · min(1, s / RAMP_S) · 2^(-max(0, s - RAMP_S) / HALF_LIFE_S), s seconds
    after it begins.
    """
    weights = rng.lognormal(0.0, 0.5, size.bundles)
    _, names, namespace = tiled(size.bundles)
    activity = np.tile(weights, (size.rounds, 1))
    seconds = np.arange(size.rounds) * 60.0
    for begin in np.linspace(0.15, 0.65, CROWDS) * size.rounds:
        members = np.flatnonzero(namespace == rng.integers(len(names)))
        hit = rng.choice(members, min(CROWDED_BUNDLES, len(members)), replace=False)
        since = seconds - np.floor(begin) * 60.0
        rise = np.clip(since / RAMP_S, 0.0, 1.0)
        fall = 2.0 ** (-np.maximum(0.0, since - RAMP_S) / HALF_LIFE_S)
        activity[:, hit] *= 1 + (rng.uniform(*CROWD) - 1) * (rise * fall)[:, None]
    return scenario("flash", size, rng, activity)


def steps(size: Size, rng: np.random.Generator) -> Scenario:
    """One tenant is deployed (from nearly no load), one grows for a backfill, one runs a batch at every full hour."""
    weights = rng.lognormal(0.0, 0.8, size.bundles)
    _, names, namespace = tiled(size.bundles)
    deployed, backfilled, hourly = rng.permutation(len(names))[:3] if len(names) >= 3 else (0, 0, 0)
    rounds = np.arange(size.rounds)
    factors = np.ones((size.rounds, len(names)))
    factors[rounds < size.rounds // 4, deployed] *= 0.05
    factors[(rounds >= size.rounds // 2) & (rounds < size.rounds * 3 // 4), backfilled] *= 2.0
    factors[((rounds * 60.0) % HOUR_S < BATCH_S) & (rounds > 0), hourly] *= BATCH
    return scenario("steps", size, rng, weights * factors[:, namespace])
