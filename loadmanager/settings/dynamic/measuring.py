"""What Prometheus sees of the cluster's settings at one broker."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from loadmanager.settings.dynamic.live import LiveSettings

PREFIX = "loadmanager_"


def settings_metrics(live: LiveSettings) -> Iterator[Metric]:
    """All of them."""
    revision = "Offset of the last change of the cluster's settings that was read; -1 before the first"
    yield GaugeMetricFamily(PREFIX + "settings_revision", revision, live.revision)
    left_out = "The cluster's settings that do not hold at this broker"
    yield GaugeMetricFamily(PREFIX + "settings_left_out", left_out, len(live.ignored))
    skipped = "Entries of the settings topic that this release cannot read"
    yield CounterMetricFamily(PREFIX + "settings_skipped", skipped, live.skipped)
