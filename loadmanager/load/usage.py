"""How full a broker is, resource by resource and as one number, and which part of it one bundle makes up. Pure.

A usage is a fraction of the broker's capacity, times the resource's weight: 1.0 is a full broker. CPU is always known.
Bandwidth and message rate enter only where the broker declares a capacity for them: the speed of its network cannot
be read reliably from inside a container or a virtual machine, and a guess would steer every decision. Memory has weight
0 by default: it doesn't fall when a bundle goes.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from loadmanager.host import BundleLoad
from loadmanager.load.model import BrokerLoadData, share

RESOURCES = ("cpu", "memory", "bandwidth in", "bandwidth out", "message rate")
_CAPACITIES = ("cpu", "memory_bytes", "in_rate_bytes_s", "out_rate_bytes_s", "rate_msg_s")
_CPU, _MEMORY, _IN, _OUT, _RATE = range(5)


class Weights(msgspec.Struct, frozen=True):
    """What a resource counts, 1 = fully; 0 leaves it out."""

    cpu: float = 1.0
    memory: float = 0.0
    bandwidth: float = 1.0
    message_rate: float = 1.0


DEFAULT_WEIGHTS = Weights()


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Weighted fractions in the order of RESOURCES, each at least 0; above 1 where a declared capacity is exceeded."""

    parts: tuple[float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0)

    @property
    def peak(self) -> float:
        """The fullest resource: what the broker counts as."""
        return max(self.parts)

    @property
    def dominant(self) -> str:
        """The name of the fullest resource."""
        return RESOURCES[self.parts.index(self.peak)]

    def plus(self, other: Usage) -> Usage:
        a, b = self.parts, other.parts
        return Usage((a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3], a[4] + b[4]))

    def minus(self, other: Usage) -> Usage:
        """What is left; never below 0."""
        a, b = self.parts, other.parts
        rest = (a[0] - b[0], a[1] - b[1], a[2] - b[2], a[3] - b[3], a[4] - b[4])
        return Usage((max(0.0, rest[0]), max(0.0, rest[1]), max(0.0, rest[2]), max(0.0, rest[3]), max(0.0, rest[4])))

    def on(self, source: Mapping[str, float], destination: Mapping[str, float]) -> Usage:
        """The same work as a fraction of another broker's capacity. A resource that only one of them declares stays."""
        parts = [
            part * share(source.get(key, 0.0), destination.get(key, 0.0)) if _both(key, source, destination) else part
            for key, part in zip(_CAPACITIES, self.parts, strict=True)
        ]
        return Usage((parts[_CPU], parts[_MEMORY], parts[_IN], parts[_OUT], parts[_RATE]))


def _both(key: str, source: Mapping[str, float], destination: Mapping[str, float]) -> bool:
    return source.get(key, 0.0) > 0 and destination.get(key, 0.0) > 0


def usage_of(load: BrokerLoadData, weights: Weights = DEFAULT_WEIGHTS) -> Usage:
    """A broker's usage by resource."""
    capacity = load.capacity
    return Usage(
        (
            weights.cpu * max(0.0, load.cpu_percent) / 100,
            weights.memory * max(0.0, load.memory_percent) / 100,
            weights.bandwidth * share(load.in_rate_bytes_s, capacity.get("in_rate_bytes_s", 0.0)),
            weights.bandwidth * share(load.out_rate_bytes_s, capacity.get("out_rate_bytes_s", 0.0)),
            weights.message_rate * share(load.rate_msg_s, capacity.get("rate_msg_s", 0.0)),
        )
    )


def usage(load: BrokerLoadData, weights: Weights = DEFAULT_WEIGHTS) -> float:
    """How full a broker is: the weighted maximum over its resources, 1.0 = full."""
    return usage_of(load, weights).peak


def bundle_usage(
    bundle: BundleLoad, total: BundleLoad, broker: BrokerLoadData, weights: Weights = DEFAULT_WEIGHTS
) -> Usage:
    """The part of its broker's usage that goes when the bundle goes; `total` is the sum over all its bundles.

    CPU: where the service measures it per bundle, that, but never more than the bundle's share of what the broker uses;
    else in proportion to messages, else to bytes. Memory is not expected to fall.
    """
    capacity = broker.capacity
    return Usage(
        (
            weights.cpu * _cpu(bundle, total, broker),
            0.0,
            weights.bandwidth * share(bundle.in_rate_bytes_s, capacity.get("in_rate_bytes_s", 0.0)),
            weights.bandwidth * share(bundle.out_rate_bytes_s, capacity.get("out_rate_bytes_s", 0.0)),
            weights.message_rate * share(bundle.rate_msg_s, capacity.get("rate_msg_s", 0.0)),
        )
    )


def _cpu(bundle: BundleLoad, total: BundleLoad, broker: BrokerLoadData) -> float:
    used = max(0.0, broker.cpu_percent) / 100
    if total.cpu_percent > 0:
        in_proportion = used * share(bundle.cpu_percent, total.cpu_percent)
        cores = broker.capacity.get("cpu", 0.0)
        # Below its proportion where the broker also has work that no bundle causes: that part does not move.
        return min(in_proportion, bundle.cpu_percent / 100 / cores) if cores > 0 else in_proportion
    if total.rate_msg_s > 0:
        return used * share(bundle.rate_msg_s, total.rate_msg_s)
    return used * share(bundle.throughput_bytes_s, total.throughput_bytes_s)
