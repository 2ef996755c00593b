"""The Prometheus metrics of one broker: the node's state at the moment of the scrape. Counts nothing itself.

docs/metrics.md describes the names; a test compares the two. Units come last in a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from loadmanager.broker.node import Node
from loadmanager.leader.rebalancing.metrics import balance_metrics
from loadmanager.leader.splitting.metrics import splitting_metrics
from loadmanager.model.registration import VERSION
from statechannel.law.transitions import State
from statechannel.ports import Connection

PREFIX = "loadmanager_"


class NodeMetrics:
    """The metrics of one node, in a registry of its own, so that several brokers of one process do not collide."""

    def __init__(self, node: Node) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(NodeCollector(node))
        ProcessCollector(registry=self._registry)

    async def scraped(self) -> Scrape:
        """The metrics at this moment. Call it on the loop that runs the node; any thread may render the result."""
        return Scrape(tuple(self._registry.collect()))


class Scrape(Collector):
    """The metrics of a registry at one moment."""

    def __init__(self, metrics: tuple[Metric, ...]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """The metrics as they were read."""
        return self._metrics

    def and_also(self, more: Iterable[Metric]) -> Scrape:
        """This scrape with more metrics."""
        return Scrape((*self._metrics, *more))


class NodeCollector(Collector):
    """Reads one node; scrape on the loop that runs it."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def describe(self) -> Iterable[Metric]:
        """Nothing, since the metrics depend on the node's state."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """All metrics; before the channel has been read, only that the broker is not ready."""
        node = self._node
        yield _labelled("build_info", "1, with the release", ("version",), {(VERSION,): 1})
        yield _gauge("ready", "1 while an incarnation is registered and acts", node.ready.is_set())
        if node.incarnation is not None:
            for part in (_channel, _snapshots, _ownership, _proofs, _lookups, _members, _load, _settings):
                yield from part(node)
            yield from balance_metrics(node.current.rebalancer, node.world.clock_s())
            yield from splitting_metrics(node.current.splitting.journal, node.quarantine)


def _channel(node: Node) -> Iterator[Metric]:
    channel, table = node.channel, node.channel.table
    counts = channel.counts
    records = CounterMetricFamily(PREFIX + "channel_records", "Log entries replayed", labels=("outcome", "reason"))
    records.add_metric(("accepted", ""), counts["accepted"])
    records.add_metric(("skipped", ""), counts["skipped"])
    for key, count in sorted(counts.items()):
        if key.startswith("refused "):
            records.add_metric(("refused", key.removeprefix("refused ")), count)
    yield records
    yield _counter("channel_append_failures", "Appends that the log did not take", counts["append_failed"])
    yield _gauge("channel_publishes_in_flight", "Publishes that wait for their verdict", channel.in_flight)
    yield _gauge("channel_write_version", "Format in which this broker writes", channel.write_version)
    yield _gauge(
        "channel_stopped", "1 if a record of a newer format stopped the replica", channel.stopped_by is not None
    )
    partitions = range(table.partitions)
    yield _by_partition("channel_next_offset", "All below it is applied", partitions, table.next_offset)
    yield _by_partition("channel_epoch", "The leader's epoch", partitions, lambda p: table.lead(p).epoch)


def _snapshots(node: Node) -> Iterator[Metric]:
    """Metrics of the channel's partitions that this broker owns; a partition that no broker shows has no owner."""
    owner, now_ms = node.current.channel_owner, node.world.wall_ms()
    keepers, counts = owner.keepers, owner.counts
    newest = {p: keeper.good[-1] for p, keeper in keepers.items() if keeper.good}
    next_offset = node.channel.table.next_offset
    yield _gauge("channel_owned_partitions", "Whose snapshots this broker writes", len(owner.leases.held))
    yield _by_partition("channel_log_begin", "All below it is trimmed", keepers, lambda p: keepers[p].begin)
    yield _by_partition("snapshots_kept", "Readable snapshots", keepers, lambda p: len(keepers[p].good))
    yield _by_partition(
        "snapshot_age_seconds", "Of the newest", newest, lambda p: max(0.0, (now_ms - newest[p].at_ms) / 1000)
    )
    yield _by_partition("snapshot_size_bytes", "Of the newest", newest, lambda p: newest[p].size_bytes)
    yield _by_partition(
        "snapshot_lag_records", "Written since", newest, lambda p: max(0, next_offset(p) - newest[p].next_offset)
    )
    yield _counter("snapshots_written", "And read back, since this incarnation began", counts.written)
    yield _counter("snapshot_failures", "Attempts to write, read or trim that failed", counts.failed)
    yield _gauge("snapshot_duration_seconds", "Of writing and reading back the last one", counts.seconds)
    yield _gauge("snapshot_longest_pause_seconds", "That a snapshot made the loop wait", counts.longest_step_s)


def _ownership(node: Node) -> Iterator[Metric]:
    table, me = node.channel.table, node.current.me
    owned = {state: 0 for state in State if state is not State.UNASSIGNED}
    for entry in table.in_flight():
        if entry.holder == me:
            owned[entry.state] += 1
    owned[State.ASSIGNED] = table.count_held_by(me) - sum(owned.values())  # without walking all bundles
    yield _labelled("owned_bundles", "Held by this broker", ("state",), {(s.value,): n for s, n in owned.items()})
    served = len(node.serving.claims()) if node.serving is not None else 0
    yield _gauge("served_bundles", "Acquired by the service of this broker", served)
    states = table.count_by_state()
    yield _labelled("bundles", "Of the whole cluster", ("state",), {(s.value,): n for s, n in states.items()})
    yield _gauge("namespaces", "Of the whole cluster", len(table.namespaces()))
    yield _gauge("incarnation", "The number of this start", me.incarnation)
    yield _gauge("draining", "1 while this broker takes no bundles", node.registration.draining)


def _proofs(node: Node) -> Iterator[Metric]:
    until_s = node.serving.until_s() if node.serving is not None else []
    now_s = node.proof_clock.now_s()
    name = "proof_remaining_seconds"
    yield _by_partition(
        name, "Until what is held is not served", range(len(until_s)), lambda p: _left(until_s[p], now_s)
    )


def _left(until_s: float, now_s: float) -> float:
    return max(0.0, until_s - now_s)


def _lookups(node: Node) -> Iterator[Metric]:
    counts = node.current.lookup.counts
    lookups = CounterMetricFamily(PREFIX + "lookups", "Lookups, since this incarnation began", labels=("outcome",))
    lookups.add_metric(("answered",), counts.answered + counts.at_once)
    for outcome in ("not_found", "unavailable"):
        lookups.add_metric((outcome,), getattr(counts, outcome))
    yield lookups
    yield _counter("lookups_deferred", "Lookups that had to wait, whatever became of them", counts.deferred)
    yield _gauge("lookups_waiting", "Lookups that wait at this moment", counts.waiting)


def _members(node: Node) -> Iterator[Metric]:
    membership, leadership = node.membership, node.world.coordination.leadership
    peers = membership.peers.values()
    yield _gauge("members", "Registered brokers", len(peers))
    yield _gauge("members_draining", "Of these, how many take no bundles", sum(p.registration.draining for p in peers))
    yield _gauge("members_suspected", "Incarnations thought dead by evidence", len(membership.suspected))
    connected = node.world.coordination.connection is Connection.CONNECTED
    yield _gauge("coordination_connected", "1 while the coordination service answers", connected)
    counts = node.world.coordination.counts
    yield _counter("coordination_reads", "Requests to follow members, leader and leases", counts.reads)
    yield _counter("coordination_changes", "Of members, leader and leases, as they were read", counts.changes)
    safe = membership.safe_mode(node.world.clock_s()) is not None
    yield _gauge("safe_mode", "1 while nothing may be concluded from absence", safe)
    yield _gauge("leader", "1 at the broker that leads, its barrier taken", node.current.leader.leading is not None)
    yield _gauge(
        "leader_epoch", "Epoch of the leader as last seen, 0 if nobody leads", leadership.epoch if leadership else 0
    )


_LOAD = {
    "load_cpu_percent": ("CPU of what this process may use", "cpu_percent"),
    "load_memory_percent": ("Memory of what this process may use", "memory_percent"),
    "load_in_bytes_per_second": ("Into the service", "in_rate_bytes_s"),
    "load_out_bytes_per_second": ("Out of the service", "out_rate_bytes_s"),
    "load_in_messages_per_second": ("Into the service", "in_rate_msg_s"),
    "load_out_messages_per_second": ("Out of the service", "out_rate_msg_s"),
    "load_keys": ("Keys of the service", "keys"),
    "load_sessions": ("Sessions of the service", "sessions"),
}


def _load(node: Node) -> Iterator[Metric]:
    """This broker's last load report, as the others see it; nothing before the first one."""
    load = node.views.brokers.get(node.settings.advertised)
    if load is None or load.broker != node.current.me:
        return
    for name, (help_text, field) in _LOAD.items():
        yield _gauge(name, help_text, getattr(load, field))
    age_s = max(0.0, (node.world.wall_ms() - load.sampled_ms) / 1000)
    yield _gauge("load_age_seconds", "Since this report was sampled", age_s)


# --- families


def _settings(node: Node) -> Iterator[Metric]:
    live = node.live
    revision = "Offset of the last change of the cluster's settings that was read; -1 before the first"
    yield _gauge("settings_revision", revision, live.revision)
    yield _gauge("settings_left_out", "The cluster's settings that do not hold at this broker", len(live.ignored))
    skipped = "Entries of the settings topic that this release cannot read"
    yield _counter("settings_skipped", skipped, live.skipped)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, help_text, value=float(value))


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, help_text, value=float(value))


def _labelled(name: str, help_text: str, labels: tuple[str, ...], values: dict[tuple[str, ...], float]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, help_text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _by_partition(name: str, help_text: str, partitions: Iterable[int], value: Callable[[int], float]) -> Metric:
    return _labelled(name, help_text, ("partition",), {(str(p),): value(p) for p in partitions})
