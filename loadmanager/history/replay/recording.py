"""Makes a game of one window: recorded loads, machines and first placement, and what the cluster did then. Pure.

Nothing is invented: where too much is unknown, the answer says what, and the window is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from loadmanager.history.replay.presence import draining, presence
from loadmanager.history.replay.ruling import Ruling, ruling
from loadmanager.history.replay.slices import Frame, Slice
from loadmanager.history.replay.tiles import Tiles, tiled
from loadmanager.history.replay.walking import Departure, Walk
from loadmanager.model.cluster import DIMENSIONS, NOWHERE, Flags, Floats, Ints
from loadmanager.strategies.playground.cluster import summed
from loadmanager.strategies.playground.scenario import Scenario


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
        nobody = (owner[at] == NOWHERE) | ~present[at, placed[at]]
        placed[at] = np.where(nobody, placed[at + 1], placed[at])
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
