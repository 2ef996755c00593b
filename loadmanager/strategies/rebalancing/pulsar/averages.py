"""The shedders' memory between rounds: moving averages of load, and times of unloads. Values only.

A broker's first sample is its average; then an average keeps the fraction `shedder_history` of itself and takes the
rest from the new sample. Each round is one sample. A restarted broker begins without an average.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from loadmanager.model.cluster import ClusterModel, Floats
from loadmanager.model.load import weights_of
from loadmanager.settings import Settings
from statechannel.law.record import BrokerId

Times = Mapping[str, int]
"""When a broker or bundle was last unloaded, by name: the leader's wall clock, in milliseconds."""


class Average(msgspec.Struct, frozen=True):
    """The averages of one incarnation: its fullest resource as a weighted fraction, and its throughput."""

    usage: float
    throughput_bytes_s: float


Averages = Mapping[str, Average]
"""By incarnation, `host:port#7`."""


def fullest(used: Floats, capacity: Floats, settings: Settings) -> Floats:
    """(n,), the weighted fraction of each broker's fullest resource; 1.0 is a full broker."""
    return (used / capacity * np.array(weights_of(settings).row)).max(axis=1, initial=0.0)


def folded(averages: Averages, model: ClusterModel, settings: Settings) -> Averages:
    """The averages with this round's sample; unchanged without fresh data, dropped for other incarnations."""
    brokers = model.brokers
    usage = fullest(brokers.used, brokers.capacity, settings)
    kept = settings.shedder_history
    result: dict[str, Average] = {}
    for row, broker in enumerate(brokers.ids):
        old = averages.get(str(broker))
        sample = Average(float(usage[row]), float(brokers.throughput_bytes_s[row]))
        if not brokers.known[row]:
            sample = old
        elif old is not None:
            sample = Average(
                kept * old.usage + (1 - kept) * sample.usage,
                kept * old.throughput_bytes_s + (1 - kept) * sample.throughput_bytes_s,
            )
        if sample is not None:
            result[str(broker)] = sample
    return result


def columns(averages: Averages, brokers: Iterable[BrokerId]) -> tuple[Floats, Floats]:
    """(n,) usages and (n,) throughputs in bytes/s; 0 without an average."""
    rows = [averages.get(str(broker), Average(0.0, 0.0)) for broker in brokers]
    return np.array([each.usage for each in rows]), np.array([each.throughput_bytes_s for each in rows])


def younger_than(times: Times, rest_s: float, at_ms: int) -> dict[str, int]:
    """The unloads less than `rest_s` ago. A clock that was set back does not lengthen a rest."""
    return {name: ms for name, ms in times.items() if abs(at_ms - ms) < rest_s * 1000}
