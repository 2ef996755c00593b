"""Strategy `overload`: Pulsar's OverloadShedder. A broker above a fixed usage unloads its largest bundles.

It ignores the other brokers: if all are full, all unload. Chooses no destination.
"""

from __future__ import annotations

from loadmanager.model.cluster import ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision
from loadmanager.strategies.rebalancing.pulsar.outcome import Cause
from loadmanager.strategies.rebalancing.pulsar.shedding import MARGIN, Shedding


class Overload:
    """Pulsar's OverloadShedder."""

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
