"""The load that leaves with a bundle, for many bundles of one report: `load.usage.bundle_row` over columns. Pure."""

from __future__ import annotations

import numpy as np

from loadmanager.model.cluster import DIMENSIONS, Floats
from loadmanager.strategies.playground.scenario import BYTES_IN, CPU

CPU_PERCENT, IN, OUT, MESSAGES = range(4)
"""Columns of `slices.RATES`."""


def costs(rates: Floats, total: Floats, cpu_percent: float, cores: float) -> Floats:
    """(r, DIMENSIONS): loads in natural units of bundles with these rates (r, 4).

    `total` (4,) is the sum over all bundles of the broker; `cpu_percent` is what the broker uses of its `cores`.
    """
    found = np.zeros((len(rates), DIMENSIONS))
    found[:, CPU] = _cpu_percent(rates, total, max(0.0, cpu_percent), cores) / 100 * cores
    found[:, BYTES_IN:] = rates[:, IN:]
    return found


def _cpu_percent(rates: Floats, total: Floats, used: float, cores: float) -> Floats:
    if total[CPU_PERCENT] > 0:
        return np.minimum(used * rates[:, CPU_PERCENT] / total[CPU_PERCENT], rates[:, CPU_PERCENT] / cores)
    if total[MESSAGES] > 0:
        return used * rates[:, MESSAGES] / total[MESSAGES]
    throughput = total[IN] + total[OUT]
    return used * (rates[:, IN] + rates[:, OUT]) / throughput if throughput > 0 else np.zeros(len(rates))
