"""Random models of every shape that the plan must cope with, from a seed, and what becomes of one by moves."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import msgspec
import numpy as np

from loadmanager.model.cluster import (
    ALLOWED,
    DIMENSIONS,
    FREE,
    UNLIMITED,
    Brokers,
    Bundles,
    ClusterModel,
    Constraints,
    unconstrained,
)
from loadmanager.strategies.rebalancing.decision import Move
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

REST_S = 1800.0
STEP = 0x1000


def plain_model(
    seed: int,
    brokers: int = 5,
    bundles: int = 40,
    *,
    dimensions: int = 1,
    mean: float = 0.4,
    skew: float = 1.0,
    sigma: float = 1.0,
    foreign: float = 0.0,
    unequal: bool = False,
) -> ClusterModel:
    """Log-normal bundles on brokers of which some hold many; no policy. `mean` is the mean usage of the brokers."""
    rng = np.random.default_rng(seed)
    capacity = np.full((brokers, DIMENSIONS), inf)
    capacity[:, :1] = rng.choice((4.0, 8.0, 16.0), (brokers, 1)) if unequal else 8.0
    for extra in (2, 3, 4)[: dimensions - 1]:
        capacity[:, extra] = capacity[:, 0] * 1e6
    popularity = rng.random(brokers) ** skew * capacity[:, 0]
    owner = rng.choice(brokers, bundles, p=popularity / popularity.sum())
    load = np.zeros((bundles, DIMENSIONS))
    for column in (0, 2, 3, 4)[:dimensions]:
        drawn = rng.lognormal(0.0, sigma, bundles)
        load[:, column] = drawn / drawn.sum() * capacity[:, column].sum() * mean
    used = np.zeros((brokers, DIMENSIONS))
    np.add.at(used, owner, load)
    used[:, 0] += rng.random(brokers) * foreign * capacity[:, 0]
    return ClusterModel(
        _brokers(brokers, capacity, used, np.bincount(owner, minlength=brokers)),
        _bundles(owner, load, np.zeros(bundles, np.int64), 1),
        unconstrained(brokers, bundles, REST_S),
    )


def _brokers(n: int, capacity: np.ndarray, used: np.ndarray, bundles: np.ndarray) -> Brokers:
    return Brokers(
        ids=tuple(BrokerId(f"b{at:04}:6650", 1) for at in range(n)),
        capacity=capacity,
        used=used,
        known=np.ones(n, np.bool_),
        draining=np.zeros(n, np.bool_),
        paused=np.zeros(n, np.bool_),
        bundles=bundles.astype(np.int64),
        max_bundles=np.full(n, UNLIMITED),
        rate_msg_s=np.zeros(n),
        throughput_bytes_s=np.zeros(n),
        domains=("",) * n,
        versions=("1.0",) * n,
    )


def _bundles(owner: np.ndarray, load: np.ndarray, namespace: np.ndarray, namespaces: int) -> Bundles:
    m = len(owner)
    return Bundles(
        ids=tuple(Bundle(f"t/n{namespace[at]}", at * STEP, (at + 1) * STEP) for at in range(m)),
        namespaces=tuple(f"t/n{at}" for at in range(namespaces)),
        namespace=namespace.astype(np.int64),
        owner=owner.astype(np.int64),
        load=load,
        rate_msg_s=np.zeros(m),
        throughput_bytes_s=np.zeros(m),
        in_flight=np.zeros(m, np.bool_),
        moved_s=np.full(m, inf),
        changed=np.zeros(m, np.bool_),
        left={},
    )


def ruled_model(seed: int) -> ClusterModel:
    """A small model under rules of every kind: isolation, exclusion, pins, limits, groups, drains, rests, weights."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(2, 9)), int(rng.integers(1, 60))
    model = plain_model(
        seed,
        n,
        m,
        dimensions=int(rng.integers(1, 5)),
        mean=float(rng.choice((0.005, 0.1, 0.4, 0.7, 0.95))),
        skew=float(rng.choice((0.0, 1.0, 4.0))),
        sigma=float(rng.choice((0.3, 1.0, 2.0))),
        foreign=float(rng.choice((0.0, 0.3))),
        unequal=bool(rng.random() < 0.3),
    )
    namespace = rng.integers(0, 6, m)
    bundles = _bundles(model.bundles.owner, model.bundles.load, namespace, 6)
    moved = rng.random(m) < 0.2
    bundles = msgspec.structs.replace(
        bundles,
        in_flight=rng.random(m) < 0.05,
        moved_s=np.where(moved, rng.random(m) * 2 * REST_S, inf),
        changed=moved & (rng.random(m) < 0.2),
        left={int(row): (int(rng.integers(0, n)),) for row in np.flatnonzero(moved)},
    )
    brokers = msgspec.structs.replace(
        model.brokers,
        known=rng.random(n) < 0.9,
        draining=rng.random(n) < 0.1,
        paused=rng.random(n) < 0.07,
        max_bundles=np.where(rng.random(n) < 0.2, model.brokers.bundles + rng.integers(0, 4, n), UNLIMITED),
        domains=tuple(str(domain) for domain in rng.choice(("", "x", "y"), n)),
    )
    return ClusterModel(brokers, bundles, _rules(rng, brokers, bundles))


def _rules(rng: np.random.Generator, brokers: Brokers, bundles: Bundles) -> Constraints:
    n, m = len(brokers), len(bundles)
    forbidden = np.full((4, n), ALLOWED, np.int16)
    half = rng.random(n) < 0.5
    if rng.random() < 0.5:
        forbidden[1, half], forbidden[2, ~half] = 0, 0
    forbidden[3, int(rng.integers(0, n))] = 1
    group = np.where(bundles.namespace < 3, 0, np.where(bundles.namespace == 3, 1, FREE))
    here = np.zeros((len(bundles.namespaces), n), np.int64)
    np.add.at(here, (bundles.namespace, bundles.owner), 1)
    presence = np.array([(here[:3] > 0).sum(axis=0), (here[3:4] > 0).sum(axis=0)])
    return Constraints(
        rules=("isolation policy 'half'", "excluded from one", "pinned"),
        kind=rng.choice(4, m, p=(0.5, 0.2, 0.2, 0.1)).astype(np.int64),
        forbidden=forbidden,
        fixed=np.where(rng.random(m) < 0.05, 2, FREE).astype(np.int16),
        rest_s=np.full(m, REST_S),
        weight=rng.choice((1.0, 3.0), m),
        group=group.astype(np.int64),
        groups=("spread", "alone"),
        spread_over_domains=bool(rng.random() < 0.5),
        presence=presence,
        namespace_here=here,
    )


def after(model: ClusterModel, moves: Iterable[Move], *, rest_s: float | None = None) -> ClusterModel:
    """The model once the moves are made: what moved has moved just now, and has left where it was."""
    rows = {bundle: row for row, bundle in enumerate(model.bundles.ids)}
    owner, used = model.bundles.owner.copy(), model.brokers.used.copy()
    held, moved_s, changed = model.brokers.bundles.copy(), model.bundles.moved_s.copy(), model.bundles.changed.copy()
    left = dict(model.bundles.left)
    here = None if model.constraints.namespace_here is None else model.constraints.namespace_here.copy()
    presence = None if model.constraints.presence is None else model.constraints.presence.copy()
    for move in moves:
        assert move.destination is not None
        row, source = rows[move.bundle], model.brokers.rows[move.source]
        destination = model.brokers.rows[move.destination]
        assert owner[row] == source
        owner[row] = destination
        used[source] = np.maximum(0.0, used[source] - model.bundles.load[row])
        used[destination] += model.bundles.load[row]
        held[source] -= 1
        held[destination] += 1
        moved_s[row], changed[row] = 0.0, False
        left[row] = (*left.get(row, ()), source)
        group, namespace = int(model.constraints.group[row]), int(model.bundles.namespace[row])
        if group != FREE and here is not None and presence is not None:
            here[namespace, source] -= 1
            presence[group, source] -= int(here[namespace, source] == 0)
            presence[group, destination] += int(here[namespace, destination] == 0)
            here[namespace, destination] += 1
    constraints = msgspec.structs.replace(model.constraints, namespace_here=here, presence=presence)
    if rest_s is not None:
        constraints = msgspec.structs.replace(constraints, rest_s=np.full(len(owner), rest_s))
    return ClusterModel(
        msgspec.structs.replace(model.brokers, used=used, bundles=held),
        msgspec.structs.replace(model.bundles, owner=owner, moved_s=moved_s, changed=changed, left=left),
        constraints,
    )
