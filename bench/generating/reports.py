"""How loads look in the tables, one day at a time: silver rows of reports.

Each broker sends one report a minute, at its own second, with the loads of the minute and the bundles that it held when
the minute began.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from bench.generating.arrow import Batch, Ints, batch, dates, partition_of, picked, times
from bench.generating.loads import (
    KEYS,
    MEMORY_PERCENT,
    SESSIONS,
    Floats,
    broker_cpu_percent,
    by_broker,
    capacity,
    loads,
    stage,
)
from bench.generating.world import DAY_MS, MINUTE_MS, MINUTES_A_DAY, Spells, World, away, incarnations, spells

ROWS_A_BATCH = 60_000
RATES = {
    "in_rate_msg_s": "in_msg",
    "out_rate_msg_s": "out_msg",
    "in_rate_bytes_s": "in_bytes",
    "out_rate_bytes_s": "out_bytes",
    "cpu_percent": "cpu_percent",
}
"""Columns, and the field of `Loads` of each."""


def of_day(world: World, day: int) -> Spells:
    """The spells that touch a day."""
    begin_ms = world.begin_ms + day * DAY_MS
    return spells(world, stage(world).scenario.home.astype(np.int64), begin_ms, begin_ms + DAY_MS)


def chunks(world: World, day: int) -> Iterator[Ints]:
    """The minutes of a day, counted from the history's begin, so many at a time as make a batch."""
    step = max(1, ROWS_A_BATCH // world.bundles)
    for first in range(0, MINUTES_A_DAY, step):
        yield day * MINUTES_A_DAY + np.arange(first, min(first + step, MINUTES_A_DAY))


def broker_loads(world: World, day: int) -> Iterator[Batch]:
    """The rows of `broker_load`."""
    declared = [capacity(world, row) for row in range(world.brokers)]
    for made in _reports(world, day):
        rows = made.rows
        columns = made.origin() | {
            **{name: value.ravel()[made.cells] for name, value in made.sums.items()},
            "cpu_percent": made.cpu,
            "memory_percent": MEMORY_PERCENT,
            "bundles": made.counts,
            "keys": made.counts * KEYS,
            "sessions": made.counts * SESSIONS,
            "capacity": pa.array([declared[row] for row in rows.tolist()], pa.map_(pa.string(), pa.float64())),
            "host_cpu_percent": made.cpu,
            "host_memory_percent": MEMORY_PERCENT,
        }
        yield batch("broker_load", len(rows), columns)


def bundle_totals(world: World, day: int) -> Iterator[Batch]:
    """The rows of `bundle_total`."""
    for made in _reports(world, day):
        columns = made.origin() | {
            **{name: value.ravel()[made.cells] for name, value in made.sums.items()},
            "count": made.counts,
            "keys": made.counts * KEYS,
            "sessions": made.counts * SESSIONS,
        }
        yield batch("bundle_total", len(made.rows), columns)


def bundle_loads(world: World, day: int) -> Iterator[Batch]:
    """The rows of `bundle_load`: the `top` hottest bundles of each report, as `heat` has them."""
    at = stage(world)
    namespaces = [bundle.rpartition("/")[0] for bundle in at.bundles]
    for made in _reports(world, day):
        line, bundle, rank, report = made.hottest(world.top)
        origin = made.origin(report)
        columns = origin | {
            "bundle": picked(at.bundles, bundle),
            "namespace": picked(namespaces, bundle),
            "rank": rank,
            "keys": KEYS,
            "sessions": SESSIONS,
            **{name: value[line, bundle] for name, value in made.values.items()},
        }
        yield batch("bundle_load", len(bundle), columns)


class _Reports:
    """The reports of some minutes; `cells` are those (minute, broker) whose broker runs."""

    def __init__(self, world: World, minutes: Ints, owners: Ints, at_ms: Ints) -> None:
        self._world, self._owners, self._at_ms = world, owners, at_ms
        self._minutes = minutes
        carried = loads(world, minutes, owners)
        self.values: dict[str, Floats] = {name: getattr(carried, field) for name, field in RATES.items()}
        self.sums = {name: by_broker(world, value, owners) for name, value in self.values.items()}
        runs = ~away(world, minutes * MINUTE_MS + world.begin_ms)
        self.cells = np.flatnonzero(runs.ravel())
        self.rows = self.cells % world.brokers
        self.cpu = broker_cpu_percent(world, minutes, self.sums["cpu_percent"]).ravel()[self.cells]
        self.counts = by_broker(world, np.ones(owners.shape), owners).ravel()[self.cells].astype(np.int64)

    def origin(self, cells: Ints | None = None) -> dict[str, Any]:
        """The columns that all rows of a report share."""
        cells = self.cells if cells is None else cells
        world, names = self._world, stage(self._world).brokers
        row, line = cells % world.brokers, cells // world.brokers
        at_ms = self._at_ms.ravel()[cells]
        return {
            "partition": partition_of(names, world.partitions)[row],
            "offset": self._minutes[line] * world.brokers + row,
            "appended_at": times(at_ms + 2),
            "broker": picked(names, row),
            "incarnation": incarnations(world, self._minutes * MINUTE_MS + world.begin_ms).ravel()[cells],
            "at": times(at_ms),
            "day": dates(at_ms),
        }

    def hottest(self, top: int) -> tuple[Ints, Ints, Ints, Ints]:
        """Line, bundle, rank and report of the bundles in reports."""
        heat = np.zeros(self._owners.shape)
        messages = ("in_rate_msg_s", "out_rate_msg_s")
        for names in (("cpu_percent",), messages, ("in_rate_bytes_s", "out_rate_bytes_s")):
            part, whole = sum(self.values[name] for name in names), sum(self.sums[name] for name in names)
            mine = np.take_along_axis(np.asarray(whole), self._owners, axis=1)
            heat = np.maximum(heat, np.divide(part, mine, out=np.zeros_like(heat), where=mine > 0))
        lines, bundles = np.indices(self._owners.shape)
        report = (lines * self._world.brokers + self._owners).ravel()
        order = np.lexsort((bundles.ravel(), -heat.ravel(), report))
        ordered = report[order]
        rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
        kept = order[rank < top]
        return lines.ravel()[kept], bundles.ravel()[kept], rank[rank < top], report[kept]


def second_ms(world: World) -> Ints:
    """(n,): how far into each minute each broker reports."""
    return np.arange(world.brokers) * 997 % MINUTE_MS


def _reports(world: World, day: int) -> Iterator[_Reports]:
    held = of_day(world, day)
    for minutes in chunks(world, day):
        begin_ms = world.begin_ms + minutes * MINUTE_MS
        yield _Reports(world, minutes, held.owners(begin_ms), begin_ms[:, None] + second_ms(world)[None, :])
