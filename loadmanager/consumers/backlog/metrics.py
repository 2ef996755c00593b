"""Prometheus metrics of backlogs, named as RocketMQ's. Pure; docs/metrics.md lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import Metric

from loadmanager.consumers.backlog.figures import Backlog, Figure, GroupBacklog
from loadmanager.model.families import gauges

Rows = list[tuple[tuple[str, ...], Backlog]]


def backlog_metrics(groups: Iterable[GroupBacklog], now_ms: int, *, by_partition: bool = False) -> Iterator[Metric]:
    """Gauges by consumer group and topic; with `by_partition` one of each for every queue, which can be very many.

    Unknown figures have no sample: a plain Kafka group shows neither in-flight nor ready messages.
    """
    labels = ("consumer_group", "topic", "partition") if by_partition else ("consumer_group", "topic")
    rows: Rows = [row for group in groups for row in _rows(group, now_ms, by_partition)]

    def made(name: str, help_text: str, value: Callable[[Backlog], float | None]) -> Metric:
        values = {key: found for key, backlog in rows if (found := value(backlog)) is not None}
        return gauges(name, help_text, labels, values)

    lag, ready = "consumer_lag", "consumer_queueing"
    yield made(f"{lag}_messages", "Not consumed", lambda row: _messages(row.lag))
    yield made(f"{lag}_latency_seconds", "Age of the oldest that is not consumed", lambda row: _age(row.lag))
    yield made("consumer_inflight_messages", "Pulled and not consumed", lambda row: _messages(row.in_flight))
    yield made(f"{ready}_latency_seconds", "Age of the oldest that is not pulled", lambda row: _age(row.available))
    yield made("consumer_ready_messages", "Not pulled", lambda row: _messages(row.available))
    yield made("consumer_deleted_messages", "Deleted before they were consumed", lambda row: row.deleted)
    yield made(
        "consumer_uncommitted_queues",
        "Without a consumer offset; wait from their begin on",
        lambda row: row.uncommitted,
    )
    yield made("consumer_unknown_queues", "Without a known end; left out of all counts", lambda row: row.unknown)


def _rows(group: GroupBacklog, now_ms: int, by_partition: bool) -> Iterator[tuple[tuple[str, ...], Backlog]]:
    for topic in group.topics:
        if not by_partition:
            yield (group.group, topic), group.of_topic(topic, now_ms)
            continue
        for queue, backlog in group.of_queues(topic, now_ms):
            yield (group.group, topic, str(queue)), backlog


def _messages(figure: Figure | None) -> int | None:
    return None if figure is None else figure.messages


def _age(figure: Figure | None) -> float | None:
    return None if figure is None else figure.latency_s
