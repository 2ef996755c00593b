"""What Prometheus sees of advice at one broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from loadmanager.leader.advice.board import AdviceBoard
from loadmanager.leader.advice.counts import AdviceCounts
from loadmanager.leader.advice.model import State

PREFIX = "loadmanager_"


def advice_metrics(board: AdviceBoard, counts: AdviceCounts) -> Iterator[Metric]:
    """All of them."""
    states = Counter(entry.state for entry in board.all())
    family = GaugeMetricFamily(PREFIX + "advice", "Advice of the load history", labels=("state",))
    for state in State:
        family.add_metric((state.value,), states[state])
    yield family
    skipped = "Entries of the topic of advice that this release cannot read"
    yield CounterMetricFamily(PREFIX + "advice_skipped", skipped, board.skipped)
    acts = CounterMetricFamily(PREFIX + "advice_acts", "What this broker did with advice as leader", labels=("act",))
    for act in ("applied", "kept", "withdrawn", "harmed"):
        acts.add_metric((act,), getattr(counts, act))
    yield acts
    yield CounterMetricFamily(PREFIX + "advice_failures", "Looks at advice that failed", counts.failures)
