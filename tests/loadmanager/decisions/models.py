"""Cluster models for tests: by hand, and any that Hypothesis thinks of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from loadmanager.model.cluster import (
    ALLOWED,
    DIMENSIONS,
    FREE,
    NOWHERE,
    UNLIMITED,
    Brokers,
    Bundles,
    ClusterModel,
    Constraints,
    unconstrained,
)
from statechannel.law.bundle import FULL_UPPER, Bundle
from statechannel.law.record import BrokerId

NAMESPACE = "shop/carts"


def broker(name: str) -> BrokerId:
    return BrokerId(f"{name}:6650", 1)


def bundle(number: int, namespace: str = NAMESPACE) -> Bundle:
    return Bundle(namespace, number << 16, (number + 1) << 16)


def model(
    loads: Mapping[str, Sequence[float]],
    *,
    foreign: Mapping[str, float] | None = None,
    cores: float = 10.0,
    rest_s: float = 1800.0,
    at_ms: int = 1_900_000_000_000,
) -> ClusterModel:
    """Brokers by name, each with bundles of so many cores, numbered through. A usage is cores / `cores`."""
    names = sorted(loads)
    ids = [broker(name) for name in names]
    rows = [(at, cpu) for at, name in enumerate(names) for cpu in loads[name]]
    n, m = len(names), len(rows)
    capacity = np.full((n, DIMENSIONS), math.inf)
    capacity[:, 0] = cores
    used = np.zeros((n, DIMENSIONS))
    used[:, 0] = [sum(loads[name]) + (foreign or {}).get(name, 0.0) for name in names]
    load = np.zeros((m, DIMENSIONS))
    load[:, 0] = [cpu for _, cpu in rows]
    flags = lambda length: np.zeros(length, np.bool_)  # noqa: E731 - it reads better here
    return ClusterModel(
        Brokers(
            ids=tuple(ids), capacity=capacity, used=used, known=~flags(n), draining=flags(n), paused=flags(n),
            bundles=np.array([len(loads[name]) for name in names], np.int64), max_bundles=np.full(n, UNLIMITED),
            rate_msg_s=np.zeros(n), throughput_bytes_s=np.zeros(n), domains=("",) * n, versions=("1.0",) * n,
        ),
        Bundles(
            ids=[bundle(number) for number in range(m)], namespaces=(NAMESPACE,), namespace=np.zeros(m, np.int64),
            owner=np.array([at for at, _ in rows], np.int64), load=load, rate_msg_s=np.zeros(m),
            throughput_bytes_s=np.zeros(m), in_flight=flags(m), moved_s=np.full(m, math.inf), changed=flags(m), left={},
        ),
        unconstrained(n, m, rest_s),
        at_ms,
    )  # fmt: skip


def floats(shape: Any) -> Any:
    return hnp.arrays(np.float64, shape, elements=st.floats(allow_nan=False, width=64))


def wholes(shape: Any, low: int, high: int) -> Any:
    return hnp.arrays(np.int64, shape, elements=st.integers(low, high))


@st.composite
def models(draw: st.DrawFn) -> ClusterModel:
    n, m = draw(st.integers(0, 5)), draw(st.integers(0, 12))
    flags = lambda length: hnp.arrays(np.bool_, length)  # noqa: E731
    names = draw(st.lists(st.text("abc:é", min_size=1, max_size=5), min_size=n, max_size=n, unique=True))
    homes = draw(st.lists(st.sampled_from(["a/b", "c/d", "é/f"]), min_size=m, max_size=m))
    bounds = st.tuples(st.integers(0, FULL_UPPER), st.integers(0, FULL_UPPER))
    ranges = draw(st.lists(bounds, min_size=m, max_size=m))
    namespaces = tuple(dict.fromkeys(homes))
    kinds, rules = draw(st.integers(1, 3)), draw(st.integers(0, 3))
    grouped = draw(st.booleans())
    left = st.dictionaries(st.integers(0, max(m - 1, 0)), st.lists(st.integers(0, 4), max_size=3).map(tuple))
    return ClusterModel(
        Brokers(
            ids=tuple(BrokerId(name, draw(st.integers(0, 9))) for name in names),
            capacity=draw(floats((n, DIMENSIONS))), used=draw(floats((n, DIMENSIONS))), known=draw(flags(n)),
            draining=draw(flags(n)), paused=draw(flags(n)), bundles=draw(wholes(n, 0, 9)),
            max_bundles=draw(wholes(n, 1, UNLIMITED)), rate_msg_s=draw(floats(n)), throughput_bytes_s=draw(floats(n)),
            domains=("rack",) * n, versions=("1.0",) * n,
            report_age_s=draw(st.none() | floats(n)),
        ),
        Bundles(
            ids=[Bundle(home, low, high) for home, (low, high) in zip(homes, ranges, strict=True)],
            namespaces=namespaces, namespace=np.array([namespaces.index(home) for home in homes], np.int64),
            owner=draw(wholes(m, NOWHERE, 4)), load=draw(floats((m, DIMENSIONS))), rate_msg_s=draw(floats(m)),
            throughput_bytes_s=draw(floats(m)), in_flight=draw(flags(m)), moved_s=draw(floats(m)),
            changed=draw(flags(m)), left=draw(left) if m else {},
        ),
        Constraints(
            rules=tuple(f"rule {number}" for number in range(rules)),
            kind=draw(wholes(m, 0, kinds - 1)),
            forbidden=draw(hnp.arrays(np.int16, (kinds, n), elements=st.integers(ALLOWED, rules - 1))),
            fixed=draw(hnp.arrays(np.int16, m, elements=st.integers(FREE, rules - 1))),
            rest_s=draw(floats(m)), weight=draw(floats(m)), group=draw(wholes(m, FREE, 1)),
            groups=("g",) if grouped else (), spread_over_domains=draw(st.booleans()),
            presence=draw(wholes((1, n), 0, 9)) if grouped else None,
            namespace_here=draw(wholes((len(namespaces), n), 0, 9)) if grouped else None,
            isolated=draw(st.none() | flags(m)),
        ),
        draw(st.integers(0, 2**50)),
    )  # fmt: skip
