"""Parameters of a generated history, and who holds which bundle when, in closed form: no day needs the days before it.

A world has a workload, days, and brokers that die now and then. Bundle b is due to move at t(k) = phase + k · dwell, to
the broker `stride` rows further, so that owners k and k + 1 always differ. If its owner dies before that, the bundle
goes to the next owner at once, which keeps it until t(k + 1). Moves fall into the first half of an hour and deaths on
its middle, so that no bundle goes to a dead broker. Pure numpy.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

MINUTES_A_DAY = 1440
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
MOST_BUNDLES = 2**18

DIES_AT_MS = 12 * HOUR_MS + 30 * MINUTE_MS
AWAY_MS = 10 * MINUTE_MS
NEVER_MS = np.iinfo(np.int64).max


class World(msgspec.Struct, frozen=True):
    """One generated history. Raises ValueError for impossible values.

    Each day is the workload's scenario in 1,440 rounds, times `weekend` on Saturdays and Sundays, with noise. A bundle
    moves after a fixed number of hours of its own, between the two of `dwell_h`, whether or not that helps. One broker
    dies each day at 12:30 and is back, as its next incarnation, at 12:40; none with `deaths` off. The leader changes at
    midnight. A report of `load-bundles` has `top` bundles; there is one report a minute.
    """

    workload: str = "diurnal"
    brokers: int = 12
    bundles: int = 600
    days: int = 7
    seed: int = 1
    begin: datetime = datetime(2026, 1, 5, tzinfo=UTC)
    """Midnight; a Monday by default."""
    weekend: float = 0.7
    noise: float = 0.02
    dwell_h: tuple[int, int] = (12, 23)
    deaths: bool = True
    top: int = 25
    partitions: int = 4

    def __post_init__(self) -> None:
        least, most = self.dwell_h
        if self.brokers < 2 or not 0 < self.bundles <= MOST_BUNDLES or self.days < 1:
            raise ValueError(f"a world has 2 or more brokers, 1 to {MOST_BUNDLES} bundles, and a day or more")
        if not 0 < least <= most < 24:
            raise ValueError("dwell_h must be between 1 and 23 hours: a longer stay may see two deaths")

    @property
    def begin_ms(self) -> int:
        return round(self.begin.timestamp() * 1000)

    @property
    def end_ms(self) -> int:
        return self.begin_ms + self.days * DAY_MS

    def leader(self, day: int) -> int:
        """The row of the broker that leads on a day, never the one that dies then. Its epoch is day + 1."""
        return (self.dead(day) + 1) % self.brokers

    def dead(self, day: int) -> int:
        """The row of the broker that dies on a day."""
        return (day * 7 + self.seed) % self.brokers

    def decision(self, minute: int) -> str:
        """The id of a round, `epoch.round`, by its minute of the history."""
        return f"{minute // MINUTES_A_DAY + 1}.{minute % MINUTES_A_DAY + 1}"


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
