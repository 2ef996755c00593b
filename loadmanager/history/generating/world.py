"""Parameters of a generated history: a workload, days, and brokers that die now and then."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

MINUTES_A_DAY = 1440
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
MOST_BUNDLES = 2**18


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
