"""Gold rows of one day: `bundle_minute` of every bundle, `broker_minute` of every broker that runs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from loadmanager.history.generating.arrow import Batch, Ints, batch, dates, picked, times
from loadmanager.history.generating.loads import (
    KEYS,
    MEMORY_PERCENT,
    SESSIONS,
    broker_cpu_percent,
    by_broker,
    capacity,
    loads,
    stage,
)
from loadmanager.history.generating.moving import FAILOVER_MS, GAP_MS
from loadmanager.history.generating.spells import Spells, away, incarnations, spells
from loadmanager.history.generating.world import DAY_MS, MINUTE_MS, MINUTES_A_DAY, World

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
