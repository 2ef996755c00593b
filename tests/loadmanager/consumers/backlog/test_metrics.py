"""The metrics of backlogs: RocketMQ's names under our prefix, and no sample for what is not known."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from loadmanager.consumers.backlog.figures import GroupBacklog, Offsets
from loadmanager.consumers.backlog.metrics import backlog_metrics
from tests.loadmanager.consumers.backlog.queues import NOW_MS

PAGE = Path(__file__).parents[4] / "docs" / "metrics.md"


def a_group(name: str, **queues: list[Offsets]) -> GroupBacklog:
    group = GroupBacklog(name)
    for topic, each in queues.items():
        for number, offsets in enumerate(each):
            group.put(topic, number, offsets)
    return group


class Collected:
    def __init__(self, *groups: GroupBacklog, by_partition: bool = False) -> None:
        self._metrics = list(backlog_metrics(groups, NOW_MS, by_partition=by_partition))

    def collect(self):
        return self._metrics


def lines(*groups: GroupBacklog, by_partition: bool = False) -> list[str]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected(*groups, by_partition=by_partition))
    text = generate_latest(registry).decode()
    return [line.removeprefix("loadmanager_consumer_") for line in text.splitlines() if not line.startswith("#")]


def test_a_topic_has_one_of_each():
    group = a_group("billing", orders=[Offsets(100, 40, 70, 0, NOW_MS - 9_000, NOW_MS - 3_000), Offsets(5, 5, 5)])
    labels = '{consumer_group="billing",topic="orders"}'
    assert lines(group) == [
        f"lag_messages{labels} 60.0",
        f"lag_latency_seconds{labels} 9.0",
        f"inflight_messages{labels} 30.0",
        f"queueing_latency_seconds{labels} 3.0",
        f"ready_messages{labels} 30.0",
        f"deleted_messages{labels} 0.0",
        f"uncommitted_queues{labels} 0.0",
        f"unknown_queues{labels} 0.0",
    ]


def test_a_plain_kafka_group_shows_lag_only():
    shown = lines(a_group("billing", orders=[Offsets(100, 40, begin=50), Offsets(9, None), Offsets(None, 3)]))
    assert [line.partition("{")[0] for line in shown] == [
        *("lag_messages", "deleted_messages", "uncommitted_queues", "unknown_queues"),
    ]
    assert [line.rpartition(" ")[2] for line in shown] == ["50.0", "10.0", "1.0", "1.0"]


def test_partitions_are_shown_only_if_asked_for():
    groups = a_group("a", t=[Offsets(9, 1), Offsets(9, 2)]), a_group("b", t=[Offsets(9, 3)])
    lags = [line for line in lines(*groups, by_partition=True) if line.startswith("lag_messages")]
    assert lags == [
        'lag_messages{consumer_group="a",partition="0",topic="t"} 8.0',
        'lag_messages{consumer_group="a",partition="1",topic="t"} 7.0',
        'lag_messages{consumer_group="b",partition="0",topic="t"} 6.0',
    ]
    assert not [line for line in lines(*groups) if "partition" in line]


def test_the_page_has_every_metric():
    named = set(re.findall(r"^\| `(loadmanager_consumer_\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert named == {metric.name for metric in backlog_metrics([], NOW_MS)}
