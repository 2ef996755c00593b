"""A window of the record becomes a game: loads, machines and first placement, and what the cluster did then. Pure.

    sliced (columns of numbers) ─▶ tiled (finest cut of all bundles) ─▶ Walk, presence, draining ─▶ recorded (a game)

`job.py` makes the rows (`EVENT`); they arrive here as one Arrow table. Times are microseconds UTC. Nothing is invented:
where too much is unknown, the answer says what, and the window is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from loadmanager.history.replay.ruling import Ruling, ruling
from loadmanager.model.cluster import DIMENSIONS, NOWHERE, Flags, Floats, Ints
from loadmanager.strategies.playground.cluster import summed
from loadmanager.strategies.playground.scenario import BYTES_IN, CPU, Scenario
from statechannel.law.bundle import Bundle

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


class Tiles(msgspec.Struct, frozen=True, eq=False):
    """The finest cut of all bundles that a window knew, so that each bundle is a run of tiles despite splits.

    A tile has the part of its bundle's load that it has of the bundle's range.
    There are m, by namespace and range; bundle i of b has the tiles `first[i]` to before `last[i]`.
    """

    bundles: tuple[Bundle, ...]
    """The tiles themselves."""
    width: Floats
    """(m,)"""
    first: Ints
    """(b,)"""
    last: Ints
    """(b,)"""

    def __len__(self) -> int:
        return len(self.bundles)

    def parts(self, bundle: int) -> Floats:
        """The part of a bundle that each of its tiles is; they sum to 1."""
        width = self.width[self.first[bundle] : self.last[bundle]]
        return width / width.sum()

    def only(self, kept: Ints) -> tuple[Bundle, ...]:
        """The tiles in these rows."""
        return tuple(self.bundles[row] for row in kept.tolist())


def tiled(names: Sequence[str]) -> Tiles:
    """The tiles of the bundles of these names. Raises InvalidName."""
    bundles = [Bundle.parse(name) for name in names]
    edges: dict[str, set[int]] = {}
    for bundle in bundles:
        edges.setdefault(bundle.namespace, set()).update((bundle.lo, bundle.hi))
    made: list[Bundle] = []
    begins: dict[tuple[str, int], int] = {}
    ends: dict[tuple[str, int], int] = {}
    for namespace in sorted(edges):
        for lo, hi in pairwise(sorted(edges[namespace])):
            begins[namespace, lo], ends[namespace, hi] = len(made), len(made) + 1
            made.append(Bundle(namespace, lo, hi))
    return Tiles(
        tuple(made),
        np.array([tile.hi - tile.lo for tile in made], np.float64),
        np.array([begins[each.namespace, each.lo] for each in bundles], np.int64),
        np.array([ends[each.namespace, each.hi] for each in bundles], np.int64),
    )


CPU_PERCENT, IN, OUT, MESSAGES = range(4)
"""Columns of RATES."""


def costs(rates: Floats, total: Floats, cpu_percent: float, cores: float) -> Floats:
    """(r, DIMENSIONS): loads in natural units of bundles with these rates (r, 4).

    `total` (4,) is the sum over all bundles of the broker; `cpu_percent` is what the broker uses of its `cores`.
    """
    found = np.zeros((len(rates), DIMENSIONS))
    found[:, CPU] = _cpu_percent(rates, total, max(0.0, cpu_percent), cores) / 100 * cores
    found[:, BYTES_IN:] = rates[:, IN:]
    return found


def _cpu_percent(rates: Floats, total: Floats, used: float, cores: float) -> Floats:
    if total[CPU_PERCENT] > 0:
        return np.minimum(used * rates[:, CPU_PERCENT] / total[CPU_PERCENT], rates[:, CPU_PERCENT] / cores)
    if total[MESSAGES] > 0:
        return used * rates[:, MESSAGES] / total[MESSAGES]
    throughput = total[IN] + total[OUT]
    return used * (rates[:, IN] + rates[:, OUT]) / throughput if throughput > 0 else np.zeros(len(rates))


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
    """Walks once through a window's rows in time order, and notes at each round who has which tile, and its load.

    `run()` fills `owner`, `load`, `unloaded`, `heard` and `departures`. T rounds, m tiles, n brokers.

    A load is a step function: the last report holds until the bundle's broker reports again. Bundles that a report does
    not list share the rest of its total by their parts of the hash space. A moved bundle keeps its load until its new
    broker has reported, and for `settle_us` has at least that load: a mean over a time that began before it came is too
    low. The leader computes the same (`loadmanager.model.observation`). Otherwise each move would look like a
    load that falls and returns, which would end the bundle's rest time.
    """

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
    """For each total the range of its listed rows, which are sorted by broker and time (`sliced`)."""
    listed, totals = data.listed, data.totals
    found = np.zeros((len(totals.us), 2), np.int64)
    for broker in range(len(data.brokers)):
        begin, end = np.searchsorted(listed.broker, [broker, broker + 1])
        mine = np.flatnonzero(totals.broker == broker)
        times = listed.us[begin:end]
        found[mine, 0] = begin + np.searchsorted(times, totals.us[mine], "left")
        found[mine, 1] = begin + np.searchsorted(times, totals.us[mine], "right")
    return [(first, last) for first, last in found.tolist()]


class Presence(msgspec.Struct, frozen=True, eq=False):
    """T rounds, n brokers."""

    present: Flags
    """(T, n)"""
    used: Floats
    """(T, n, DIMENSIONS), natural units; 0 where a broker is not there."""
    capacity: Floats
    """(n, DIMENSIONS), of the first report; without any report, the mean of the others."""


def presence(data: Slice, owner: Ints) -> Presence:
    """The presence of all brokers: while a report of it is in force (`in_force.sql`).

    `owner` (T, m) is who has each tile. Who has some before its first report is there, and only has not reported yet;
    so is, in the first round, who reports before the second.
    """
    shape = (data.frame.rounds, len(data.brokers))
    present, used = np.zeros(shape, np.bool_), np.zeros((*shape, DIMENSIONS))
    capacity = np.full((shape[1], DIMENSIONS), np.nan)
    for broker in range(shape[1]):
        rows = np.flatnonzero(data.reports.broker == broker)
        if not len(rows):
            continue
        capacity[broker] = data.reports.capacity[rows[0]]
        last = np.searchsorted(data.reports.us[rows], data.frame.times, "right") - 1
        here = (last >= 0) & ~_is_gone(data, rows)
        silent = (owner == broker).any(axis=1)
        silent[0] |= data.reports.us[rows[0]] < data.frame.begin_us + data.frame.interval_us
        silent &= last < 0
        present[:, broker] = here | silent
        used[here, broker] = data.reports.used[rows[last[here]]]
    return Presence(present, used, _known(capacity))


def _known(capacity: Floats) -> Floats:
    silent = np.isnan(capacity[:, 0])
    if silent.any():
        capacity[silent] = capacity[~silent].mean(axis=0) if not silent.all() else [1.0, *[np.inf] * (DIMENSIONS - 1)]
    return capacity


def _is_gone(data: Slice, rows: Ints) -> Flags:
    """(T,): no report of the broker, of these rows, was in force any more.

    At least one round long, except where it ended before the window.
    """
    times, gone = data.frame.times, np.zeros(data.frame.rounds, np.bool_)
    ends = data.reports.until_us[rows]
    nexts = np.append(data.reports.us[rows[1:]], np.iinfo(np.int64).max)
    apart = (ends < nexts) & (nexts > data.frame.begin_us)
    for end, following in zip(ends[apart].tolist(), nexts[apart].tolist(), strict=True):
        first = int(np.searchsorted(times, end, "left"))
        gone[first : max(first + 1, int(np.searchsorted(times, following, "left")))] = True
    return gone


def draining(data: Slice, owner: Ints, present: Flags) -> Flags:
    """(T, n): draining, from a broker's first own hand-over on, if it then gave away all bundles.

    `owner` (T, m) is who has each tile in each round.
    """
    found = np.zeros_like(present)
    moves, times = data.ownerships, data.frame.times
    given = (moves.role == ITS_OWN) & ((moves.action == TRANSFER) | (moves.action == UNLOAD))
    given &= (moves.source != NOWHERE) & (moves.us >= data.frame.begin_us)
    for broker in np.unique(moves.source[given]).tolist():
        first = int(np.searchsorted(times, moves.us[given & (moves.source == broker)].min(), "left"))
        held = (owner == broker).sum(axis=1)
        empty = (held == 0) | ~present[:, broker]
        ends = first + int(np.argmax(empty[first:])) if empty[first:].any() else None
        if ends is None:
            continue
        back = (held[ends:] > 0) | ~present[ends:, broker]
        last = ends + int(np.argmax(back)) if back.any() else len(times)
        found[first:last, broker] = True
    return found & present


class Rest(msgspec.Struct, frozen=True, eq=False):
    """A planned move before the game: round (0 or less), bundle, source, and the bundle's load then (DIMENSIONS,)."""

    round: int
    bundle: int
    source: int
    load: Floats


class Recorded(Scenario, frozen=True, eq=False):
    """A scenario with recorded loads, each resource by itself. `activity` and `profile` are unused."""

    load: Floats
    """(T, m, DIMENSIONS)"""
    rests: tuple[Rest, ...] = ()
    """In the order of time."""
    ruling: Ruling | None = None
    """The policies in force; None where they are not recorded."""

    def asked(self, at: int) -> Floats:
        return self.load[at].copy()

    def total(self, at: int) -> Floats:
        total: Floats = self.load[at].sum(axis=0)
        return total


class Step(msgspec.Struct, frozen=True):
    """A move to another broker in a round: by `transfer`, `unload`, `hand over`, or `death` of the old broker."""

    round: int
    bundle: int
    how: str


class RecordedGame(msgspec.Struct, frozen=True, eq=False):
    """A game to play, and what happened: `owner` (T, m) who had each bundle, and by which steps."""

    scenario: Recorded
    owner: Ints
    steps: tuple[Step, ...]


class Missing(msgspec.Struct, frozen=True):
    """Why a window cannot be replayed; the same words for the same reason."""

    reason: str


def recorded(data: Slice, least_coverage: float, settle_s: float = 0.0) -> RecordedGame | Missing:
    """The game of a window. `least_coverage`: the part of all bundles and rounds for which the load must be known.

    `settle_s`: for so long after a move what brokers report of the bundle may be too low.
    """
    if not len(data.reports.us):
        return Missing("no broker reported")
    if not len(data.ownerships.us):
        return Missing("the channel does not say who had the bundles")
    tiles = tiled(data.bundles)
    walk = Walk(data, tiles, round(settle_s * 1e6)).run()
    there = presence(data, walk.owner)
    kept = np.flatnonzero((walk.owner != NOWHERE).any(axis=0) & (walk.load > 0).any(axis=(0, 2)))
    if not len(kept):
        return Missing("no bundle had any load")
    owner = _placed(walk.owner[:, kept], there.present)
    absent = ~_at(there.present, owner)
    covered = 1.0 - (absent | ~_at(walk.heard, owner)).mean()
    if covered < least_coverage:
        return Missing("brokers with bundles did not report")
    load = walk.load[:, kept]
    load[absent] = 0.0
    leaving = draining(data, owner, there.present)
    if not (there.present & ~leaving).any(axis=1).all():
        return Missing("no broker took part for a time")
    foreign = _foreign(there.used, load, owner)
    made = _scenario(data, tiles, kept, load, owner[0], foreign, there.present, leaving, there.capacity)
    made = msgspec.structs.replace(
        made,
        rests=tuple(_rests(walk.departures, kept, load[0], data.frame)),
        ruling=None if data.rules is None else ruling(data.rules, data.brokers, made.bundles),
    )
    return RecordedGame(made, owner, tuple(_steps(owner, there.present, walk.unloaded[:, kept])))


def _at(flags: Flags, owner: Ints) -> Flags:
    """(T, m): what holds for the owner of each bundle."""
    found: Flags = np.take_along_axis(flags, owner, axis=1)
    return found


def _placed(owner: Ints, present: Flags) -> Ints:
    """Bundles without a present owner count at their next owner already, or at their last one if there is no next."""
    placed = np.where(owner == NOWHERE, owner.max(axis=0), owner)
    for at in range(len(owner) - 2, -1, -1):
        ownerless = (owner[at] == NOWHERE) | ~present[at, placed[at]]
        placed[at] = np.where(ownerless, placed[at + 1], placed[at])
    return placed


def _foreign(used: Floats, load: Floats, owner: Ints) -> Floats:
    """(T, n, DIMENSIONS): what brokers used beyond their bundles."""
    bundles = np.stack([summed(load[at], owner[at], used.shape[1]) for at in range(len(used))])
    return np.maximum(0.0, used - bundles)


def _rests(departures: Sequence[Departure], kept: Ints, load: Floats, frame: Frame) -> Iterator[Rest]:
    """The moves before the game. A bundle without a reported load then counts with its load of the first round."""
    row_of = {tile: row for row, tile in enumerate(kept.tolist())}
    for each in departures:
        row = row_of.get(each.tile)
        if row is not None:
            at = round((each.us - frame.begin_us) / frame.interval_us)
            yield Rest(min(0, at), row, each.source, load[row] if each.load is None else each.load)


def _steps(owner: Ints, present: Flags, unloaded: Flags) -> list[Step]:
    """What the cluster did: each bundle that is elsewhere than in the round before is a step."""
    found: list[Step] = []
    for at, bundle in np.argwhere(owner[1:] != owner[:-1]).tolist():
        died = not present[at + 1, owner[at, bundle]]
        how = "death" if died else "unload" if unloaded[at + 1, bundle] else "transfer"
        found.append(Step(at + 1, bundle, how))
    return found


def _scenario(
    data: Slice, tiles: Tiles, kept: Ints, load: Floats, home: Ints, foreign: Floats,
    present: Flags, leaving: Flags, capacity: Floats,
) -> Recorded:  # fmt: skip
    bundles = tiles.only(kept)
    names = sorted({each.namespace for each in bundles})
    row_of = {name: row for row, name in enumerate(names)}
    shape = (data.frame.rounds, len(bundles))
    return Recorded(
        name=f"recorded at {data.frame.begin_us // 1_000_000}",
        interval_s=data.frame.interval_us / 1e6,
        bundles=bundles,
        namespaces=tuple(names),
        namespace=np.array([row_of[each.namespace] for each in bundles], np.int64),
        profile=np.broadcast_to(1.0, (len(bundles), DIMENSIONS)),
        activity=np.broadcast_to(1.0, shape),
        capacity=capacity,
        home=home,
        foreign=foreign,
        slowness=np.broadcast_to(1.0, present.shape),
        present=present,
        draining=leaving,
        fixed=np.zeros(len(bundles), np.bool_),
        load=load,
    )
