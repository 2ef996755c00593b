"""Who holds which bundle when, in closed form: any day can be computed without the days before it. Pure numpy.

Bundle b is due to move at t(k) = phase + k · dwell, to the broker `stride` rows further, so that owners k and k + 1
always differ. If its owner dies before that, the bundle goes to the next owner at once, which keeps it until t(k + 1).
Moves fall into the first half of an hour and deaths on its middle, so that no bundle goes to a dead broker.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadmanager.history.generating.world import DAY_MS, HOUR_MS, MINUTE_MS, World

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

DIES_AT_MS = 12 * HOUR_MS + 30 * MINUTE_MS
AWAY_MS = 10 * MINUTE_MS
NEVER_MS = np.iinfo(np.int64).max


class Spells(msgspec.Struct, frozen=True, eq=False):
    """(m, K): the spells of each bundle that touch a time, in their order. Times in ms since 1970."""

    begin: Ints
    """When it came to its owner; the history's begin for the first."""
    owner: Ints
    before: Ints
    """The owner before; -1 for the first."""
    by_death: Flags
    """It came because the owner before died."""

    def owners(self, at_ms: Ints) -> Ints:
        """(T, m): who holds each bundle at these instants, which must lie in the time of the spells."""
        holder = np.full((len(at_ms), len(self.begin)), -1, np.int64)
        for number in range(self.begin.shape[1]):
            came = self.begin[:, number][None, :] <= at_ms[:, None]
            holder = np.where(came, self.owner[:, number][None, :], holder)
        return holder


def spells(world: World, home: Ints, begin_ms: int, end_ms: int) -> Spells:
    """The spells that touch [begin_ms, end_ms). `home` (m,) has each bundle first."""
    rng = np.random.default_rng((world.seed, 11))
    m, n = len(home), world.brokers
    dwell = rng.integers(world.dwell_h[0], world.dwell_h[1] + 1, m) * HOUR_MS
    phase = rng.integers(0, dwell // HOUR_MS) * HOUR_MS + rng.integers(MINUTE_MS, 30 * MINUTE_MS, m)
    stride = rng.integers(1, n, m)
    due = world.begin_ms + phase
    first = np.maximum(-1, (begin_ms - due) // dwell - 1)
    count = int(((end_ms - due) // dwell - first).max()) + 2
    number = first[:, None] + np.arange(count)[None, :]
    owner = (home[:, None] + (number + 1) * stride[:, None]) % n
    before = np.where(number >= 0, (home[:, None] + number * stride[:, None]) % n, -1)
    planned = _due(world, due, dwell, number)
    earlier = _due(world, due, dwell, number - 1)
    died = _death(world, before, earlier, planned)
    by_death = (number >= 0) & (died < planned)
    begin = np.where(by_death, died, planned)
    # the last column begins after the time; it only ends the one before
    return Spells(begin, owner, before, by_death)


def incarnations(world: World, at_ms: Ints) -> Ints:
    """(T, n): the incarnation of each broker, 1 at first and one more after each death."""
    days = np.arange(world.days)
    deaths = world.begin_ms + days * DAY_MS + DIES_AT_MS
    who = np.array([world.dead(int(day)) for day in days])
    happened = deaths[None, :] <= at_ms[:, None]
    found = np.ones((len(at_ms), world.brokers), np.int64)
    if world.deaths:
        for row in range(world.brokers):
            found[:, row] += happened[:, who == row].sum(axis=1)
    return found


def away(world: World, at_ms: Ints) -> Flags:
    """(T, n): which brokers are down."""
    days = (at_ms - world.begin_ms) // DAY_MS
    since = at_ms - world.begin_ms - days * DAY_MS - DIES_AT_MS
    who = np.array([world.dead(int(day)) for day in days])
    down = (since >= 0) & (since < AWAY_MS) & world.deaths
    found: Flags = down[:, None] & (who[:, None] == np.arange(world.brokers))
    return found


def _due(world: World, due: Ints, dwell: Ints, number: Ints) -> Ints:
    found: Ints = np.where(number >= 0, due[:, None] + number * dwell[:, None], world.begin_ms)
    return found


def _death(world: World, owner: Ints, begin: Ints, end: Ints) -> Ints:
    """When the owner died within [begin, end), else NEVER_MS. A spell lasts under a day, so it touches two days at
    most."""
    found = np.full(owner.shape, NEVER_MS)
    if not world.deaths:
        return found
    day = (begin - world.begin_ms) // DAY_MS
    for later in (1, 0):
        moment = world.begin_ms + (day + later) * DAY_MS + DIES_AT_MS
        who = ((day + later) * 7 + world.seed) % world.brokers
        happened = (who == owner) & (moment >= begin) & (moment < end) & (moment < world.end_ms)
        found = np.where(happened, moment, found)
    return found
