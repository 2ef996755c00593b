"""Models of a cluster for tests, written in a line or two.

`model({"a": 0.9, "b": 0.1}, {"a": [0.5, 0.3], "b": [0.1]})`: two brokers of one core each, 90 % and 10 % used, and
three bundles that use half a core, 0.3 and 0.1. What a number cannot say, `Host(…)` and `Hot(…)` can. Any column can be
laid down as a whole by its name: `model({…}, known=[True, False], fixed=[…], rules=("paused",))`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

import msgspec
import numpy as np

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
)
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

CPU, MEMORY, BYTES_IN, BYTES_OUT, MESSAGES = range(DIMENSIONS)
NAMESPACE = "public/default"
REST_S = 1800.0
_STEP = 0x1_0000

_AMBIGUOUS = {"ids", "rate_msg_s", "throughput_bytes_s"}
_BROKER_COLUMNS = set(Brokers.__struct_fields__) - _AMBIGUOUS - {"bundles"}
_BUNDLE_COLUMNS = set(Bundles.__struct_fields__) - _AMBIGUOUS
_CONSTRAINT_COLUMNS = set(Constraints.__struct_fields__)


class Host(msgspec.Struct, frozen=True):
    """A broker. `cpu` is the part of its cores in use; `used` and `capacity` are in natural units, by resource number.

    None: what follows from its bundles in the model (their number, the sum of their rates and bytes).
    """

    cpu: float = 0.0
    cores: float = 1.0
    used: Mapping[int, float] = {}
    capacity: Mapping[int, float] = {}
    known: bool = True
    draining: bool = False
    paused: bool = False
    bundles: int | None = None
    max_bundles: int = UNLIMITED
    rate_msg_s: float | None = None
    throughput_bytes_s: float | None = None
    domain: str = ""
    version: str = "1.0"


class Hot(msgspec.Struct, frozen=True):
    """A bundle. `cpu` is in cores; rates are each second's, bytes in and out. `left` and `forbidden` name brokers.

    `fixed`: the rule that keeps it where it is. `forbidden`: the rule by broker. `group`: anti-affinity.
    """

    cpu: float = 0.0
    in_bytes_s: float = 0.0
    out_bytes_s: float = 0.0
    rate_msg_s: float = 0.0
    memory: float = 0.0
    name: str = ""
    """`tenant/namespace/0x…_0x…`; a range of `namespace` by its number in the model if empty."""
    namespace: str = NAMESPACE
    in_flight: bool = False
    moved_s: float = inf
    changed: bool = False
    left: tuple[str, ...] = ()
    fixed: str = ""
    forbidden: Mapping[str, str] = {}
    rest_s: float = REST_S
    weight: float = 1.0
    group: str = ""
    isolated: bool = False


def broker(name: str) -> BrokerId:
    """The broker of this name in a model: `a` is short for `a:6650`; first incarnation."""
    return BrokerId(name if ":" in name else f"{name}:6650", 1)


def bundle(number: int, namespace: str = NAMESPACE) -> Bundle:
    """The bundle that gets this number in a model, counted from 0 over all brokers in the order they are written."""
    return Bundle(namespace, number * _STEP, (number + 1) * _STEP)


def model(
    brokers: Mapping[str, float | Host],
    bundles: Mapping[str, Sequence[float | Hot]] | None = None,
    **overrides: Any,
) -> ClusterModel:
    """The model. `bundles` are given by the name of their broker, `""` for none; numbers are CPU, as in `Host`, `Hot`.

    Overrides are columns by name, or `at_ms`. Raises TypeError for a name that is none.
    """
    hosts = {broker(name): Host(host) if isinstance(host, float | int) else host for name, host in brokers.items()}
    rows = {each: row for row, each in enumerate(sorted(hosts))}
    listed = list(_listed(bundles or {}, rows))
    at_ms = overrides.pop("at_ms", 0)
    chosen_brokers = _brokers([hosts[each] for each in sorted(hosts)], tuple(sorted(hosts)), listed)
    chosen_bundles = _bundles(listed, rows)
    constraints = _constraints(listed, chosen_bundles, rows, any(host.domain for host in hosts.values()))
    return ClusterModel(
        _replaced(chosen_brokers, _BROKER_COLUMNS, overrides),
        _replaced(chosen_bundles, _BUNDLE_COLUMNS, overrides),
        _replaced(constraints, _CONSTRAINT_COLUMNS, overrides, last=True),
        at_ms,
    )


_Listed = tuple[Bundle, int, Hot]


def _listed(bundles: Mapping[str, Sequence[float | Hot]], rows: Mapping[BrokerId, int]) -> Iterator[_Listed]:
    number = 0
    for owner, loads in bundles.items():
        for load in loads:
            hot = Hot(load) if isinstance(load, float | int) else load
            name = Bundle.parse(hot.name) if hot.name else bundle(number, hot.namespace)
            yield name, rows[broker(owner)] if owner else NOWHERE, hot
            number += 1


def _brokers(hosts: Sequence[Host], ids: tuple[BrokerId, ...], listed: Sequence[_Listed]) -> Brokers:
    n = len(hosts)
    capacity, used = np.full((n, DIMENSIONS), inf), np.zeros((n, DIMENSIONS))
    for row, host in enumerate(hosts):
        capacity[row, CPU], used[row, CPU] = host.cores, host.cpu * host.cores
        for resource, amount in host.capacity.items():
            capacity[row, resource] = amount
        for resource, amount in host.used.items():
            used[row, resource] = amount
    mine = [[hot for _, owner, hot in listed if owner == row] for row in range(n)]
    sums = [(sum(h.rate_msg_s for h in hots), sum(h.in_bytes_s + h.out_bytes_s for h in hots)) for hots in mine]
    return Brokers(
        ids=ids,
        capacity=capacity,
        used=used,
        known=np.array([h.known for h in hosts], np.bool_),
        draining=np.array([h.draining for h in hosts], np.bool_),
        paused=np.array([h.paused for h in hosts], np.bool_),
        bundles=np.array(
            [len(m) if h.bundles is None else h.bundles for h, m in zip(hosts, mine, strict=True)], np.int64
        ),
        max_bundles=np.array([h.max_bundles for h in hosts], np.int64),
        rate_msg_s=np.array([_or(h.rate_msg_s, rate) for h, (rate, _) in zip(hosts, sums, strict=True)], np.float64),
        throughput_bytes_s=np.array(
            [_or(h.throughput_bytes_s, of) for h, (_, of) in zip(hosts, sums, strict=True)], np.float64
        ),
        domains=tuple(h.domain for h in hosts),
        versions=tuple(h.version for h in hosts),
    )


def _bundles(listed: Sequence[_Listed], rows: Mapping[BrokerId, int]) -> Bundles:
    names = sorted({each.namespace for each, _, _ in listed})
    loads = [(h.cpu, h.memory, h.in_bytes_s, h.out_bytes_s, h.rate_msg_s) for _, _, h in listed]
    return Bundles(
        ids=tuple(each for each, _, _ in listed),
        namespaces=tuple(names),
        namespace=np.array([names.index(each.namespace) for each, _, _ in listed], np.int64),
        owner=np.array([owner for _, owner, _ in listed], np.int64),
        load=np.array(loads, np.float64).reshape(-1, DIMENSIONS),
        rate_msg_s=np.array([h.rate_msg_s for _, _, h in listed], np.float64),
        throughput_bytes_s=np.array([h.in_bytes_s + h.out_bytes_s for _, _, h in listed], np.float64),
        in_flight=np.array([h.in_flight for _, _, h in listed], np.bool_),
        moved_s=np.array([h.moved_s for _, _, h in listed], np.float64),
        changed=np.array([h.changed for _, _, h in listed], np.bool_),
        left={at: tuple(rows[broker(b)] for b in h.left) for at, (_, _, h) in enumerate(listed) if h.left},
    )


def _constraints(
    listed: Sequence[_Listed], bundles: Bundles, rows: Mapping[BrokerId, int], domains: bool
) -> Constraints:
    hots = [hot for _, _, hot in listed]
    words = [each for h in hots for each in (*h.forbidden.values(), h.fixed) if each]
    rules = {rule: number for number, rule in enumerate(dict.fromkeys(words))}
    kinds = list(dict.fromkeys(tuple(sorted(h.forbidden.items())) for h in hots)) or [()]
    forbidden = np.full((len(kinds), len(rows)), ALLOWED, np.int16)
    for row, kind in enumerate(kinds):
        for name, rule in kind:
            forbidden[row, rows[broker(name)]] = rules[rule]
    groups = sorted({h.group for h in hots if h.group})
    constraints = Constraints(
        rules=tuple(rules),
        kind=np.array([kinds.index(tuple(sorted(h.forbidden.items()))) for h in hots], np.int64),
        forbidden=forbidden,
        fixed=np.array([rules[h.fixed] if h.fixed else FREE for h in hots], np.int16),
        rest_s=np.array([h.rest_s for h in hots], np.float64),
        weight=np.array([h.weight for h in hots], np.float64),
        group=np.array([groups.index(h.group) if h.group else FREE for h in hots], np.int64),
        isolated=np.array([h.isolated for h in hots], np.bool_),
    )
    if not groups:
        return constraints
    here = np.zeros((len(bundles.namespaces), len(rows)), np.int64)
    presence = np.zeros((len(groups), len(rows)), np.int64)
    for namespace, owner, group in zip(bundles.namespace, bundles.owner, constraints.group, strict=True):
        if group != FREE and owner != NOWHERE:
            presence[group, owner] += here[namespace, owner] == 0
            here[namespace, owner] += 1
    return msgspec.structs.replace(
        constraints, groups=tuple(groups), spread_over_domains=domains, presence=presence, namespace_here=here
    )


def _replaced(whole: Any, columns: set[str], overrides: dict[str, Any], *, last: bool = False) -> Any:
    """The struct with the columns that are laid down, as arrays of the type that the column has."""
    changes: dict[str, Any] = {}
    for name in columns & overrides.keys():
        value, old = overrides.pop(name), getattr(whole, name)
        if isinstance(old, np.ndarray):
            value = np.array(value, old.dtype)
        elif old is None and value is not None:
            value = np.asarray(value)
        changes[name] = value
    if last and overrides:
        raise TypeError(f"no column is called {', '.join(sorted(overrides))}")
    return msgspec.structs.replace(whole, **changes)


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
