"""Walks once through a window's rows in time order, and notes at each round who has which tile, and its load. Pure.

A load is a step function: the last report holds until the bundle's broker reports again. Bundles that a report does not
list share the rest of its total by their parts of the hash space. A moved bundle keeps its load until its new broker
has reported, and for `settle_us` has at least that load, because a mean over a time that began before it came is too
low. The leader computes the same (`loadmanager.model.observation`). Otherwise each move would look like a load that
falls and returns, which would end the bundle's rest time.
"""

from __future__ import annotations

import msgspec
import numpy as np

from loadmanager.history.replay.costing import costs
from loadmanager.history.replay.slices import OWNERSHIP, REPORT, TOTAL, Slice
from loadmanager.history.replay.tiles import Tiles
from loadmanager.model.cluster import DIMENSIONS, NOWHERE, Flags, Floats, Ints

UNLOAD, TRANSFER = "unload", "transfer"
"""Actions of the channel that matter here."""
ITS_OWN = "broker"
"""The role in which a broker gives away its own bundles: these moves begin no rest time."""


class Departure(msgspec.Struct, frozen=True, eq=False):
    """A planned move before the first round: time, tile, source, and the tile's load then (None: not reported)."""

    us: int
    tile: int
    source: int
    load: Floats | None


class Walk:
    """`run()` fills `owner`, `load`, `unloaded`, `heard` and `departures`. T rounds, m tiles, n brokers."""

    def __init__(self, data: Slice, tiles: Tiles, settle_us: int = 0) -> None:
        rounds, size = data.frame.rounds, len(tiles)
        self.owner: Ints = np.full((rounds, size), NOWHERE)
        """(T, m): NOWHERE before the tile's first owner."""
        self.load: Floats = np.zeros((rounds, size, DIMENSIONS))
        """(T, m, DIMENSIONS)"""
        self.unloaded: Flags = np.zeros((rounds, size), np.bool_)
        """(T, m): whether it came to another broker since the round before, by an unload without a destination."""
        self.heard: Flags = np.zeros((rounds, len(data.brokers)), np.bool_)
        """(T, n): the broker has said what its bundles cost."""
        self.departures: list[Departure] = []
        """In the order of time."""
        self._data = data
        self._tiles = tiles
        self._at = 0
        self._owner: Ints = np.full(size, NOWHERE)
        self._load: Floats = np.zeros((size, DIMENSIONS))
        self._settle_us = settle_us
        self._came_us: Ints = np.full(size, np.iinfo(np.int64).min // 2)
        """When the tile came to another broker, and what its load was then."""
        self._load_then: Floats = np.zeros((size, DIMENSIONS))
        self._alive: Flags = np.zeros(size, np.bool_)
        self._part: Floats = np.ones(size)
        """The part of its present bundle that a tile is."""
        self._leaving: Flags = np.zeros(size, np.bool_)
        self._heard: Flags = np.zeros(len(data.brokers), np.bool_)
        self._machine: dict[int, tuple[float, float]] = {}
        self._listed = _runs(data)

    def run(self) -> Walk:
        """Itself, filled."""
        times = self._data.frame.times.tolist()
        step = {REPORT: self._report, OWNERSHIP: self._ownership, TOTAL: self._total}
        for us, kind, row in _in_order(self._data):
            while self._at < len(times) and times[self._at] < us:
                self._note()
            if self._at == len(times):
                break
            step[kind](row)
        while self._at < len(times):
            self._note()
        return self

    def _note(self) -> None:
        at = self._at
        self.owner[at], self.heard[at] = self._owner, self._heard
        self.load[at] = np.where(self._alive[:, None], self._load, 0.0)
        self._at += 1

    def _report(self, row: int) -> None:
        """How busy the machine is: bundles get shares of this."""
        reports = self._data.reports
        self._machine[int(reports.broker[row])] = float(reports.cpu_percent[row]), float(reports.capacity[row, 0])

    def _ownership(self, row: int) -> None:
        moves, tiles = self._data.ownerships, self._tiles
        bundle, place = int(moves.bundle[row]), int(moves.place[row])
        here = slice(int(tiles.first[bundle]), int(tiles.last[bundle]))
        self._alive[here] = not moves.gone[row]
        if moves.gone[row]:
            return
        self._part[here] = tiles.parts(bundle)
        if self._at == 0:
            self._depart(row, here)
        if place == NOWHERE:
            self._leaving[here] |= moves.action[row] == UNLOAD
            return
        came = (self._owner[here] != NOWHERE) & (self._owner[here] != place)
        self.unloaded[self._at, here] |= came & self._leaving[here]
        self._came_us[here] = np.where(came, moves.us[row], self._came_us[here])
        self._load_then[here] = np.where(came[:, None], self._load[here], self._load_then[here])
        self._owner[here] = place
        self._leaving[here] = False

    def _depart(self, row: int, here: slice) -> None:
        moves = self._data.ownerships
        source, planned = int(moves.source[row]), moves.action[row] in (TRANSFER, UNLOAD) and moves.role[row] != ITS_OWN
        if not planned or source == NOWHERE:
            return
        heard = bool(self._heard[source])
        self.departures += [
            Departure(int(moves.us[row]), tile, source, self._load[tile].copy() if heard else None)
            for tile in range(here.start, here.stop)
        ]

    def _total(self, row: int) -> None:
        totals, listed = self._data.totals, self._data.listed
        broker = int(totals.broker[row])
        if broker not in self._machine:
            return
        self._heard[broker] = True
        first, last = self._listed[row]
        rates = np.vstack([listed.rates[first:last], totals.rates[row]])
        loads = costs(rates, totals.rates[row], *self._machine[broker])
        rest = (self._owner == broker) & self._alive
        for bundle, load in zip(listed.bundle[first:last].tolist(), loads, strict=False):
            here = slice(int(self._tiles.first[bundle]), int(self._tiles.last[bundle]))
            self._load[here] = self._tiles.parts(bundle)[:, None] * load
            rest[here] = False
        rows = np.flatnonzero(rest)
        if len(rows):
            left, part = np.maximum(0.0, loads[-1] - loads[:-1].sum(axis=0)), self._part[rows]
            self._load[rows] = (part / part.sum())[:, None] * left
        rows = np.flatnonzero((self._owner == broker) & (totals.us[row] - self._came_us < self._settle_us))
        self._load[rows] = np.maximum(self._load[rows], self._load_then[rows])


def _in_order(data: Slice) -> list[tuple[int, int, int]]:
    """Time, kind and row of each report, transition and total."""
    parts = ((REPORT, data.reports.us), (OWNERSHIP, data.ownerships.us), (TOTAL, data.totals.us))
    us = np.concatenate([times for _, times in parts])
    kind = np.concatenate([np.full(len(times), which) for which, times in parts])
    row = np.concatenate([np.arange(len(times)) for _, times in parts])
    order = np.lexsort((row, kind, us))
    return list(zip(us[order].tolist(), kind[order].tolist(), row[order].tolist(), strict=True))


def _runs(data: Slice) -> list[tuple[int, int]]:
    """For each total the range of its listed rows, which are sorted by broker and time (`slices.sliced`)."""
    listed, totals = data.listed, data.totals
    found = np.zeros((len(totals.us), 2), np.int64)
    for broker in range(len(data.brokers)):
        begin, end = np.searchsorted(listed.broker, [broker, broker + 1])
        mine = np.flatnonzero(totals.broker == broker)
        times = listed.us[begin:end]
        found[mine, 0] = begin + np.searchsorted(times, totals.us[mine], "left")
        found[mine, 1] = begin + np.searchsorted(times, totals.us[mine], "right")
    return [(first, last) for first, last in found.tolist()]
