"""Families of Prometheus metrics under this project's prefix, made from plain numbers. Units come last in a name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

from statechannel.runtime.durations import Durations

PREFIX = "loadmanager_"

Values = Mapping[str, float] | Mapping[tuple[str, ...], float]


def gauge(name: str, help_text: str, value: float) -> Metric:
    """One number that goes up and down."""
    return GaugeMetricFamily(PREFIX + name, help_text, value=float(value))


def counter(name: str, help_text: str, value: float) -> Metric:
    """One number that only grows; exposed with the ending `_total`."""
    return CounterMetricFamily(PREFIX + name, help_text, value=float(value))


def gauges(name: str, help_text: str, labels: str | tuple[str, ...], values: Values) -> Metric:
    """A gauge for each value of the label, or tuple of values of the labels."""
    return _filled(GaugeMetricFamily(PREFIX + name, help_text, labels=_several(labels)), values)


def counters(name: str, help_text: str, labels: str | tuple[str, ...], values: Values) -> Metric:
    """A counter for each value of the label, or tuple of values of the labels."""
    return _filled(CounterMetricFamily(PREFIX + name, help_text, labels=_several(labels)), values)


def histogram(name: str, help_text: str, durations: Durations) -> Metric:
    """A classic histogram of durations in seconds."""
    return HistogramMetricFamily(PREFIX + name, help_text, buckets=_buckets(durations), sum_value=durations.sum_s)


def histograms(
    name: str, help_text: str, labels: str | tuple[str, ...], values: Iterable[tuple[str | tuple[str, ...], Durations]]
) -> Metric:
    """A classic histogram for each value of the label, or tuple of values of the labels."""
    family = HistogramMetricFamily(PREFIX + name, help_text, labels=_several(labels))
    for key, durations in values:
        family.add_metric(_several(key), _buckets(durations), durations.sum_s)
    return family


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    return [(floatToGoString(bound_s), float(count)) for bound_s, count in durations.cumulative()]


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
    for key, value in values.items():
        family.add_metric(_several(key), float(value))
    return family


def _several(key: str | tuple[str, ...]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key
