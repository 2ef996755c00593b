"""The Prometheus metrics of one broker: the node's state at the scrape, its moves, its hooks, its control loop.

docs/metrics.md describes the names; a test compares the two. Units come last in a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from loadmanager.broker.health import orphans
from loadmanager.broker.node import Node
from loadmanager.broker.observations import Observations
from loadmanager.leader.rebalancing.status import balance_metrics
from loadmanager.leader.splitting.owner import splitting_metrics
from loadmanager.model.families import counter, counters, gauge, gauges, histogram, histograms
from loadmanager.model.load import usage, weights_of
from loadmanager.model.registration import VERSION
from statechannel.law.record import Action
from statechannel.law.transitions import State
from statechannel.law.verdict import Reason
from statechannel.ports import Connection
from statechannel.runtime.channel import PUBLISHED, Channel


def observed_metrics(seen: Observations, in_flight_timeout_s: float) -> Iterator[Metric]:
    """Moves as this broker saw them, hooks of its service, turns of its control loop."""
    moves, turns = seen.moves, seen.turns
    yield histograms(
        "move_duration_seconds", "From the start of a move until this broker served", "kind", moves.took.items()
    )
    yield histograms(
        "move_gap_seconds", "Time without a broker that served the moved bundle", "kind", moves.gaps.items()
    )
    yield counter("move_returns", "Planned moves back within ten minutes", moves.returns)
    yield counter("moves_not_followed", "Moves not timed: too many in flight", moves.not_followed)
    yield gauge("move_oldest_seconds", "Time since the oldest move in flight began", moves.oldest_s())
    yield gauge("move_timeout_seconds", "Time after which the leader ends a step of a move", in_flight_timeout_s)
    yield histograms("hook_duration_seconds", "Calls of the service", ("hook", "result"), seen.hooks.items())
    yield histogram("loop_late_seconds", "Lateness of a timer of the control loop", turns.late)
    tracing = seen.tracing
    ends = {end: 0 if tracing is None else getattr(tracing, end) for end in ("exported", "dropped", "failed")}
    yield counters("spans", "Spans for the traces", "result", ends)
    yield gauge("loop_longest_turn_seconds", "Longest turn of the last minute or two", turns.longest_s)
    yield gauge("loop_longest_own_turn_seconds", "Longest turn, excluding CPU wait", turns.longest_own_s)


def channel_timing(channel: Channel, seen: Observations) -> Iterator[Metric]:
    """How far and how late this replica is, and the outcomes of this broker's own records."""
    actions = {action.value: seen.moves.actions[action] for action in Action}
    yield counters("channel_changes", "Accepted records, by all brokers", "action", actions)
    published = {(action.value, end): channel.published[action, end] for action in Action for end in PUBLISHED}
    yield counters("channel_publishes", "Records of this broker", ("action", "result"), published)
    yield histogram(
        "channel_publish_duration_seconds",
        "Time from publishing a record until its verdict is read back",
        channel.publish_durations,
    )
    yield histogram("channel_record_age_seconds", "Age of a record when this broker reads it", seen.moves.record_ages)
    yield gauges("channel_lag_records", "Records not applied yet", "partition", _lags(channel))


def _lags(channel: Channel) -> dict[str, float]:
    """Entries of the log that are not applied; the log's end is as of the last look."""
    next_offset = channel.table.next_offset
    return {str(p): max(0, end - next_offset(p)) for p, end in enumerate(channel.ends)}


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
        yield gauges("build_info", "1, with the release", "version", {VERSION: 1})
        yield gauge("ready", "1 while an incarnation is registered and acts", node.ready.is_set())
        if node.incarnation is not None:
            for part in (_channel, _snapshots, _ownership, _proofs, _lookups, _members, _load, _loads, _settings):
                yield from part(node)
            yield from observed_metrics(node.seen, node.settings.in_flight_timeout_s)
            yield from channel_timing(node.channel, node.seen)
            yield from balance_metrics(node.current.rebalancer, node.world.clock_s())
            locked = sum(bool(policy.quarantined) for policy in node.policies.current().bundles.values())
            suspects = sum(1 for _ in node.quarantine.rows())
            yield from splitting_metrics(node.current.splitting.journal, suspects, locked)


def _channel(node: Node) -> Iterator[Metric]:
    channel, table = node.channel, node.channel.table
    counts = channel.counts
    records = {(outcome, ""): counts[outcome] for outcome in ("accepted", "skipped")}
    records |= {("refused", reason.value): counts[f"refused {reason}"] for reason in Reason}
    yield counters("channel_records", "Log entries replayed", ("outcome", "reason"), records)
    yield counter("channel_append_failures", "Appends that the log did not take", counts["append_failed"])
    yield gauge("channel_publishes_in_flight", "Publishes waiting for their verdict", channel.in_flight)
    yield gauge("channel_write_version", "Format in which this broker writes", channel.write_version)
    partitions = range(table.partitions)
    yield _by_partition("channel_next_offset", "All below it is applied", partitions, table.next_offset)
    yield _by_partition("channel_epoch", "The leader's epoch", partitions, lambda p: table.lead(p).epoch)


def _snapshots(node: Node) -> Iterator[Metric]:
    """Metrics of the channel's partitions that this broker owns; a partition that no broker shows has no owner."""
    owner, now_ms = node.current.channel_owner, node.world.wall_ms()
    keepers, counts = owner.keepers, owner.counts
    newest = {p: keeper.good[-1] for p, keeper in keepers.items() if keeper.good}
    next_offset = node.channel.table.next_offset
    reports_ms = {
        load.broker.name: load.sampled_ms - appended_ms
        for load, appended_ms in node.views.brokers.appended()
        if node.membership.peer(load.broker) is not None
    }
    offset_s = node.time.offset_ms(reports_ms) / 1000
    yield gauge("clock_offset_seconds", "This clock minus the median of live brokers", offset_s)
    yield gauge(
        "channel_owned_partitions", "Channel partitions whose snapshots this broker writes", len(owner.leases.held)
    )
    yield _by_partition("channel_log_begin", "All below it is trimmed", keepers, lambda p: keepers[p].begin)
    yield _by_partition("snapshots_kept", "Readable snapshots", keepers, lambda p: len(keepers[p].good))
    yield _by_partition(
        "snapshot_age_seconds",
        "Age of the newest snapshot",
        newest,
        lambda p: max(0.0, (now_ms - newest[p].at_ms) / 1000),
    )
    yield _by_partition("snapshot_size_bytes", "Size of the newest snapshot", newest, lambda p: newest[p].size_bytes)
    yield _by_partition(
        "snapshot_lag_records",
        "Records since the newest snapshot",
        newest,
        lambda p: max(0, next_offset(p) - newest[p].next_offset),
    )
    yield counter("snapshots_written", "Snapshots written and read back, in this incarnation", counts.written)
    yield counter("snapshot_failures", "Attempts to write, read or trim that failed", counts.failed)
    yield gauge("snapshot_duration_seconds", "Time to write and read back the last snapshot", counts.seconds)
    yield gauge("snapshot_longest_pause_seconds", "Longest pause of the loop for a snapshot", counts.longest_step_s)


def _ownership(node: Node) -> Iterator[Metric]:
    table, me = node.channel.table, node.current.me
    owned = {state: 0 for state in State if state is not State.UNASSIGNED}
    for flight in table.flights():
        if flight.holder == me:
            owned[flight.state] += table.count_on(flight)
    owned[State.ASSIGNED] = table.count_held_by(me) - sum(owned.values())  # without walking all bundles
    yield gauges("owned_bundles", "Bundles held by this broker", "state", {s.value: n for s, n in owned.items()})
    served = len(node.serving.claims()) if node.serving is not None else 0
    yield gauge("served_bundles", "Bundles acquired by the service of this broker", served)
    states = table.count_by_state()
    yield gauges("bundles", "Bundles of the whole cluster", "state", {s.value: n for s, n in states.items()})
    yield gauge("bundles_orphaned", "Bundles held by brokers that are not live", sum(orphans(node).values()))
    yield gauge("namespaces", "Namespaces of the whole cluster", len(table.namespaces()))
    yield gauge("incarnation", "The number of this start", me.incarnation)
    yield gauge("draining", "1 while this broker takes no bundles", node.registration.draining)


def _proofs(node: Node) -> Iterator[Metric]:
    until_s = node.serving.until_s() if node.serving is not None else []
    now_s, validity_s = node.proof_clock.now_s(), node.settings.proof_validity_s
    left = {str(p): max(0.0, each - now_s) for p, each in enumerate(until_s)}
    yield gauges("proof_remaining_seconds", "Seconds until serving must stop", "partition", left)
    ages = {str(p): now_s - (each - validity_s) for p, each in enumerate(until_s)}
    yield gauges("proof_age_seconds", "Since the newest proof was asked for", "partition", ages)
    yield gauge("proof_validity_seconds", "How long a proof counts", validity_s)
    lapses = node.current.prover.lapses
    yield counter("proof_lapses", "Proofs that ran out before the next one came, in this incarnation", lapses)


def _lookups(node: Node) -> Iterator[Metric]:
    lookup = node.current.lookup
    counts = lookup.counts
    outcomes = {"not_found": counts.not_found, "unavailable": counts.unavailable}
    outcomes["answered"] = counts.answered + counts.at_once
    yield counters("lookups", "Lookups, since this incarnation began", "outcome", outcomes)
    yield counter("lookups_deferred", "Lookups that had to wait, with any outcome", counts.deferred)
    yield gauge("lookups_waiting", "Lookups waiting now", counts.waiting)
    yield histogram("lookup_wait_seconds", "Time that deferred lookups waited", lookup.waited)


def _members(node: Node) -> Iterator[Metric]:
    membership, leadership = node.membership, node.world.coordination.leadership
    peers = membership.peers.values()
    yield gauge("members", "Registered brokers", len(peers))
    yield gauge("members_draining", "Of these, how many take no bundles", sum(p.registration.draining for p in peers))
    yield gauge("members_suspected", "Incarnations thought dead by evidence", len(membership.suspected))
    yield gauge("members_behind", "Of these, how many cannot read the log", sum(p.registration.behind for p in peers))
    yield gauge("members_unfit", "Of these, how many could not acquire several bundles", len(node.fitness.unfit()))
    connected = node.world.coordination.connection is Connection.CONNECTED
    yield gauge("coordination_connected", "1 while the coordination service answers", connected)
    counts = node.world.coordination.counts
    yield counter("coordination_reads", "Requests to follow members, leader and leases", counts.reads)
    yield counter("coordination_changes", "Changes of members, leader and leases that were read", counts.changes)
    safe = membership.safe_mode(node.world.clock_s()) is not None
    yield gauge("safe_mode", "1 while nothing may be concluded from absence", safe)
    yield gauge("leader", "1 at the broker that leads, its barrier taken", node.current.leader.leading is not None)
    yield gauge(
        "leader_epoch", "Epoch of the leader as last seen, 0 if there is none", leadership.epoch if leadership else 0
    )


_LOAD = {
    "load_cpu_percent": ("CPU of what this process may use", "cpu_percent"),
    "load_memory_percent": ("Memory of what this process may use", "memory_percent"),
    "load_in_bytes_per_second": ("Into the service", "in_rate_bytes_s"),
    "load_out_bytes_per_second": ("Out of the service", "out_rate_bytes_s"),
    "load_in_messages_per_second": ("Into the service", "in_rate_msg_s"),
    "load_out_messages_per_second": ("Out of the service", "out_rate_msg_s"),
    "load_disk_read_bytes_per_second": ("By this process", "io.disk_read_bytes_s"),
    "load_disk_write_bytes_per_second": ("By this process", "io.disk_write_bytes_s"),
    "load_network_in_bytes_per_second": ("Into the container, or else the host", "io.network_in_bytes_s"),
    "load_network_out_bytes_per_second": ("Out of the container, or else the host", "io.network_out_bytes_s"),
    "load_keys": ("Keys of the service", "keys"),
    "load_sessions": ("Sessions of the service", "sessions"),
}


def _load(node: Node) -> Iterator[Metric]:
    """This broker's last load report, as the others see it; nothing before the first one."""
    load = node.views.brokers.get(node.settings.advertised)
    if load is None or load.broker != node.current.me:
        return
    for name, (help_text, field) in _LOAD.items():
        yield gauge(name, help_text, attrgetter(field)(load))
    yield gauge(
        "load_usage_ratio", "Usage of the most used resource; 1 is full", usage(load, weights_of(node.settings))
    )
    age_s = max(0.0, (node.world.wall_ms() - load.sampled_ms) / 1000)
    yield gauge("load_age_seconds", "Since this report was sampled", age_s)


def _loads(node: Node) -> Iterator[Metric]:
    """The load data of all members, as this broker has read it, and why its own could not be sent."""
    views, now_ms = node.views.brokers, node.world.wall_ms()
    loads = [views.get(name) for name in node.membership.peers]
    ages = [(now_ms - load.sampled_ms) / 1000 for load in loads if load is not None]
    yield gauge(
        "load_oldest_age_seconds", "Age of the oldest report of a member", max(0.0, *ages) if ages else float("nan")
    )
    yield gauge("members_without_load", "Members without a valid load report", len(loads) - len(ages))
    failed = {"host": node.current.load.host_failures, "publish": node.current.load.publish_failures}
    yield counters("load_report_failures", "Reports without the service's answer, or not sent", "what", failed)


def _settings(node: Node) -> Iterator[Metric]:
    live = node.live
    revision = "Offset of the last change of the cluster's settings that was read; -1 before the first"
    yield gauge("settings_revision", revision, live.revision)
    yield gauge("settings_left_out", "The cluster's settings that do not hold at this broker", len(live.ignored))
    skipped = "Entries of the settings topic that this release cannot read"
    yield counter("settings_skipped", skipped, live.skipped)
    yield counter("audit_entries_lost", "Entries that the audit log did not take", node.audit.lost)


def _by_partition(name: str, help_text: str, partitions: Iterable[int], value: Callable[[int], float]) -> Metric:
    return gauges(name, help_text, "partition", {str(p): value(p) for p in partitions})
