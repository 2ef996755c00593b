"""The result of a replay: plain values that go into JSON."""

from __future__ import annotations

import msgspec

from loadmanager.settings.overlay import Scalar


class Interval(msgspec.Struct, frozen=True):
    """A mean over windows, and the range of 95 % of resampled means."""

    mean: float
    low: float
    high: float


class Ranked(msgspec.Struct, frozen=True):
    """One candidate over all windows that it played to the end; the best first. Units as in `judging.Terms`."""

    rank: int
    candidate: str
    windows: int
    violations: int
    """Windows in which it broke a rule or failed."""
    objective: Interval
    regret: Interval
    """J less the lower bound: an upper bound of what it lost against the best possible."""
    against_best: Interval
    """J less that of the first in the table, window by window; an interval above 0: the first is surely better."""
    against_recorded: Interval | None
    """J less that of what the cluster did; None where `recorded` was no candidate."""
    overload: float
    imbalance: float
    moved_an_hour: float
    gap_s_an_hour: float
    max_over_mean: Interval
    std: float
    above_percent: float
    moves: float
    """Mean moves per window."""
    broke: str = ""
    """The first rule it broke, in words."""

    @property
    def is_worse(self) -> bool:
        """The interval says that the first is better."""
        return self.against_best.low > 0


class WindowRow(msgspec.Struct, frozen=True):
    """One candidate in one window; figures are None where it broke a rule."""

    begin: str
    """ISO 8601, UTC."""
    candidate: str
    broke: str
    bound: float
    objective: float | None = None
    overload: float | None = None
    imbalance: float | None = None
    moved_an_hour: float | None = None
    gap_s_an_hour: float | None = None
    max_over_mean: float | None = None
    std: float | None = None
    above_percent: float | None = None
    moves: int | None = None
    moved: float | None = None
    gap_s: float | None = None
    ruled: bool = False
    """The record says which policies held in this window."""


class Config(msgspec.Struct, frozen=True):
    """What makes the cluster behave like a candidate: settings by our names, and the commands that set them."""

    candidate: str
    settings: dict[str, Scalar]
    commands: tuple[str, ...]


class Fidelity(msgspec.Struct, frozen=True):
    """What the cluster had, and what the replay of its own settings gives: means over the same windows."""

    candidate: str
    """The one that equals the cluster's settings."""
    windows: int
    recorded: float
    """J of what the cluster did; `replayed` is that of its own settings in the replay."""
    replayed: float
    recorded_max_over_mean: float
    replayed_max_over_mean: float
    agrees: bool
    against: str = ""
    """Why this replay cannot support advice; empty if it agrees with the record."""


class ReplayResult(msgspec.Struct, frozen=True):
    """The whole result. `skipped`: how many windows were left out, by reason."""

    begin: str
    end: str
    interval_s: float
    window_s: float
    windows: int
    skipped: dict[str, int]
    ranked: tuple[Ranked, ...]
    rows: tuple[WindowRow, ...]
    config: Config
    verdict: str
    """One sentence: what to do, and how sure that is."""
    objective: dict[str, float]
    gap_cost: dict[str, float]
    gap_source: str
    seed: int
    ruled: int = 0
    """Windows whose policies are recorded; in the others no policy held."""
    fidelity: Fidelity | None = None
    """The check of the replay itself; None in results of earlier releases."""
