"""Prometheus metrics of splits, merges and quarantine at one broker, since its incarnation began."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from loadmanager.leader.splitting.journal import Journal, What
from loadmanager.model.families import counter, counters, gauge, gauges
from loadmanager.strategies.splitting.splits import Cause, Rule


def splitting_metrics(journal: Journal, suspects: int, locked: int) -> Iterator[Metric]:
    """All metrics. `suspects` and `locked`: how many bundles there are of each now."""
    splits = {(end, cause.value): journal.splits[end, cause] for end in ("Success", "Failure") for cause in Cause}
    yield counters("splits", "Splits of this broker's bundles", ("result", "reason"), splits)
    yield counter("merges", "Merges that this broker began", journal.counts[What.MERGED])
    yield counter("children_spread", "Children of splits that this broker moved as leader", journal.counts[What.SPREAD])
    yield counter(
        "bundles_quarantined", "Bundles that this broker locked up as leader", journal.counts[What.QUARANTINED]
    )
    yield counter("bundles_tried", "Trials of locked bundles", journal.counts[What.TRIED])
    yield counter("bundles_let_go", "Locked bundles that it let go by itself", journal.counts[What.LET_GO])
    kept = journal.split_decision.counts if journal.split_decision is not None else {}
    stay = {rule.value: kept.get(rule, 0) for rule in Rule}
    yield gauges("bundles_not_split", "By the last look, by rule", "rule", stay)
    yield gauge("bundles_suspect", "Two or more brokers in a row were lost with them", suspects)
    yield gauge("bundles_locked", "In quarantine at present, by leaders and people", locked)
