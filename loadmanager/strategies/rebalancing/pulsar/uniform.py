"""Strategy `uniform`: Pulsar's UniformLoadShedder. The broker with the most messages, or bytes, unloads some of them.

It compares rates, not resources, which overloads the small ones of unequal machines. It takes one broker in each round,
and bytes only if messages are even enough. Chooses no destination, so the emptiest broker need not get anything.
"""

from __future__ import annotations

import msgspec

from loadmanager.model.cluster import ClusterModel, Floats
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision, Refused
from loadmanager.strategies.rebalancing.pulsar.outcome import Cause
from loadmanager.strategies.rebalancing.pulsar.shedding import Shedding

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
    """Pulsar's UniformLoadShedder."""

    name = "uniform"

    def decide(self, model: ClusterModel, settings: Settings, memory: object = None) -> Decision:
        """See `Strategy`; `memory` is a SheddingMemory."""
        round_ = Shedding(model, settings, memory)
        if not round_.rows:
            return round_.decision(Cause.NO_BROKERS, "no broker takes part")
        rate = _extremes(round_.rows, model.brokers.rate_msg_s, "messages/s")
        throughput = _extremes(round_.rows, model.brokers.throughput_bytes_s, "bytes/s")
        apart_percent = (rate.most - rate.least) * 100 / rate.least
        factor = throughput.most / throughput.least
        figures = f"messages differ by {apart_percent:.0f} %, bytes by a factor of {factor:.3g}"
        if 0 < settings.uniform_rate_percent < apart_percent:
            _even_out(round_, rate, model.bundles.rate_msg_s, settings.unload_min_rate_msg_s)
        elif factor > settings.uniform_throughput_factor:
            _even_out(round_, throughput, model.bundles.throughput_bytes_s, settings.unload_min_throughput_bytes_s)
        else:
            return round_.decision(Cause.BALANCED, figures)
        return round_.decision(Cause.NO_BUNDLES, figures)


def _extremes(rows: list[int], column: Floats, unit: str) -> Extremes:
    values = {row: float(column[row]) for row in rows}
    most = max(rows, key=lambda row: values[row])
    return Extremes(most, values[most], min(values.values()) or 1.0, unit)


def _even_out(round_: Shedding, extremes: Extremes, traffic: Floats, least: float) -> None:
    """Unload a part of the difference; each bundle must fit into the rest of it."""
    remaining = extremes.wanted(round_.settings.unload_max_fraction)
    if not round_.may_give(extremes.row):
        return
    if remaining < least:
        detail = f"{remaining} {extremes.unit} would go, {least:g} is the least that is worth it"
        round_.refused.append(Refused(round_.name(extremes.row), Cause.NO_BUNDLES, detail))
        return
    limit = round_.settings.unload_max_bundles
    why = f"{extremes.most:.0f} {extremes.unit}, the least is {extremes.least:.0f}"
    for bundle in round_.largest(extremes.row, traffic):
        if limit != -1 and len(round_.moves.made) >= limit:
            round_.moves.counts["unload_max_bundles"] += 1
        elif not 0 < traffic[bundle] <= remaining + _SLACK:
            round_.moves.counts["more than is to go" if traffic[bundle] > 0 else "no traffic"] += 1
        elif round_.unload(bundle, f"{why}; {traffic[bundle]:.0f} {extremes.unit} of {remaining}"):
            remaining -= int(traffic[bundle])
