"""The load that brokers publish, and the usage computed from it. Pure.

`BrokerLoadData` is for all, `TopBundlesLoadData` for the leader. Both are values of table views, keyed by the broker's
name. The incarnation inside shows whether they are still about the broker that now has this name. They are JSON, so
that people and Spark can read them; unknown fields are ignored (PIP-192).

Loads are rows in the order of RESOURCES: cores, bytes of memory, bytes/s in and out, messages/s. A usage is load /
capacity times the resource's weight: 1.0 is a full broker. CPU always counts. Another resource counts only if the
broker declares a capacity for it: a network's speed cannot be read reliably inside a container or virtual machine, and
a guess would distort every decision. Memory is measured, but has weight 0 by default: it does not fall when a bundle
goes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from math import inf

import msgspec

from loadmanager.model.host import BundleLoad
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

BROKERS_TOPIC = "load-brokers"
BUNDLES_TOPIC = "load-bundles"


class IoRates(msgspec.Struct, frozen=True, array_like=True):
    """Bytes per second: disks as this process reads and writes them, and the network.

    The network is that of the container or, without one, of the host, less its loopback. Four numbers in reports, which
    every broker reads.
    """

    disk_read_bytes_s: int = 0
    disk_write_bytes_s: int = 0
    network_in_bytes_s: int = 0
    network_out_bytes_s: int = 0


NO_IO = IoRates()


class Figures(msgspec.Struct, frozen=True):
    """One reading of the sensors. Percentages are 0 to 100, of the `cores` and the memory that this process may use."""

    cpu_percent: float
    memory_percent: float
    cores: float
    memory_bytes: int
    host_cpu_percent: float
    host_memory_percent: float
    io: IoRates = NO_IO


class BrokerLoadData(msgspec.Struct, frozen=True, omit_defaults=True):
    """One broker's load. Percentages are 0 to 100 of what the process may use; rates are per second.

    Rates of bytes and messages are those of the service. `io` is measured and shown, but no decision uses it.
    `capacity` always has `cpu` in cores, and what was declared of `memory_bytes`, `in_rate_bytes_s`,
    `out_rate_bytes_s`, `rate_msg_s`. `sampled_ms` is the broker's wall clock.
    """

    broker: BrokerId
    sampled_ms: int
    cpu_percent: float = 0.0
    memory_percent: float = 0.0
    in_rate_bytes_s: float = 0.0
    out_rate_bytes_s: float = 0.0
    in_rate_msg_s: float = 0.0
    out_rate_msg_s: float = 0.0
    bundles: int = 0
    keys: int = 0
    sessions: int = 0
    capacity: Mapping[str, float] = msgspec.field(default_factory=dict)
    host_cpu_percent: float = 0.0
    host_memory_percent: float = 0.0
    io: IoRates = NO_IO

    @property
    def throughput_bytes_s(self) -> float:
        return self.in_rate_bytes_s + self.out_rate_bytes_s

    @property
    def rate_msg_s(self) -> float:
        return self.in_rate_msg_s + self.out_rate_msg_s


class LoadedBundle(msgspec.Struct, frozen=True, array_like=True):
    """A bundle and its load."""

    bundle: Bundle
    load: BundleLoad


class TopBundlesLoadData(msgspec.Struct, frozen=True, omit_defaults=True):
    """A broker's hottest bundles, hottest first, and the sum over all its bundles, to compute shares.

    A bundle's heat is the largest of its shares of the broker's CPU, message rate and bytes; ties go by keys and
    sessions, then by name. So a bundle that is heavy in one respect is not hidden by many that are light in everything.
    Pulsar compares bytes first, in steps of 100 KB/s, and ignores CPU.
    """

    broker: BrokerId
    sampled_ms: int
    bundles: tuple[LoadedBundle, ...] = ()
    total: BundleLoad = msgspec.field(default_factory=BundleLoad)
    count: int = 0
    spread: tuple[Bundle, ...] = ()
    """Children of splits for which the leader should find places; `bundles` has them whether hot or not."""


IDLE = BundleLoad()


def credible(load: BundleLoad) -> BundleLoad:
    """The load, with 0 in place of impossible figures: negative, infinite or not a number."""
    if load is IDLE or all(0 <= value < inf for value in msgspec.structs.astuple(load)[:7]):
        return load
    fixed = [value if 0 <= value < inf else 0 for value in msgspec.structs.astuple(load)[:7]]
    return BundleLoad(*fixed, hottest_keys=load.hottest_keys)


def total_of(loads: Iterable[BundleLoad]) -> BundleLoad:
    """The sum of several bundles' loads, without hottest keys."""
    keys = sessions = 0
    in_msg = out_msg = in_bytes = out_bytes = cpu = 0.0
    for load in loads:
        keys += load.keys
        sessions += load.sessions
        in_msg += load.in_rate_msg_s
        out_msg += load.out_rate_msg_s
        in_bytes += load.in_rate_bytes_s
        out_bytes += load.out_rate_bytes_s
        cpu += load.cpu_percent
    return BundleLoad(keys, sessions, in_msg, out_msg, in_bytes, out_bytes, cpu)


def heat(load: BundleLoad, total: BundleLoad) -> float:
    """A bundle's largest share, 0 to 1, of the total's CPU, message rate and bytes."""
    return max(
        share(load.cpu_percent, total.cpu_percent),
        share(load.rate_msg_s, total.rate_msg_s),
        share(load.throughput_bytes_s, total.throughput_bytes_s),
    )


def part_of(bundle: BundleLoad, total: BundleLoad, cpu_percent: float, cores: float) -> float:
    """A bundle's part of its broker's CPU, in percent as `cpu_percent` is.

    If the service measures CPU per bundle, that figure, but never more than the bundle's share of what the broker uses;
    else in proportion to messages, else to bytes. `total` is the sum over all bundles of the broker.
    """
    used = max(0.0, cpu_percent)
    if total.cpu_percent > 0:
        in_proportion = used * share(bundle.cpu_percent, total.cpu_percent)
        # less than its proportion if the broker also has work that no bundle causes: that part does not move
        return min(in_proportion, bundle.cpu_percent / cores) if cores > 0 else in_proportion
    if total.rate_msg_s > 0:
        return used * share(bundle.rate_msg_s, total.rate_msg_s)
    return used * share(bundle.throughput_bytes_s, total.throughput_bytes_s)


def share(part: float, whole: float) -> float:
    """`part / whole`, 0 if `whole` is 0."""
    return part / whole if whole > 0 else 0.0


def hottest(loads: Mapping[Bundle, BundleLoad], most: int, total: BundleLoad) -> list[Bundle]:
    """The `most` hottest bundles in the order of `TopBundlesLoadData`."""

    def order(item: tuple[Bundle, BundleLoad]) -> tuple[float, int, Bundle]:
        bundle, load = item
        return -heat(load, total), -(load.keys + load.sessions), bundle

    return [bundle for bundle, _ in heapq.nsmallest(most, loads.items(), key=order)]


_broker_decoder = msgspec.json.Decoder(BrokerLoadData)
_bundles_decoder = msgspec.json.Decoder(TopBundlesLoadData)


def decode_broker_load(data: bytes) -> BrokerLoadData:
    """Raises msgspec.MsgspecError if the bytes are no such value."""
    return _broker_decoder.decode(data)


def decode_top_bundles(data: bytes) -> TopBundlesLoadData:
    """Raises msgspec.MsgspecError if the bytes are no such value."""
    return _bundles_decoder.decode(data)


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
