"""The result of a replay: candidates over all windows with intervals, whether to believe it, and what to set. Pure.

Intervals are block bootstraps: windows are drawn with replacement, the same ones for every candidate, so that a hard
day is hard for all and does not blur differences. Windows count as independent of each other.

A replay that is right about other settings must first be right about the present ones. So two figures are compared with
what the cluster had: the objective J, and the spread, by which the fullest broker is above the mean. Both are means
over the windows that the cluster's own settings played to the end. J alone is not enough, as moves may cost as much as
the imbalance that they end. Figures agree if they are within a factor of each other, or so near that the difference
would not change advice.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from loadmanager.history.replay.candidates import RECORDED, Candidate, commands
from loadmanager.model.cluster import Floats, Ints
from loadmanager.settings import Settings
from loadmanager.settings.overlay import Scalar

LEVEL_PERCENT = (2.5, 97.5)
RESAMPLES = 2_000
FEWEST = 5
"""Fewer windows may show chance, whatever their interval."""


class Interval(msgspec.Struct, frozen=True):
    """A mean over windows, and the range of 95 % of resampled means."""

    mean: float
    low: float
    high: float


def _drawn(count: int, seed: int) -> Ints:
    return np.random.default_rng(seed).integers(0, count, (RESAMPLES, count))


def _interval(values: Floats, drawn: Ints) -> Interval:
    """The interval of the mean of these values; windows without a value (NaN) are left out."""
    known = ~np.isnan(values)
    if not known.any():
        return Interval(float("nan"), float("nan"), float("nan"))
    weight = known[drawn].sum(axis=1)
    sums = np.where(known, values, 0.0)[drawn].sum(axis=1)
    low, high = np.percentile(sums[weight > 0] / weight[weight > 0], LEVEL_PERCENT)
    return Interval(float(values[known].mean()), float(low), float(high))


def mean(values: Sequence[float]) -> Interval | None:
    """The mean of one value per block, and its interval, which has the mean in it; None with fewer than FEWEST blocks.

    A block must be long beside the events in it (an hour of minutes, a window of a replay).
    """
    if len(values) < FEWEST:
        return None
    found = _interval(np.asarray(values, np.float64), _drawn(len(values), 0))
    return Interval(found.mean, min(found.mean, found.low), max(found.mean, found.high))


class Ranked(msgspec.Struct, frozen=True):
    """One candidate over all windows that it played to the end; the best first. Units as in `cost.Terms`."""

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


class _Table:
    """Figures by window and candidate; NaN where a candidate broke a rule."""

    def __init__(self, rows: Sequence[WindowRow], names: Sequence[str], seed: int) -> None:
        begins = sorted({row.begin for row in rows})
        self.names = list(names)
        self._rows = {(row.begin, row.candidate): row for row in rows}
        self._begins = begins
        self._drawn = _drawn(len(begins), seed)

    def of(self, name: str, candidate: str) -> Floats:
        """(windows,)"""
        rows = [self._rows[begin, candidate] for begin in self._begins]
        values = [getattr(row, name) for row in rows]
        return np.array([np.nan if value is None else value for value in values], np.float64)

    def broke(self, candidate: str) -> list[str]:
        """The rules it broke, window by window."""
        return [text for begin in self._begins if (text := self._rows[begin, candidate].broke)]

    def interval(self, values: Floats) -> Interval:
        """The interval of the mean of these values."""
        return _interval(values, self._drawn)


def ranked(rows: Sequence[WindowRow], candidates: Sequence[Candidate], seed: int) -> tuple[Ranked, ...]:
    """The candidates, best first: by number of windows with a broken rule, then by mean J."""
    table = _Table(rows, [each.name for each in candidates], seed)
    order = sorted(
        table.names,
        key=lambda name: (len(table.broke(name)), float(np.nan_to_num(_mean(table.of("objective", name)), nan=np.inf))),
    )
    return tuple(_one(table, name, rank, order[0]) for rank, name in enumerate(order, 1))


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _one(table: _Table, name: str, rank: int, best: str) -> Ranked:
    objective, broke = table.of("objective", name), table.broke(name)
    known = ~np.isnan(objective)
    recorded = table.interval(objective - table.of("objective", RECORDED)) if RECORDED in table.names else None
    return Ranked(
        rank=rank,
        candidate=name,
        windows=int(known.sum()),
        violations=len(broke),
        objective=table.interval(objective),
        regret=table.interval(objective - table.of("bound", name)),
        against_best=table.interval(objective - table.of("objective", best)),
        against_recorded=recorded,
        overload=_mean(table.of("overload", name)),
        imbalance=_mean(table.of("imbalance", name)),
        moved_an_hour=_mean(table.of("moved_an_hour", name)),
        gap_s_an_hour=_mean(table.of("gap_s_an_hour", name)),
        max_over_mean=table.interval(table.of("max_over_mean", name)),
        std=_mean(table.of("std", name)),
        above_percent=_mean(table.of("above_percent", name)),
        moves=_mean(table.of("moves", name)),
        broke=broke[0] if broke else "",
    )


def config_of(best: Candidate, base: Settings, fidelity: Fidelity | None = None) -> Config:
    """The settings of the best candidate; none where the replay of the cluster's own settings is not what it had."""
    if fidelity is not None and not fidelity.agrees:
        return Config(best.name, {}, ())
    changes = best.changes(base)
    return Config(best.name, changes, commands(changes))


def verdict(table: Sequence[Ranked], config: Config, fidelity: Fidelity | None = None) -> str:
    """What to do, in one sentence."""
    best = table[0]
    if fidelity is not None and not fidelity.agrees:
        return f"set nothing: {fidelity.against}"
    if best.violations:
        return f"set nothing: every candidate broke a rule, {best.candidate} the fewest ({best.violations} windows)"
    if not config.settings:
        return f"leave the settings as they are: nothing did better than {best.candidate}"
    gain = best.against_recorded
    if best.windows < FEWEST:
        few = f"{best.windows} windows say too little"
        return f"{best.candidate} is first, but {few}: replay more time, or shorter windows"
    if gain is not None and gain.high >= 0:
        return (
            f"{best.candidate} is first, but may be no better than what the cluster did "
            f"({gain.mean:+.4f}, between {gain.low:+.4f} and {gain.high:+.4f}): replay more days"
        )
    second = "" if len(table) < 2 or table[1].is_worse else f"; {table[1].candidate} may be as good"
    against = "" if gain is None else f" would have cost {-gain.mean:.4f} brokers less than what the cluster did"
    return f"{best.candidate}{against or ' costs least'}{second}"


FACTOR = 1.5
"""A replay is kinder than life (moves take no time), and its rounds are not at the same seconds. In windows of ten
rounds of a demo's record these made a quarter; more than a half was a fault of the game each time."""
NEAR = 0.02
"""Brokers: a fiftieth of a broker too much on the fullest one."""
NEAR_SPREAD = 0.1
"""Of the mean broker: as much as the default tolerance."""


def compared(recorded: Sequence[WindowRow], own: Sequence[WindowRow], candidate: str) -> Fidelity:
    """The check; `own` are the rows of the candidate that equals the cluster's settings."""
    had = {row.begin: row for row in recorded}
    pairs = [(had[row.begin], row) for row in own if row.objective is not None and row.begin in had]
    costs = [(then.objective or 0.0, now.objective or 0.0) for then, now in pairs]
    spreads = [(then.max_over_mean or 1.0, now.max_over_mean or 1.0) for then, now in pairs]
    broke = len(own) - len(pairs)
    cost, spread = _means(costs), _means(spreads)
    against = _against(cost, spread, broke, len(own), candidate)
    return Fidelity(candidate, len(pairs), *cost, *spread, agrees=not against, against=against)


def unknown(strategy: str) -> Fidelity:
    """Of a cluster whose strategy this program does not have."""
    why = f"the cluster's strategy {strategy} is not installed here, so its own settings cannot be replayed"
    return Fidelity(strategy, 0, 0.0, 0.0, 1.0, 1.0, agrees=False, against=why)


def _means(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    count = max(1, len(pairs))
    return sum(then for then, _ in pairs) / count, sum(now for _, now in pairs) / count


def _against(cost: tuple[float, float], spread: tuple[float, float], broke: int, windows: int, candidate: str) -> str:
    """What speaks against the replay; empty if nothing does."""
    if 2 * broke > windows or broke == windows:
        return f"the cluster's own settings ({candidate}) broke a rule in {broke} of {windows} windows of the replay"
    if not _agree(*cost, NEAR):
        told = f"cost {cost[1]:.3g} in it, and the cluster had {cost[0]:.3g}"
    elif not _agree(spread[0] - 1, spread[1] - 1, NEAR_SPREAD):
        told = f"have a max/mean of {spread[1]:.3g} in it, and the cluster had {spread[0]:.3g}"
    else:
        return ""
    return (
        f"this replay is not what happened: the cluster's own settings ({candidate}) {told}. Balancing was off or "
        "paused for a time, moves were made by hand, settings changed, or windows are too short: take another --from "
        "and --to, or a longer --window-s"
    )


def _agree(had: float, has: float, near: float) -> bool:
    return abs(has - had) <= near or had <= FACTOR * has <= FACTOR**2 * had
