"""Periodic loads: days with phases, and an oscillation at the balancer's own period."""

from __future__ import annotations

import numpy as np

from loadmanager.strategies.playground.scenario import NAMESPACES, Scenario, Size, scenario, tiled

DAY_S = 86_400.0
SWING = 0.6
"""The amplitude of a day: the peak is (1 + SWING) times the mean."""
SECOND_HARMONIC = 0.2
BEAT = 0.25
"""The amplitude of the oscillation at the balancer's period: too small to count as a real change of load."""
BEAT_ROUNDS = 2


def diurnal(size: Size, rng: np.random.Generator) -> Scenario:
    """One day, whatever the number of rounds: a mean, two harmonics, and a phase for each namespace.

    The first half of the namespaces are regions around the clock; the others are pairs of tenants with opposite phases.
    1 + SWING·cos(2π(t - φ)) + SECOND_HARMONIC·cos(4π(t - φ)), t in days.
    """
    weights = rng.lognormal(0.0, 0.8, size.bundles)
    _, names, namespace = tiled(size.bundles, NAMESPACES)
    half = (len(names) + 1) // 2
    regions = np.arange(half) / half
    tenants = np.array([0.25 + 0.5 * (number % 2) for number in range(len(names) - half)])
    phases = np.concatenate([regions, tenants])[namespace] + rng.normal(0.0, 0.02, size.bundles)
    days = (np.arange(size.rounds) / size.rounds)[:, None] - phases[None, :]
    waves = 1 + SWING * np.cos(2 * np.pi * days) + SECOND_HARMONIC * np.cos(4 * np.pi * days)
    return scenario("diurnal", size, rng, weights * waves.clip(0.05), interval_s=DAY_S / size.rounds)


def oscillation(size: Size, rng: np.random.Generator) -> Scenario:
    """Two halves of the bundles oscillate in opposite phase, up in one round and down in the next.

    Each broker holds bundles of one half only. A strategy that chases the oscillation never settles.
    """
    weights = rng.uniform(0.8, 1.2, size.bundles)
    home = np.arange(size.bundles, dtype=np.int64) % size.brokers
    half = home % 2
    beats = 2 * np.pi * np.arange(size.rounds) / BEAT_ROUNDS
    waves = 1 + BEAT * np.cos(beats[:, None] + np.pi * half[None, :])
    return scenario("oscillation", size, rng, weights * waves, home=home)
