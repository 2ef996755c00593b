"""Encodes a cluster model as columns of bytes, and back: with the same digest, to the last bit. Pure.

Bytes of equal significance are put side by side before compression: neighbours in a column differ only in their last
digits, which saves a third of the space.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadmanager.decisions.errors import BadDecision
from loadmanager.model.cluster import Brokers, Bundles, ClusterModel, Constraints
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

Array = NDArray[Any]
_TYPES = {"f8": "<f8", "i8": "<i8", "i2": "<i2", "u4": "<u4", "b1": "|b1"}

NONE: Mapping[str, str] = {}
_FLOATS = ("capacity", "used", "load", "rate_msg_s", "throughput_bytes_s", "moved_s", "report_age_s")
_FLAGS = ("known", "draining", "paused", "in_flight", "changed", "isolated")


def _typed(*names: str) -> dict[str, str]:
    return {name: "f8" if name in _FLOATS else "b1" if name in _FLAGS else "i8" for name in names}


_BROKER_COLUMNS = _typed(
    "capacity", "used", "known", "draining", "paused", "bundles", "max_bundles", "rate_msg_s", "throughput_bytes_s"
)
_BUNDLE_COLUMNS = _typed(
    "namespace", "owner", "load", "rate_msg_s", "throughput_bytes_s", "in_flight", "moved_s", "changed"
)
_CONSTRAINT_COLUMNS = {"kind": "i8", "forbidden": "i2", "fixed": "i2", "rest_s": "f8", "weight": "f8", "group": "i8"}
_OPTIONAL_BROKER_COLUMNS = _typed("report_age_s")
_OPTIONAL_CONSTRAINT_COLUMNS = _typed("presence", "namespace_here", "isolated")


class Column(msgspec.Struct, frozen=True, array_like=True):
    """An array: its type, shape, and shuffled little-endian bytes."""

    type: str
    shape: tuple[int, ...]
    data: bytes


class StoredModel(msgspec.Struct, frozen=True):
    """A model as columns; `at` is the index of each bundle's namespace in `homes`, `lo` and `hi` its range."""

    at_ms: int
    broker_ids: tuple[BrokerId, ...]
    domains: tuple[str, ...]
    versions: tuple[str, ...]
    brokers: Mapping[str, Column]
    homes: tuple[str, ...]
    at: Column
    lo: Column
    hi: Column
    namespaces: tuple[str, ...]
    bundles: Mapping[str, Column]
    left: tuple[tuple[int, tuple[int, ...]], ...]
    rules: tuple[str, ...]
    constraints: Mapping[str, Column]
    groups: tuple[str, ...]
    spread_over_domains: bool


def pack(array: Array, kind: str) -> Column:
    """The column of an array, as one of `f8 i8 i2 u4 b1`. Raises TypeError or OverflowError if it does not fit."""
    chosen = np.ascontiguousarray(array).astype(_TYPES[kind], casting="same_kind", copy=False)
    if not _holds(chosen, array):
        raise OverflowError(f"a value between {array.min()} and {array.max()} does not fit into a column of {kind}")
    octets = np.ascontiguousarray(chosen).reshape(-1).view(np.uint8).reshape(-1, chosen.itemsize)
    return Column(kind, tuple(int(side) for side in chosen.shape), octets.T.tobytes())


def _holds(chosen: Array, array: Array) -> bool:
    """Whether a column has every value of the array, to the last bit."""
    if chosen.dtype == array.dtype or not array.size:
        return True
    if chosen.dtype.kind in "iu":
        most = np.iinfo(chosen.dtype)
        return most.min <= int(array.min()) and int(array.max()) <= most.max
    if array.dtype.kind in "iu":  # a float holds every integer up to this, and casts of larger ones back may wrap
        return int(array.min()) >= -(2**53) and int(array.max()) <= 2**53
    return np.array_equal(chosen.astype(array.dtype), array, equal_nan=True)


def unpack(column: Column) -> Array:
    """The inverse of `pack`. Raises BadDecision for an invalid column."""
    if column.type not in _TYPES:
        raise BadDecision(f"a column of the type {column.type[:10]!r}: the record is damaged, or of a newer release")
    kind = np.dtype(_TYPES[column.type])
    if any(side < 0 for side in column.shape) or prod(column.shape) * kind.itemsize != len(column.data):
        raise BadDecision(f"a column of {len(column.data)} bytes cannot have the shape {column.shape}")
    octets = np.frombuffer(column.data, np.uint8).reshape(kind.itemsize, -1)
    return np.ascontiguousarray(octets.T).reshape(-1).view(kind).reshape(column.shape)


def stored(model: ClusterModel) -> StoredModel:
    """The model as stored in a record."""
    brokers, bundles, constraints = model.brokers, model.bundles, model.constraints
    places: dict[str, int] = {}
    at = [places.setdefault(bundle.namespace, len(places)) for bundle in bundles.ids]
    return StoredModel(
        at_ms=model.at_ms,
        broker_ids=brokers.ids,
        domains=brokers.domains,
        versions=brokers.versions,
        brokers=_packed(brokers, _BROKER_COLUMNS, _OPTIONAL_BROKER_COLUMNS),
        homes=tuple(places),
        at=pack(np.array(at, np.uint32), "u4"),
        lo=pack(np.array([bundle.lo for bundle in bundles.ids], np.uint32), "u4"),
        hi=pack(np.array([bundle.hi for bundle in bundles.ids], np.uint32), "u4"),
        namespaces=bundles.namespaces,
        bundles=_packed(bundles, _BUNDLE_COLUMNS),
        left=tuple(sorted((row, tuple(brokers)) for row, brokers in bundles.left.items())),
        rules=constraints.rules,
        constraints=_packed(constraints, _CONSTRAINT_COLUMNS, _OPTIONAL_CONSTRAINT_COLUMNS),
        groups=constraints.groups,
        spread_over_domains=constraints.spread_over_domains,
    )


def restored(kept: StoredModel) -> ClusterModel:
    """The inverse of `stored`. Raises BadDecision if the parts do not fit together."""
    count, rows = len(kept.broker_ids), len(kept.at.shape) == 1 and kept.at.shape[0]
    brokers = _unpacked(kept.brokers, _BROKER_COLUMNS, _OPTIONAL_BROKER_COLUMNS)
    bundles = _unpacked(kept.bundles, _BUNDLE_COLUMNS)
    constraints = _unpacked(kept.constraints, _CONSTRAINT_COLUMNS, _OPTIONAL_CONSTRAINT_COLUMNS)
    apart = ("forbidden", "presence", "namespace_here")
    per_bundle = [*bundles.values(), *(column for name, column in constraints.items() if name not in apart)]
    if any(len(column) != count for column in brokers.values()) or any(len(column) != rows for column in per_bundle):
        raise BadDecision("the columns of its model are not equally long")
    return ClusterModel(
        Brokers(ids=kept.broker_ids, domains=kept.domains, versions=kept.versions, **brokers),
        Bundles(ids=_ids(kept), namespaces=kept.namespaces, left=dict(kept.left), **bundles),
        Constraints(rules=kept.rules, groups=kept.groups, spread_over_domains=kept.spread_over_domains, **constraints),
        kept.at_ms,
    )


def _packed(source: object, columns: Mapping[str, str], optional: Mapping[str, str] = NONE) -> dict[str, Column]:
    there = {name: kind for name, kind in optional.items() if getattr(source, name) is not None}
    return {name: pack(getattr(source, name), kind) for name, kind in {**columns, **there}.items()}


def _unpacked(
    columns: Mapping[str, Column], wanted: Mapping[str, str], optional: Mapping[str, str] = NONE
) -> dict[str, Any]:
    wanted = {**wanted, **{name: kind for name, kind in optional.items() if name in columns}}
    missing = [name for name, kind in wanted.items() if name not in columns or columns[name].type != kind]
    if missing or any(not columns[name].shape for name in wanted):
        raise BadDecision(f"its model lacks {', '.join(missing) or 'rows'}")
    return {name: unpack(columns[name]) for name in wanted}


def _ids(kept: StoredModel) -> list[Bundle]:
    at, lo, hi = unpack(kept.at).tolist(), unpack(kept.lo).tolist(), unpack(kept.hi).tolist()
    if not len(at) == len(lo) == len(hi) or (at and max(at) >= len(kept.homes)):
        raise BadDecision("the names of its bundles do not fit together")
    return [Bundle(kept.homes[home], low, high) for home, low, high in zip(at, lo, hi, strict=True)]
