"""Summarises windows: means with intervals, the best candidate, and what to set. Pure.

Intervals are paired bootstraps: windows are drawn with replacement, the same ones for every candidate, so that a hard
day is hard for all and does not blur differences. Windows count as independent of each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmanager.history.replay.candidates import RECORDED, Candidate, commands
from loadmanager.history.replay.result import Config, Fidelity, Interval, Ranked, WindowRow
from loadmanager.model.cluster import Floats, Ints
from loadmanager.settings import Settings

LEVEL_PERCENT = (2.5, 97.5)
RESAMPLES = 2_000
FEWEST = 5
"""Fewer windows may show chance, whatever their interval."""


class _Table:
    """Figures by window and candidate; NaN where a candidate broke a rule."""

    def __init__(self, rows: Sequence[WindowRow], names: Sequence[str], seed: int) -> None:
        begins = sorted({row.begin for row in rows})
        self.names = list(names)
        self._rows = {(row.begin, row.candidate): row for row in rows}
        self._begins = begins
        rng = np.random.default_rng(seed)
        self._drawn: Ints = rng.integers(0, len(begins), (RESAMPLES, len(begins)))

    def of(self, name: str, candidate: str) -> Floats:
        """(windows,)"""
        rows = [self._rows[begin, candidate] for begin in self._begins]
        values = [getattr(row, name) for row in rows]
        return np.array([np.nan if value is None else value for value in values], np.float64)

    def broke(self, candidate: str) -> list[str]:
        """The rules it broke, window by window."""
        return [text for begin in self._begins if (text := self._rows[begin, candidate].broke)]

    def interval(self, values: Floats) -> Interval:
        """The interval of the mean of these values; windows without a value are left out."""
        known = ~np.isnan(values)
        if not known.any():
            return Interval(float("nan"), float("nan"), float("nan"))
        weight = known[self._drawn].sum(axis=1)
        sums = np.where(known, values, 0.0)[self._drawn].sum(axis=1)
        low, high = np.percentile(sums[weight > 0] / weight[weight > 0], LEVEL_PERCENT)
        return Interval(float(values[known].mean()), float(low), float(high))


def ranked(rows: Sequence[WindowRow], candidates: Sequence[Candidate], seed: int) -> tuple[Ranked, ...]:
    """The candidates, best first: by number of windows with a broken rule, then by mean J."""
    table = _Table(rows, [each.name for each in candidates], seed)
    worst = np.inf
    order = sorted(
        table.names,
        key=lambda name: (len(table.broke(name)), float(np.nan_to_num(_mean(table.of("objective", name)), nan=worst))),
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
