"""How loads look in the tables, one day at a time: silver rows of reports, and gold rows of minutes.

Each broker sends one report a minute, at its own second, with the loads of the minute and the bundles that it held when
the minute began. Gold has a row for every bundle, and for every broker that runs.
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
from bench.generating.moving import FAILOVER_MS, GAP_MS
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


def bundle_minutes(world: World, day: int) -> Iterator[Batch]:
    """One row per bundle and minute; two in the minute in which it moved, less the gap between them."""
    held, at = of_day(world, day), stage(world)
    namespaces = [bundle.rpartition("/")[0] for bundle in at.bundles]
    for minutes in chunks(world, day):
        begin_ms = world.begin_ms + minutes * MINUTE_MS
        owners, after = held.owners(begin_ms), held.owners(begin_ms + MINUTE_MS - 1)
        moved_ms, gap_ms = _moved(held, begin_ms)
        until_s = (np.clip(moved_ms, 0, MINUTE_MS) / 1000).ravel()
        rest_s = ((MINUTE_MS - moved_ms - gap_ms) / 1000).ravel()
        carried = loads(world, minutes, owners)
        values = {name: getattr(carried, field).ravel() for name, field in RATES.items()}
        cells = np.arange(owners.size)
        old, new = cells[until_s > 0], cells[(moved_ms < MINUTE_MS).ravel()]
        for rows, who, covered_s in ((old, owners, until_s), (new, after, rest_s)):
            if not len(rows):
                continue
            bundle, moment = rows % world.bundles, begin_ms[rows // world.bundles]
            columns = {
                "minute": times(moment),
                "bundle": picked(at.bundles, bundle),
                "namespace": picked(namespaces, bundle),
                "broker": picked(at.brokers, who.ravel()[rows]),
                "covered_s": covered_s[rows],
                "keys": float(KEYS),
                "sessions": float(SESSIONS),
                "day": dates(moment),
                **{name: value[rows] for name, value in values.items()},
            }
            yield batch("bundle_minute", len(rows), columns)


def _moved(held: Spells, begin_ms: Ints) -> tuple[Ints, Ints]:
    """(T, m) in ms: how far into the minute the bundle moved (MINUTE_MS if it did not), and how long nobody had it
    then.

    A bundle of a broker that died at the minute's begin moved at 0: the new owner has it from the begin, less the gap.
    """
    moved = np.full((len(begin_ms), len(held.begin)), MINUTE_MS)
    gap = np.zeros_like(moved)
    for number in range(held.begin.shape[1]):
        since = held.begin[:, number][None, :] - begin_ms[:, None]
        here = (since >= 0) & (since < MINUTE_MS) & (held.before[:, number] >= 0)[None, :]
        moved = np.where(here, since, moved)
        gap = np.where(here, np.where(held.by_death[:, number][None, :], FAILOVER_MS, GAP_MS), gap)
    return moved, gap


def broker_minutes(world: World, day: int) -> Iterator[Batch]:
    """One row per broker and minute in which it ran, with what it held at the minute's begin."""
    held, at = of_day(world, day), stage(world)
    declared = [capacity(world, row) for row in range(world.brokers)]
    for minutes in chunks(world, day):
        begin_ms = world.begin_ms + minutes * MINUTE_MS
        owners = held.owners(begin_ms)
        carried = loads(world, minutes, owners)
        sums = {name: by_broker(world, getattr(carried, field), owners) for name, field in RATES.items()}
        runs = ~away(world, begin_ms).ravel()
        cells = np.arange(owners.shape[0] * world.brokers)[runs]
        row, moment = cells % world.brokers, begin_ms[cells // world.brokers]
        cpu = broker_cpu_percent(world, minutes, sums["cpu_percent"]).ravel()[cells]
        counts = by_broker(world, np.ones(owners.shape), owners).ravel()[cells]
        columns = {
            "minute": times(moment),
            "broker": picked(at.brokers, row),
            "incarnation": incarnations(world, begin_ms).ravel()[cells],
            "covered_s": MINUTE_MS / 1000,
            "reports": 1,
            **{name: value.ravel()[cells] for name, value in sums.items()},
            "cpu_percent": cpu,
            "cpu_percent_max": cpu,
            "memory_percent": MEMORY_PERCENT,
            "bundles": counts,
            "capacity": pa.array([declared[each] for each in row.tolist()], pa.map_(pa.string(), pa.float64())),
            "day": dates(moment),
        }
        yield batch("broker_minute", len(cells), columns)


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


def _reports(world: World, day: int) -> Iterator[_Reports]:
    held = of_day(world, day)
    second_ms = np.arange(world.brokers) * 997 % MINUTE_MS
    for minutes in chunks(world, day):
        begin_ms = world.begin_ms + minutes * MINUTE_MS
        yield _Reports(world, minutes, held.owners(begin_ms), begin_ms[:, None] + second_ms[None, :])
