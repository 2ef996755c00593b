"""Prometheus metrics of splits, merges and quarantine at one broker, since its incarnation began."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from loadmanager.leader.quarantine.quarantine import Quarantine
from loadmanager.leader.splitting.journal import Journal, What
from loadmanager.strategies.splitting.conditions import Cause
from loadmanager.strategies.splitting.deciding import Rule

PREFIX = "loadmanager_"


def splitting_metrics(journal: Journal, quarantine: Quarantine) -> Iterator[Metric]:
    """All metrics."""
    splits = CounterMetricFamily(PREFIX + "splits", "Splits of this broker's bundles", labels=("result", "reason"))
    for result in ("Success", "Failure"):
        for cause in Cause:
            splits.add_metric((result, cause.value), journal.splits[result, cause])
    yield splits
    yield _counter("merges", "Merges that this broker began", journal.counts[What.MERGED])
    yield _counter(
        "children_spread", "Children of splits that this broker moved as leader", journal.counts[What.SPREAD]
    )
    yield _counter(
        "bundles_quarantined", "Bundles that this broker locked up as leader", journal.counts[What.QUARANTINED]
    )
    yield _counter(
        "bundles_tried", "Times that it gave out a suspect or locked bundle alone", journal.counts[What.TRIED]
    )
    yield _counter("bundles_let_go", "Locked bundles that it let go by itself", journal.counts[What.LET_GO])
    kept = journal.split_decision.counts if journal.split_decision is not None else {}
    stay = GaugeMetricFamily(PREFIX + "bundles_not_split", "By the last look, by rule", labels=("rule",))
    for rule in Rule:
        stay.add_metric((rule.value,), float(kept.get(rule, 0)))
    yield stay
    suspects = float(len(quarantine))
    yield GaugeMetricFamily(PREFIX + "bundles_suspect", "Two or more brokers were lost with them", suspects)


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, help_text, value=float(value))
