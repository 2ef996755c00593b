"""Pulsar's older shedders: a broker gives its largest bundles first, without a destination.

A bundle is unloaded, and the next lookup places it by the setting `placement`, as in Pulsar's modular load manager. A
bundle that no other broker may take stays. The three strategies differ in when a broker sheds, and how much.
"""

from __future__ import annotations

import msgspec
import numpy as np

from loadmanager.model.cluster import ClusterModel, Floats
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision, Refused, Stage
from loadmanager.strategies.rebalancing.pulsar.shedder import (
    AS_IN_PULSAR,
    RESTING,
    Average,
    Averages,
    Cause,
    Label,
    Moves,
    Outcome,
    Times,
    Tuning,
    columns,
    folded,
    younger_than,
)

MARGIN = 0.05
"""How far below its limit an overloaded broker should get."""


class SheddingMemory(msgspec.Struct, frozen=True):
    """The memory between rounds; `bundles_ms`: when bundles were unloaded, while they rest."""

    bundles_ms: Times = msgspec.field(default_factory=dict[str, int])
    averages: Averages = msgspec.field(default_factory=dict[str, Average])
    outcome: Outcome = Outcome()


class Shedding:
    """One round. Brokers that are draining, paused or without fresh load data take no part."""

    def __init__(self, model: ClusterModel, settings: Settings, memory: object) -> None:
        self.model = model
        self.settings = settings
        before = memory if isinstance(memory, SheddingMemory) else SheddingMemory()
        recent = younger_than(before.bundles_ms, settings.bundle_rest_s, model.at_ms)
        self.memory = msgspec.structs.replace(before, bundles_ms=recent)
        self.moves = Moves(model, settings)
        self.rows = [int(row) for row in np.flatnonzero(self.moves.participants)]
        self.refused: list[Refused] = []

    def name(self, row: int) -> str:
        return self.model.brokers.ids[row].name

    def may_give(self, row: int) -> bool:
        """Whether the broker has more than one bundle; if not, note why it gives none."""
        held = int(self.model.brokers.bundles[row])
        if held <= 1:
            detail = "its only bundle is its whole load" if held else "overloaded without any bundle"
            self.refused.append(Refused(self.name(row), Cause.NO_BUNDLES, detail))
        return held > 1

    def largest(self, row: int, traffic: Floats) -> list[int]:
        """The broker's bundles that are not resting, by traffic, the largest first."""
        bundles, at_ms = self.model.bundles, self.memory.bundles_ms
        mine = [int(each) for each in np.flatnonzero(bundles.owner == row)]
        rest_s = self.model.constraints.rest_s
        free = [b for b in mine if bundles.moved_s[b] >= rest_s[b] and str(bundles.ids[b]) not in at_ms]
        self.moves.counts[RESTING] += len(mine) - len(free)
        return sorted(free, key=lambda bundle: -traffic[bundle])

    def unload(self, bundle: int, why: str) -> bool:
        """Decide to unload the bundle unless a hard rule refuses it. Returns True if it did."""
        rule = self.moves.refusal(bundle, None)
        if rule is not None:
            self.moves.counts[rule] += 1
            return False
        self.moves.make(bundle, None, f"{Cause.OVERLOADED}: {why}", Stage.OVERLOAD)
        return True

    def unload_bytes(self, row: int, wanted_bytes_s: float, why: str) -> None:
        """Unload the largest bundles of a broker until they add up to `wanted_bytes_s`, but at least one."""
        if not self.may_give(row):
            return
        bytes_s, going, chosen = self.model.bundles.throughput_bytes_s, 0.0, False
        for bundle in self.largest(row, bytes_s):
            if chosen and going >= wanted_bytes_s:
                break
            if self.unload(bundle, f"{why}; {going / 1e6:.3g} of {wanted_bytes_s / 1e6:.3g} MB/s so far"):
                chosen, going = True, going + float(bytes_s[bundle])

    def decision(self, skipped: Cause, why: str, averages: Averages | None = None) -> Decision:
        """The decision; `skipped` and `why` apply if nothing moves."""
        made = self.moves.made
        outcome = Outcome(cause=skipped)
        if made:
            outcome, why = Outcome(Label.SUCCESS, Cause.OVERLOADED), f"{len(made)} bundles are unloaded"
        memory = msgspec.structs.replace(
            self.memory,
            bundles_ms={**self.memory.bundles_ms, **{str(each.bundle): self.model.at_ms for each in made}},
            averages=self.memory.averages if averages is None else averages,
            outcome=outcome,
        )
        self.moves.counts += type(self.moves.counts)()  # drops rules that refused nothing
        return self.moves.decision(f"{outcome}: {why}", tuple(self.refused), memory)


_BELOW_PART = 0.5
"""If others are far below the mean, the fullest broker gives this fraction of the threshold, of its throughput."""


class Threshold:
    """Strategy `threshold`: Pulsar's ThresholdShedder, the default of its modular load manager.

    A broker whose average usage is more than `Tuning.threshold_percent` points above the mean unloads its largest
    bundles. The average has a long memory (`Tuning.history`): a broker that was just relieved still looks overloaded
    for many rounds.
    """

    name = "threshold"

    def __init__(self, tuning: Tuning = AS_IN_PULSAR) -> None:
        self._tuning = tuning

    def decide(self, model: ClusterModel, settings: Settings, memory: object = None) -> Decision:
        """See `Strategy`; `memory` is a SheddingMemory."""
        round_ = Shedding(model, settings, memory)
        averages = folded(round_.memory.averages, model, settings, self._tuning.history)
        if not round_.rows:
            return round_.decision(Cause.NO_BROKERS, "no broker takes part", averages)
        usage, _ = columns(averages, model.brokers.ids)
        mean = sum(float(usage[row]) for row in round_.rows) / len(round_.rows)
        limit = mean + self._tuning.threshold_percent / 100
        if mean == 0:
            return round_.decision(Cause.BALANCED, "no broker has any load", averages)
        for row in round_.rows:
            if usage[row] >= limit:
                _shed(
                    round_,
                    self._tuning,
                    row,
                    float(usage[row]) - limit + MARGIN,
                    f"usage {usage[row]:.1%} on average, {limit:.1%} may be",
                )
        if not round_.moves.made and self._tuning.lower_boundary:
            _fill_the_low(round_, self._tuning, usage, mean)
        highest = max(float(usage[row]) for row in round_.rows)
        cause = Cause.NO_BUNDLES if round_.refused or highest >= limit else Cause.BALANCED
        return round_.decision(cause, f"highest average usage {highest:.1%}, {limit:.1%} may be", averages)


def _shed(round_: Shedding, tuning: Tuning, row: int, part: float, why: str) -> None:
    """Unload this fraction of the broker's throughput, if that is enough to be worth it."""
    wanted = float(round_.model.brokers.throughput_bytes_s[row]) * part
    least = tuning.min_throughput_bytes_s
    if wanted < least:
        detail = f"{wanted / 1e6:.3g} MB/s would go, {least / 1e6:.3g} MB/s is the least that is worth it"
        round_.refused.append(Refused(round_.name(row), Cause.NO_BUNDLES, detail))
        return
    round_.unload_bytes(row, wanted, why)


def _fill_the_low(round_: Shedding, tuning: Tuning, usage: Floats, mean: float) -> None:
    """If a broker is far below the mean, the fullest one with more than one bundle gives something."""
    threshold = tuning.threshold_percent / 100
    low = [row for row in round_.rows if usage[row] < mean - threshold]
    givers = [r for r in round_.rows if usage[r] > mean - threshold and round_.model.brokers.bundles[r] > 1]
    if low and givers:
        why = f"{round_.name(low[0])} has {usage[low[0]]:.1%}, the mean is {mean:.1%}"
        _shed(round_, tuning, max(givers, key=lambda row: float(usage[row])), threshold * _BELOW_PART, why)


class Overload:
    """Strategy `overload`: Pulsar's OverloadShedder. A broker above a fixed usage unloads its largest bundles.

    It ignores the other brokers: if all are full, all unload.
    """

    name = "overload"

    def decide(self, model: ClusterModel, settings: Settings, memory: object = None) -> Decision:
        """See `Strategy`; `memory` is a SheddingMemory."""
        round_ = Shedding(model, settings, memory)
        if not round_.rows:
            return round_.decision(Cause.NO_BROKERS, "no broker takes part")
        limit, usage = settings.overloaded_percent / 100, round_.moves.usage
        full = [row for row in round_.rows if usage[row] >= limit]
        for row in full:
            wanted = float(model.brokers.throughput_bytes_s[row]) * (float(usage[row]) - limit + MARGIN)
            round_.unload_bytes(row, wanted, f"usage {usage[row]:.1%}, the limit is {limit:.1%}")
        highest = max(float(usage[row]) for row in round_.rows)
        cause = Cause.NO_BUNDLES if full else Cause.BALANCED
        return round_.decision(cause, f"highest usage {highest:.1%}, the limit is {limit:.1%}")


_SLACK = 1000
"""By how much, in messages/s or bytes/s, a bundle may exceed the rest to be moved."""


class Extremes(msgspec.Struct, frozen=True):
    """The broker with the highest rate, that rate, and the lowest rate of any broker (1 for 0)."""

    row: int
    most: float
    least: float
    unit: str

    def wanted(self, fraction: float) -> int:
        return int((self.most - self.least) * fraction)


class Uniform:
    """Strategy `uniform`: Pulsar's UniformLoadShedder. The broker with the most messages, or bytes, unloads some.

    It compares rates, not resources, which overloads the small ones of unequal machines. It takes one broker in each
    round, and bytes only if messages are even enough. The emptiest broker need not get anything.
    """

    name = "uniform"

    def __init__(self, tuning: Tuning = AS_IN_PULSAR) -> None:
        self._tuning = tuning

    def decide(self, model: ClusterModel, settings: Settings, memory: object = None) -> Decision:
        """See `Strategy`; `memory` is a SheddingMemory."""
        round_ = Shedding(model, settings, memory)
        if not round_.rows:
            return round_.decision(Cause.NO_BROKERS, "no broker takes part")
        tuning = self._tuning
        rate = _extremes(round_.rows, model.brokers.rate_msg_s, "messages/s")
        throughput = _extremes(round_.rows, model.brokers.throughput_bytes_s, "bytes/s")
        apart_percent = (rate.most - rate.least) * 100 / rate.least
        factor = throughput.most / throughput.least
        figures = f"messages differ by {apart_percent:.0f} %, bytes by a factor of {factor:.3g}"
        if 0 < tuning.rate_percent < apart_percent:
            _even_out(round_, tuning, rate, model.bundles.rate_msg_s, tuning.unload_min_rate_msg_s)
        elif factor > tuning.throughput_factor:
            _even_out(
                round_, tuning, throughput, model.bundles.throughput_bytes_s, tuning.unload_min_throughput_bytes_s
            )
        else:
            return round_.decision(Cause.BALANCED, figures)
        return round_.decision(Cause.NO_BUNDLES, figures)


def _extremes(rows: list[int], column: Floats, unit: str) -> Extremes:
    values = {row: float(column[row]) for row in rows}
    most = max(rows, key=lambda row: values[row])
    return Extremes(most, values[most], min(values.values()) or 1.0, unit)


def _even_out(round_: Shedding, tuning: Tuning, extremes: Extremes, traffic: Floats, least: float) -> None:
    """Unload a part of the difference; each bundle must fit into the rest of it."""
    remaining = extremes.wanted(tuning.unload_fraction)
    if not round_.may_give(extremes.row):
        return
    if remaining < least:
        detail = f"{remaining} {extremes.unit} would go, {least:g} is the least that is worth it"
        round_.refused.append(Refused(round_.name(extremes.row), Cause.NO_BUNDLES, detail))
        return
    limit = tuning.max_bundles
    why = f"{extremes.most:.0f} {extremes.unit}, the least is {extremes.least:.0f}"
    for bundle in round_.largest(extremes.row, traffic):
        if limit != -1 and len(round_.moves.made) >= limit:
            round_.moves.counts["the most bundles of one round"] += 1
        elif not 0 < traffic[bundle] <= remaining + _SLACK:
            round_.moves.counts["more than is to go" if traffic[bundle] > 0 else "no traffic"] += 1
        elif round_.unload(bundle, f"{why}; {traffic[bundle]:.0f} {extremes.unit} of {remaining}"):
            remaining -= int(traffic[bundle])
