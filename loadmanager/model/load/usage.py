"""Computes what brokers and bundles use of each resource, in natural units, and how full a broker is. Pure.

Loads are rows in the order of RESOURCES: cores, bytes of memory, bytes/s in and out, messages/s. A usage is load /
capacity times the resource's weight: 1.0 is a full broker. CPU always counts. Another resource counts only if the
broker declares a capacity for it: a network's speed cannot be read reliably inside a container or virtual machine, and
a guess would distort every decision. Memory is measured, but has weight 0 by default: it does not fall when a bundle
goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import msgspec

from loadmanager.model.host import BundleLoad
from loadmanager.model.load.model import BrokerLoadData, part_of
from loadmanager.settings import Settings

RESOURCES = ("cpu", "memory", "bandwidth in", "bandwidth out", "message rate")
CAPACITIES = ("cpu", "memory_bytes", "in_rate_bytes_s", "out_rate_bytes_s", "rate_msg_s")
"""The names under which brokers declare capacities, in the order of RESOURCES."""

Row = tuple[float, float, float, float, float]


class Weights(msgspec.Struct, frozen=True):
    """The weights of the resources, 1 = fully; 0 leaves one out."""

    cpu: float = 1.0
    memory: float = 0.0
    bandwidth: float = 1.0
    message_rate: float = 1.0

    @property
    def row(self) -> Row:
        """In the order of RESOURCES."""
        return (self.cpu, self.memory, self.bandwidth, self.bandwidth, self.message_rate)


DEFAULT_WEIGHTS = Weights()


def weights_of(settings: Settings) -> Weights:
    """The settings `weight_*`."""
    return Weights(settings.weight_cpu, settings.weight_memory, settings.weight_bandwidth, settings.weight_message_rate)


def capacity_row(capacity: Mapping[str, float]) -> Row:
    """A broker's capacities; infinite if not declared, but one core if CPU is not."""
    cpu, memory, in_bytes, out_bytes, messages = map(capacity.get, CAPACITIES)
    return (
        cpu if cpu and cpu > 0 else 1.0,
        memory if memory and memory > 0 else inf,
        in_bytes if in_bytes and in_bytes > 0 else inf,
        out_bytes if out_bytes and out_bytes > 0 else inf,
        messages if messages and messages > 0 else inf,
    )


def broker_row(load: BrokerLoadData) -> Row:
    """A broker's load."""
    return _used(load, capacity_row(load.capacity))


def _used(load: BrokerLoadData, capacity: Row) -> Row:
    """A broker's load; `capacity` is as the broker declares it."""
    return (
        max(0.0, load.cpu_percent) / 100 * capacity[0],
        0.0 if capacity[1] == inf else max(0.0, load.memory_percent) / 100 * capacity[1],
        load.in_rate_bytes_s,
        load.out_rate_bytes_s,
        load.rate_msg_s,
    )


def bundle_row(bundle: BundleLoad, total: BundleLoad, broker: BrokerLoadData) -> Row:
    """The load that leaves with the bundle, but no memory; `total` is the sum over all bundles of its broker."""
    said = broker.capacity.get("cpu", 0.0)
    cores = said if said > 0 else 1.0  # as in `capacity_row`
    cpu_percent = part_of(bundle, total, broker.cpu_percent, said)
    return (cpu_percent / 100 * cores, 0.0, bundle.in_rate_bytes_s, bundle.out_rate_bytes_s, bundle.rate_msg_s)


def usages(load: BrokerLoadData, weights: Weights = DEFAULT_WEIGHTS, laid_down: Mapping[str, float] = {}) -> Row:
    """How full a broker is, by resource; capacities in `laid_down` override what it declares."""
    said = capacity_row(load.capacity)
    cpu, memory, in_bytes, out_bytes, messages = _used(load, said)
    has_cpu, has_memory, has_in, has_out, has_messages = (
        capacity_row({**load.capacity, **laid_down}) if laid_down else said
    )
    return (  # written out: a loop takes five times as long, and 1,000 brokers are one turn of the control loop
        weights.cpu * cpu / has_cpu,
        weights.memory * memory / has_memory,
        weights.bandwidth * in_bytes / has_in,
        weights.bandwidth * out_bytes / has_out,
        weights.message_rate * messages / has_messages,
    )


def usage(load: BrokerLoadData, weights: Weights = DEFAULT_WEIGHTS, laid_down: Mapping[str, float] = {}) -> float:
    """How full a broker is: the weighted maximum over its resources, 1.0 = full."""
    return max(usages(load, weights, laid_down))
