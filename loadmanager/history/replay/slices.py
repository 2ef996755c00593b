"""A window's rows as columns of numbers: reports, loads, and changes of ownership. Values only.

`slicing.py` makes the rows (`EVENT`); they arrive here as one Arrow table. Times are microseconds UTC.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from loadmanager.model.cluster import DIMENSIONS, Flags, Floats, Ints

_compute: Any = pyarrow.compute

REPORT, OWNERSHIP, TOTAL, LISTED, RULES = range(5)
"""Kinds of rows, in the order in which rows of the same instant are processed."""
RATES = ("cpu_percent", "in_rate_bytes_s", "out_rate_bytes_s", "rate_msg_s")
CAPACITY = ("cores", "memory_bytes", "in_capacity_bytes_s", "out_capacity_bytes_s", "capacity_msg_s")


class Frame(msgspec.Struct, frozen=True):
    """The rounds of one window."""

    begin_us: int
    interval_us: int
    rounds: int

    @property
    def times(self) -> Ints:
        """(T,): when each round is."""
        return self.begin_us + np.arange(self.rounds, dtype=np.int64) * self.interval_us


class Reports(msgspec.Struct, frozen=True, eq=False):
    """Brokers' own loads, by time; each is in force from `us` to before `until_us`."""

    us: Ints
    until_us: Ints
    broker: Ints
    cpu_percent: Floats
    used: Floats
    """(r, DIMENSIONS), natural units."""
    capacity: Floats
    """(r, DIMENSIONS), infinite where none is declared."""


class Ownerships(msgspec.Struct, frozen=True, eq=False):
    """Transitions, by time: where the bundle is from then on, or is on its way to (-1: nowhere), and the cause."""

    us: Ints
    bundle: Ints
    place: Ints
    gone: Flags
    """The bundle was split, merged or deleted."""
    source: Ints
    action: NDArray[np.object_]
    role: NDArray[np.object_]


class Loads(msgspec.Struct, frozen=True, eq=False):
    """Rates that a broker reported, by time: of one bundle, or (`bundle` -1) of all that it held."""

    us: Ints
    broker: Ints
    bundle: Ints
    rates: Floats
    """(r, 4), as RATES."""


class Slice(msgspec.Struct, frozen=True, eq=False):
    """Everything that is known of one window; broker and bundle numbers are indices into the names here."""

    frame: Frame
    brokers: tuple[str, ...]
    bundles: tuple[str, ...]
    reports: Reports
    ownerships: Ownerships
    totals: Loads
    listed: Loads
    """By broker, then by time; a report's rows have the time and broker of its total."""
    rules: bytes | None = None
    """The record of the window's first decision with policies; None where there is none."""


def sliced(table: Any, frame: Frame) -> Slice:
    """The rows of one window (pyarrow.Table of `EVENT`), in any order."""
    brokers, bundles = _names(table, "broker", "source"), _names(table, "bundle")
    table = table.sort_by([("us", "ascending"), ("nth", "ascending"), ("gone", "descending"), ("ordinal", "ascending")])
    kinds = [table.filter(_compute.equal(table["kind"], kind)) for kind in (REPORT, OWNERSHIP, TOTAL, LISTED)]
    return Slice(
        frame,
        tuple(brokers.to_pylist()),
        tuple(bundles.to_pylist()),
        _reports(kinds[0], brokers),
        _ownerships(kinds[1], brokers, bundles),
        _loads(kinds[2], brokers, bundles),
        _loads(kinds[3].sort_by([("broker", "ascending"), ("us", "ascending")]), brokers, bundles),
        next(iter(table.filter(_compute.equal(table["kind"], RULES))["data"].to_pylist()), None),
    )


def _names(table: Any, *columns: str) -> Any:
    """The distinct names in some columns, sorted."""
    found = pyarrow.chunked_array([chunk for column in columns for chunk in table[column].chunks], pyarrow.string())
    names = found.unique().drop_null()
    return names.take(_compute.sort_indices(names))


def _rows(column: Any, names: Any) -> Ints:
    """For each value the index of its name, -1 where it is null."""
    return _compute.fill_null(_compute.index_in(column, value_set=names), -1).to_numpy().astype(np.int64)


def _ints(column: Any) -> Ints:
    return _compute.fill_null(column, 0).to_numpy().astype(np.int64)


def _floats(table: Any, *names: str) -> Floats:
    """(rows, columns), 0 where a value is null, negative or no number."""
    columns = [_compute.fill_null(table[name], 0.0).to_numpy() for name in names]
    return np.nan_to_num(np.stack(columns, axis=1), nan=0.0, posinf=0.0, neginf=0.0).clip(0.0)


def _reports(table: Any, brokers: Any) -> Reports:
    capacity = _floats(table, *CAPACITY)
    capacity = np.where(capacity > 0, capacity, np.inf)
    capacity[~np.isfinite(capacity[:, 0]), 0] = 1.0
    rates, memory = _floats(table, *RATES), _floats(table, "memory_percent")[:, 0]
    used = np.zeros((len(rates), DIMENSIONS))
    used[:, 0] = rates[:, 0] / 100 * capacity[:, 0]
    used[:, 1] = np.where(np.isfinite(capacity[:, 1]), memory / 100 * np.nan_to_num(capacity[:, 1], posinf=0.0), 0.0)
    used[:, 2:] = rates[:, 1:]
    return Reports(
        us=_ints(table["us"]),
        until_us=_ints(table["until_us"]),
        broker=_rows(table["broker"], brokers),
        cpu_percent=rates[:, 0],
        used=used,
        capacity=capacity,
    )


def _ownerships(table: Any, brokers: Any, bundles: Any) -> Ownerships:
    return Ownerships(
        us=_ints(table["us"]),
        bundle=_rows(table["bundle"], bundles),
        place=_rows(table["broker"], brokers),
        gone=_compute.fill_null(table["gone"], fill_value=False).to_numpy(zero_copy_only=False).astype(np.bool_),
        source=_rows(table["source"], brokers),
        action=table["action"].to_numpy(),
        role=table["role"].to_numpy(),
    )


def _loads(table: Any, brokers: Any, bundles: Any) -> Loads:
    return Loads(
        us=_ints(table["us"]),
        broker=_rows(table["broker"], brokers),
        bundle=_rows(table["bundle"], bundles),
        rates=_floats(table, *RATES),
    )
