"""Strategy `threshold`: Pulsar's ThresholdShedder, the default of its modular load manager.

A broker whose average usage is more than `shedder_threshold_percent` points above the mean unloads its largest bundles.
The average has a long memory (`shedder_history`): a broker that was just relieved still looks overloaded for many
rounds. Chooses no destination.
"""

from __future__ import annotations

from loadmanager.model.cluster import ClusterModel, Floats
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision, Refused
from loadmanager.strategies.rebalancing.pulsar.averages import columns, folded
from loadmanager.strategies.rebalancing.pulsar.outcome import Cause
from loadmanager.strategies.rebalancing.pulsar.shedding import MARGIN, Shedding

_BELOW_PART = 0.5
"""If others are far below the mean, the fullest broker gives this fraction of the threshold, of its throughput."""


class Threshold:
    """Pulsar's ThresholdShedder."""

    name = "threshold"

    def decide(self, model: ClusterModel, settings: Settings, memory: object = None) -> Decision:
        """See `Strategy`; `memory` is a SheddingMemory."""
        round_ = Shedding(model, settings, memory)
        averages = folded(round_.memory.averages, model, settings)
        if not round_.rows:
            return round_.decision(Cause.NO_BROKERS, "no broker takes part", averages)
        usage, _ = columns(averages, model.brokers.ids)
        mean = sum(float(usage[row]) for row in round_.rows) / len(round_.rows)
        limit = mean + settings.shedder_threshold_percent / 100
        if mean == 0:
            return round_.decision(Cause.BALANCED, "no broker has any load", averages)
        for row in round_.rows:
            if usage[row] >= limit:
                _shed(
                    round_,
                    row,
                    float(usage[row]) - limit + MARGIN,
                    f"usage {usage[row]:.1%} on average, {limit:.1%} may be",
                )
        if not round_.moves.made and settings.shedder_lower_boundary:
            _fill_the_low(round_, usage, mean)
        highest = max(float(usage[row]) for row in round_.rows)
        cause = Cause.NO_BUNDLES if round_.refused or highest >= limit else Cause.BALANCED
        return round_.decision(cause, f"highest average usage {highest:.1%}, {limit:.1%} may be", averages)


def _shed(round_: Shedding, row: int, part: float, why: str) -> None:
    """Unload this fraction of the broker's throughput, if that is enough to be worth it."""
    wanted = float(round_.model.brokers.throughput_bytes_s[row]) * part
    least = round_.settings.shedder_min_throughput_bytes_s
    if wanted < least:
        detail = f"{wanted / 1e6:.3g} MB/s would go, {least / 1e6:.3g} MB/s is the least that is worth it"
        round_.refused.append(Refused(round_.name(row), Cause.NO_BUNDLES, detail))
        return
    round_.unload_bytes(row, wanted, why)


def _fill_the_low(round_: Shedding, usage: Floats, mean: float) -> None:
    """If a broker is far below the mean, the fullest one with more than one bundle gives something."""
    threshold = round_.settings.shedder_threshold_percent / 100
    low = [row for row in round_.rows if usage[row] < mean - threshold]
    givers = [r for r in round_.rows if usage[r] > mean - threshold and round_.model.brokers.bundles[r] > 1]
    if low and givers:
        why = f"{round_.name(low[0])} has {usage[low[0]]:.1%}, the mean is {mean:.1%}"
        _shed(round_, max(givers, key=lambda row: float(usage[row])), threshold * _BELOW_PART, why)
