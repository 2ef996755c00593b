"""The figures of a round of the transfer shedder: mean, deviation, the fullest and the emptiest broker.

They follow the expected effect of the round's own decisions.
"""

from __future__ import annotations

from math import isfinite, sqrt

import numpy as np

from loadmanager.model.cluster import ClusterModel, Flags, Floats
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.pulsar.averages import Times
from loadmanager.strategies.rebalancing.pulsar.outcome import Cause


class Ranking:
    """Brokers by their rows, in the order of their average load; `highest` and `lowest` move towards each other."""

    def __init__(self, rows: list[int], load: Floats, throughput_bytes_s: Floats, settings: Settings) -> None:
        self._settings = settings
        self._load = load
        self._throughput_bytes_s = throughput_bytes_s
        self._rows = sorted(rows, key=lambda row: load[row])
        chosen = [float(load[row]) for row in rows]
        self.mean = sum(chosen) / len(chosen)
        self._squares = sum(each * each for each in chosen)
        self.deviation = self._deviation()
        self._low, self._high, self._shed = 0, len(rows) - 1, 0

    @property
    def highest(self) -> int:
        return self._rows[self._high]

    @property
    def lowest(self) -> int:
        return self._rows[self._low]

    @property
    def goes_on(self) -> bool:
        """Whether two brokers are left to pair, and another one may shed in this round."""
        return self._shed < self._settings.shedder_max_brokers and self._low < self._high

    def condition(self) -> Cause | None:
        """Why bundles should move now, None if none should."""
        if self.deviation > self._settings.shedder_target_std:
            return Cause.OVERLOADED
        if self._is_underloaded(self.lowest):
            return Cause.UNDERLOADED
        return Cause.OVERLOADED if self._is_overloaded(self.highest) else None

    def load(self, row: int) -> float:
        """The average usage of a broker before any move."""
        return float(self._load[row])

    def pass_highest(self) -> int:
        """The fullest broker, which is not considered again in this round."""
        self._high -= 1
        return self._rows[self._high + 1]

    def moved(self, source: int, destination: int, load: float) -> None:
        """Note load expected to move between the two; the destination gets no more in this round."""
        before, after = (self.load(source), self.load(destination)), (self.load(source) - load, 0.0)
        after = (max(0.0, after[0]), before[1] + load)
        self._squares += sum(each * each for each in after) - sum(each * each for each in before)
        self.deviation = self._deviation()
        self._shed += 1
        self._low += 1

    def _deviation(self) -> float:
        return sqrt(abs(self._squares / len(self._rows) - self.mean * self.mean))

    def _is_underloaded(self, row: int) -> bool:
        part = min(0.5, max(0.0, self._settings.shedder_target_std / 2))
        bytes_s = self._throughput_bytes_s
        return self._load[row] < self.mean * part or bool(bytes_s[row] < bytes_s[self.highest] * part)

    def _is_overloaded(self, row: int) -> bool:
        load = self._load[row]
        full = self._settings.overloaded_percent / 100
        return bool(load > full and load > self.mean + self._settings.shedder_target_std)


def usable(model: ClusterModel, unloaded_ms: Times, settings: Settings) -> list[int] | Cause:
    """The rows to compare, or why the whole round is skipped.

    As in Pulsar, one live broker that has never reported, or that shed and has not reported for `shedder_delay_s`
    since, stops the round for all.
    """
    brokers = model.brokers
    there = ~brokers.draining & ~brokers.paused
    age_s = _ages_s(model)
    fresh = there & brokers.known & (age_s <= settings.load_ttl_s)
    rows = [int(row) for row in np.flatnonzero(fresh)]
    for row in rows:
        unloaded = unloaded_ms.get(str(brokers.ids[row]))
        if unloaded is not None and model.at_ms - age_s[row] * 1000 - unloaded < settings.shedder_delay_s * 1000:
            return Cause.COOL_DOWN
    outdated = [row for row in np.flatnonzero(there & ~fresh) if isfinite(age_s[row])]
    if not rows:
        return Cause.OUTDATED_DATA if outdated else Cause.NO_BROKERS
    return rows if len(rows) + len(outdated) == int(there.sum()) else Cause.NO_LOAD_DATA


def _ages_s(model: ClusterModel) -> Floats:
    """(n,), the age of the brokers' reports; infinite without one."""
    if model.brokers.report_age_s is not None:
        return model.brokers.report_age_s
    known: Flags = model.brokers.known
    return np.where(known, 0.0, np.inf)
