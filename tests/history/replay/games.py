"""Games so small that every outcome can be tried, and workloads of which it is known what is good for them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from loadmanager.history.replay.cost import Judge, Terms
from loadmanager.history.replay.game import Recorded, Step
from loadmanager.model.cluster import DIMENSIONS, Ints
from loadmanager.strategies.playground.game import Run, play
from loadmanager.strategies.playground.scenario import CPU, MESSAGES, Size, scenario, tiled
from tests.simulation.balance.strategies import still

LOPSIDED = Size(brokers=4, bundles=24, rounds=120)


def game(loads: Any, home: Any, *, brokers: int, cores: float = 10.0, **changes: Any) -> Recorded:
    """`loads` (T, m) in cores, or (T, m, DIMENSIONS)."""
    loads = np.asarray(loads, float)
    if loads.ndim == 2:
        loads = np.concatenate([loads[:, :, None], np.zeros((*loads.shape, DIMENSIONS - 1))], axis=2)
    rounds, size = loads.shape[:2]
    bundles, namespaces, namespace = tiled(size)
    capacity = np.full((brokers, DIMENSIONS), np.inf)
    capacity[:, CPU] = cores
    shape = (rounds, brokers)
    given: dict[str, Any] = {
        "name": "small", "interval_s": 60.0, "bundles": bundles, "namespaces": namespaces, "namespace": namespace,
        "profile": np.ones((size, DIMENSIONS)), "activity": np.ones((rounds, size)), "capacity": capacity,
        "home": np.asarray(home), "foreign": np.zeros((*shape, DIMENSIONS)), "slowness": np.ones(shape),
        "present": np.ones(shape, np.bool_), "draining": np.zeros(shape, np.bool_),
        "fixed": np.zeros(size, np.bool_), "load": loads,
    }  # fmt: skip
    return Recorded(**{**given, **changes})


def drawn(seed: int) -> Recorded:
    """A game of three rounds with two or three brokers, one of which may go, and one or two resources that count."""
    rng = np.random.default_rng(seed)
    brokers, size = [(2, 3), (3, 2), (2, 2)][seed % 3]
    loads = np.zeros((3, size, DIMENSIONS))
    loads[:, :, CPU] = rng.exponential(3.0, (3, size))
    loads[:, :, MESSAGES] = rng.exponential(30.0, (3, size))
    capacity = np.full((brokers, DIMENSIONS), np.inf)
    capacity[:, CPU] = rng.uniform(4.0, 10.0, brokers)
    if seed % 2:
        capacity[:, MESSAGES] = rng.uniform(50.0, 100.0, brokers)
    foreign = np.zeros((3, brokers, DIMENSIONS))
    foreign[:, :, CPU] = rng.exponential(0.5, (3, brokers))
    present = np.ones((3, brokers), np.bool_)
    if seed % 5 == 0:
        present[rng.integers(1, 3) :, rng.integers(brokers)] = False
    home = np.zeros(size, np.int64) if seed % 4 else rng.integers(0, brokers, size)
    return game(loads, home, brokers=brokers, capacity=capacity, foreign=foreign, present=present)


def every_outcome(judge: Judge) -> Iterator[Terms]:
    """Of all ways to place all bundles in all rounds, on brokers that run, what each costs."""
    made = judge.scenario
    size = len(made.bundles)
    choices = [list(itertools.product(np.flatnonzero(made.present[at]), repeat=size)) for at in range(made.rounds)]
    for chosen in itertools.product(*choices):
        owner = np.array(chosen, np.int64)
        yield judge.terms(owner, tuple(moves(made, owner)))


def moves(made: Recorded, owner: Ints) -> Iterator[Step]:
    """What was moved for that."""
    before = np.vstack([made.home, owner[:-1]])
    for at, bundle in np.argwhere(owner != before).tolist():
        gone = not made.present[at, before[at, bundle]]
        yield Step(at, bundle, "death" if gone else "transfer")


def lopsided(rounds: int = LOPSIDED.rounds, usage: float = 0.4) -> Run:
    """Nobody balances, and one broker has three fifths of all load, in bundles that fit anywhere: who moves gains.

    That broker is 2.4 times as full as `usage`, the mean.
    """
    size = Size(LOPSIDED.brokers, LOPSIDED.bundles, rounds)
    rng = np.random.default_rng(7)
    home = np.arange(size.bundles) % size.brokers
    weight = np.where(home == 0, 4.5, 1.0) * rng.uniform(0.9, 1.1, size.bundles)
    noise = rng.normal(1.0, 0.02, (rounds, size.bundles)).clip(0.9, 1.1)
    made = scenario("lopsided", size, rng, weight * noise, home=home, usage=usage)
    return play(made, still())
