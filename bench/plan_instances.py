"""Small models of a cluster for the comparison of `plan` with an exact solver: every kind of difficulty, from a seed.

A few brokers and up to two dozen bundles: so few that each bundle counts, and that the optimum can be found.
"""

from __future__ import annotations

from math import inf

import msgspec
import numpy as np

from loadmanager.model.cluster import ALLOWED, DIMENSIONS, FREE, UNLIMITED, Brokers, Bundles, ClusterModel, Constraints
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

REST_S = 1800.0
SIZES = (4.0, 8.0, 8.0, 16.0, 32.0)
"""Cores of brokers that differ."""
COLUMNS = (0, 2, 3)
"""The resources that count: the first so many."""


class Kind(msgspec.Struct, frozen=True):
    """What is hard about the models of a kind."""

    unequal: bool = False
    """Brokers differ in size; with several resources, in each of them on its own."""
    giant: float = 0.0
    """One bundle takes so large a part of the mean broker, at most."""
    resources: int = 1
    weights: bool = False
    """Moves of some bundles cost three or ten times as much."""
    pins: bool = False
    """Some bundles are pinned, and some load belongs to no bundle."""
    drains: bool = False
    """Brokers drain, are paused, or have no fresh load data."""
    places: bool = False
    """Isolation cuts the cluster in two that overlap, some bundles may not be on one, brokers are nearly full."""
    rests: bool = False
    """Some bundles rest, may not go back, or are in flight."""


KINDS: dict[str, Kind] = {
    "equal": Kind(),
    "unequal": Kind(unequal=True),
    "giants": Kind(unequal=True, giant=1.2),
    "weights": Kind(weights=True),
    "resources": Kind(resources=3),
    "unequal resources": Kind(unequal=True, resources=2),
    "pins": Kind(unequal=True, pins=True),
    "drains": Kind(unequal=True, drains=True),
    "places": Kind(places=True),
    "rests": Kind(rests=True),
    "everything": Kind(True, 0.8, 2, weights=True, pins=True, drains=True, places=True, rests=True),
}


def instance(kind: str, seed: int, *, brokers: int = 5, bundles: int = 24) -> ClusterModel:
    """The model of this kind and seed, of at most so many brokers and bundles."""
    what = KINDS[kind]
    rng = np.random.default_rng([seed, *kind.encode()])
    n, m = int(rng.integers(2, brokers + 1)), int(rng.integers(4, bundles + 1))
    capacity = np.full((n, DIMENSIONS), inf)
    for column in COLUMNS[: what.resources]:
        capacity[:, column] = rng.choice(SIZES, n) if what.unequal else 8.0
    owner = _owners(rng, n, m, capacity)
    load = np.zeros((m, DIMENSIONS))
    for column in COLUMNS[: what.resources]:
        load[:, column] = _loads(rng, m, capacity[:, column], what.giant)
    used = np.zeros((n, DIMENSIONS))
    np.add.at(used, owner, load)
    if what.pins:
        used[:, 0] += np.where(rng.random(n) < 0.4, rng.random(n) * 0.4 * capacity[:, 0], 0.0)
    rests = (rng.random(m) < 0.25) & what.rests
    out = rng.random(n) * (1.0 if what.drains else inf)
    held = np.bincount(owner, minlength=n).astype(np.int64)
    most = np.where((rng.random(n) < 0.3) & what.places, held + rng.integers(0, 4, n), UNLIMITED)
    return ClusterModel(
        _brokers(capacity, used, held, most, out),
        _bundles(owner, load, rests, rng),
        _rules(rng, what, n, m),
    )


def _owners(rng: np.random.Generator, n: int, m: int, capacity: np.ndarray) -> np.ndarray:
    """From nearly even to nearly all on one."""
    popularity = rng.random(n) ** rng.choice((0.3, 1.0, 3.0)) * capacity[:, 0] + 1e-9
    return rng.choice(n, m, p=popularity / popularity.sum()).astype(np.int64)


def _loads(rng: np.random.Generator, m: int, capacity: np.ndarray, giant: float) -> np.ndarray:
    drawn = rng.lognormal(0.0, float(rng.choice((0.2, 0.6, 1.2))), m)
    load = drawn / drawn.sum() * capacity.sum() * float(rng.choice((0.1, 0.3, 0.5, 0.7)))
    if giant:
        load[int(rng.integers(0, m))] = giant * float(rng.random()) * capacity.mean()
    return load


def _brokers(capacity: np.ndarray, used: np.ndarray, held: np.ndarray, most: np.ndarray, out: np.ndarray) -> Brokers:
    n = len(capacity)
    return Brokers(
        ids=tuple(BrokerId(f"b{at}:6650", 1) for at in range(n)),
        capacity=capacity,
        used=used,
        known=~((out > 0.25) & (out < 0.32)),
        draining=out < 0.18,
        paused=(out > 0.18) & (out < 0.25),
        bundles=held,
        max_bundles=most,
        rate_msg_s=np.zeros(n),
        throughput_bytes_s=np.zeros(n),
        domains=("",) * n,
        versions=("1.0",) * n,
    )


def _bundles(owner: np.ndarray, load: np.ndarray, rests: np.ndarray, rng: np.random.Generator) -> Bundles:
    m, n = len(owner), int(owner.max()) + 1
    return Bundles(
        ids=tuple(Bundle("t/n", at * 0x1000, (at + 1) * 0x1000) for at in range(m)),
        namespaces=("t/n",),
        namespace=np.zeros(m, np.int64),
        owner=owner,
        load=load,
        rate_msg_s=np.zeros(m),
        throughput_bytes_s=np.zeros(m),
        in_flight=rests & (rng.random(m) < 0.2),
        moved_s=np.where(rests, rng.random(m) * 1.3 * REST_S, inf),
        changed=rests & (rng.random(m) < 0.1),
        left={int(row): (int(rng.integers(0, n)),) for row in np.flatnonzero(rests)},
    )


def _rules(rng: np.random.Generator, what: Kind, n: int, m: int) -> Constraints:
    forbidden = np.full((4, n), ALLOWED, np.int16)
    if what.places and n > 2:
        side = rng.permutation(n)
        forbidden[1, side[: n // 2]], forbidden[2, side[n // 2 + 1 :]] = 0, 0
        forbidden[3, int(rng.integers(0, n))] = 1
    return Constraints(
        rules=("isolation policy 'half'", "excluded from one", "pinned"),
        kind=rng.choice(4, m, p=(0.4, 0.2, 0.2, 0.2)).astype(np.int64),
        forbidden=forbidden,
        fixed=np.where((rng.random(m) < 0.15) & what.pins, 2, FREE).astype(np.int16),
        rest_s=np.full(m, REST_S),
        weight=rng.choice((1.0, 3.0, 10.0), m, p=(0.6, 0.3, 0.1)) if what.weights else np.ones(m),
        group=np.full(m, FREE, np.int64),
    )
