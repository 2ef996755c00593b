"""Prometheus metrics of moves, hooks, the control loop, and of how quickly the channel answers."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from loadmanager.broker.telemetry.observations import Observations
from loadmanager.model.families import counter, counters, gauge, gauges, histogram, histograms
from statechannel.law.record import Action
from statechannel.runtime.channel import PUBLISHED, Channel


def observed_metrics(seen: Observations, in_flight_timeout_s: float) -> Iterator[Metric]:
    """Moves as this broker saw them, hooks of its service, turns of its control loop."""
    moves, turns = seen.moves, seen.turns
    yield histograms("move_duration_seconds", "Until this broker served", "kind", moves.took.items())
    yield histograms("move_gap_seconds", "That nobody served what this broker got", "kind", moves.gaps.items())
    yield counter("move_returns", "Planned moves back within ten minutes", moves.returns)
    yield counter("moves_not_followed", "That were too many to be timed", moves.not_followed)
    yield gauge("move_oldest_seconds", "Since the oldest move under way began", moves.oldest_s())
    yield gauge("move_timeout_seconds", "After which the leader ends a step of a move", in_flight_timeout_s)
    yield histograms("hook_duration_seconds", "Calls of the service", ("hook", "result"), seen.hooks.items())
    yield histogram("loop_late_seconds", "Lateness of a timer of the control loop", turns.late)
    tracing = seen.tracing
    ends = {end: 0 if tracing is None else getattr(tracing, end) for end in ("exported", "dropped", "failed")}
    yield counters("spans", "Spans for the traces", "result", ends)
    yield gauge("loop_longest_turn_seconds", "Longest turn of the last minute or two", turns.longest_s)
    yield gauge("loop_longest_own_turn_seconds", "The same without waits for a processor", turns.longest_own_s)


def channel_timing(channel: Channel, seen: Observations) -> Iterator[Metric]:
    """How far and how late this replica is, and what became of this broker's own records."""
    actions = {action.value: seen.moves.actions[action] for action in Action}
    yield counters("channel_changes", "Accepted records, by all brokers", "action", actions)
    published = {(action.value, end): channel.published[action, end] for action in Action for end in PUBLISHED}
    yield counters("channel_publishes", "Records of this broker", ("action", "result"), published)
    yield histogram("channel_publish_duration_seconds", "Until the verdict is read back", channel.publish_durations)
    yield histogram("channel_record_age_seconds", "When it is read here", seen.moves.record_ages)
    yield gauges("channel_lag_records", "Behind the end of the log", "partition", _lags(channel))


def _lags(channel: Channel) -> dict[str, float]:
    """Entries of the log that are not applied; the log's end is as of the last look."""
    next_offset = channel.table.next_offset
    return {str(p): max(0, end - next_offset(p)) for p, end in enumerate(channel.ends)}
