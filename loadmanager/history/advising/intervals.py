"""How sure a mean is: 95 % confidence intervals by block bootstrap. Pure.

A block must be long beside the events in it (an hour of minutes, a window of a replay): blocks count as independent of
each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

LEVEL_PERCENT = (2.5, 97.5)
RESAMPLES = 2_000
FEWEST = 5
"""Fewer blocks than this say nothing about how sure a mean is."""


class Mean(msgspec.Struct, frozen=True):
    """A weighted mean over blocks and its interval."""

    value: float
    low: float
    high: float


def mean(values: Sequence[float], weights: Sequence[float] | None = None, seed: int = 0) -> Mean | None:
    """The weighted mean of one value per block, and its interval; None with fewer blocks than FEWEST or no weight."""
    if len(values) < FEWEST:
        return None
    given = np.asarray(values, np.float64)
    weight = np.ones(len(given)) if weights is None else np.asarray(weights, np.float64)
    if not weight.sum() > 0:
        return None
    drawn = np.random.default_rng(seed).integers(0, len(given), (RESAMPLES, len(given)))
    sums = weight[drawn].sum(axis=1)
    means = (given * weight)[drawn].sum(axis=1)[sums > 0] / sums[sums > 0]
    low, high = np.percentile(means, LEVEL_PERCENT)
    value = float((given * weight).sum() / weight.sum())
    return Mean(value, min(value, float(low)), max(value, float(high)))
