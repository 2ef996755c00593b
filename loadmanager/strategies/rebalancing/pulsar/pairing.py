"""Chooses, for one pair of the transfer shedder, which bundles go to the emptiest broker and which come back.

A bundle is judged by its bytes only, from the smallest to the largest. If the next one would be too much, it goes
nevertheless if bundles of the emptiest broker can come back in exchange.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cmp_to_key

import msgspec
import numpy as np

from loadmanager.model.cluster import FREE, ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Stage
from loadmanager.strategies.rebalancing.pulsar.moves import RESTING, Moves
from loadmanager.strategies.rebalancing.pulsar.outcome import Cause

SWAPPED_BELOW = 0.75
"""After a swap the fuller broker must be below this fraction of its former throughput."""

POLICIES = "under an isolation policy or in an anti-affinity group"
ZERO = "no traffic"
_STEPS = (100_000.0, 100_000.0, 100.0)
"""Differences of bytes in, bytes out and messages per second that distinguish bundles in a report's order."""
_COMPARED = (2, 3, 4)
"""The columns of a bundle's load in that order."""


class Traffic(msgspec.Struct):
    """The bytes/s of one pair that are chosen to go and to come back."""

    going: float = 0.0
    coming: float = 0.0

    @property
    def net(self) -> float:
        return self.going - self.coming


class Pair(msgspec.Struct, frozen=True):
    """Rows of two brokers, how many bytes/s should go from the full one to the empty one, and why."""

    full: int
    empty: int
    wanted_bytes_s: float
    cause: Cause


class Walk:
    """Chooses the bundles of a pair. `resting`: rows of bundles that were unloaded recently."""

    def __init__(self, model: ClusterModel, settings: Settings, moves: Moves, resting: frozenset[int]) -> None:
        self._model = model
        self._settings = settings
        self._moves = moves
        self._resting = resting

    def reported(self, broker: int) -> list[int]:
        """The bundles in the broker's report in Pulsar's order, from the smallest to the largest."""
        load = self._model.bundles.load

        def compare(one: int, other: int) -> int:
            for column, step in zip(_COMPARED, _STEPS, strict=True):
                difference = load[one, column] - load[other, column]
                if abs(difference) > step:
                    return 1 if difference > 0 else -1
            return 0

        return sorted(map(int, np.flatnonzero(self._model.bundles.owner == broker)), key=cmp_to_key(compare))

    def shed(self, pair: Pair) -> Traffic:
        """Decide the moves of this pair; returns their traffic."""
        mine, back = self.reported(pair.full), iter(self.reported(pair.empty))
        traffic, remaining = Traffic(), len(mine)
        for bundle in mine:
            rule = self._stays(bundle, pair)
            if rule is not None:
                self._moves.counts[rule] += 1
                continue
            if remaining <= 1:
                self._moves.counts["the last one of the report"] += 1
                break
            swapped: list[int] = []
            bytes_s = self._bytes_s(bundle)
            if traffic.net + bytes_s > pair.wanted_bytes_s:
                swapped = self._swapped(pair, traffic, bytes_s, back)
                if not swapped:
                    self._moves.counts["more than is to go"] += 1
                    break
            self._make(pair, bundle, swapped)
            traffic.going += bytes_s
            traffic.coming += sum(map(self._bytes_s, swapped))
            remaining -= 1
        return traffic

    def _bytes_s(self, bundle: int) -> float:
        return float(self._model.bundles.throughput_bytes_s[bundle])

    def _stays(self, bundle: int, pair: Pair) -> str | None:
        if bundle in self._resting:
            return RESTING
        return self._refusal(bundle, pair.empty) or (ZERO if self._bytes_s(bundle) == 0 else None)

    def _refusal(self, bundle: int, destination: int) -> str | None:
        """Pulsar's gate for bundles under policies, then the hard rules."""
        constraints = self._model.constraints
        isolated = constraints.isolated is not None and bool(constraints.isolated[bundle])
        grouped = int(constraints.group[bundle]) != FREE
        if not may_shed(self._settings, isolated=isolated, grouped=grouped):
            return POLICIES
        return self._moves.refusal(bundle, destination)

    def _swapped(self, pair: Pair, traffic: Traffic, bytes_s: float, back: Iterator[int]) -> list[int]:
        """Bundles to come back for one of `bytes_s`; none if no choice improves the pair.

        As in Pulsar, a tried bundle is used up for the whole pair, and recent unloads are ignored.
        """
        if not self._settings.shedder_transfer:
            return []
        brokers = self._model.brokers
        before = float(brokers.throughput_bytes_s[pair.full])
        full = before - traffic.net - bytes_s
        empty = float(brokers.throughput_bytes_s[pair.empty]) + traffic.net + bytes_s
        taken: list[int] = []
        for bundle in back:
            size = self._bytes_s(bundle)
            rule = self._refusal(bundle, pair.full)
            if rule is not None or size == 0:
                self._moves.counts[rule or ZERO] += 1
                continue
            if full + size >= before or empty - size >= before:
                continue
            full, empty = full + size, empty - size
            taken.append(bundle)
            if empty <= full < before * SWAPPED_BELOW:
                return taken
        return []

    def _make(self, pair: Pair, bundle: int, swapped: list[int]) -> None:
        stage = Stage.SWAP if swapped else Stage.OVERLOAD if pair.cause is Cause.OVERLOADED else Stage.BALANCE
        group = len(self._moves.made) + 1 if swapped else 0
        bytes_s = f"{self._bytes_s(bundle) / 1e6:.3g} MB/s"
        if not self._settings.shedder_transfer:
            self._moves.make(bundle, None, f"{pair.cause}: {bytes_s} are unloaded", stage)
            return
        self._moves.make(bundle, pair.empty, f"{pair.cause}: {bytes_s}", stage, group)
        for each in swapped:
            why = f"{pair.cause}: {self._bytes_s(each) / 1e6:.3g} MB/s come back for {bytes_s}"
            self._moves.make(each, pair.full, why, stage, group)


def may_shed(settings: Settings, *, isolated: bool, grouped: bool) -> bool:
    """Pulsar's policy gate: bundles under isolation or in an anti-affinity group stay, unless the setting is on."""
    return settings.shedder_policy_bundles or not (isolated or grouped)
