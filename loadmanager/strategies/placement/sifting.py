"""Which candidates may take a bundle at all, and their expected usage with the bundles just given. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

import numpy as np
from numpy.typing import NDArray

from loadmanager.model.load.model import share
from loadmanager.strategies.placement.model import Candidate, Given, NoPlace, RefusedCandidate

MARGIN = 0.10
"""Usages this close count as equal: smaller differences are measurement noise."""

BUSY = 0.75
"""From this usage on a broker is spared although its bundles have no traffic.

Such a broker is busy with something else (its start, lookups, a neighbour). Below this, the load will pass, and must
not decide where bundles live for weeks.
"""

_FULL = 1.0

Floats = NDArray[np.float64]
Slope = tuple[float, float, float]
"""The reported usage, the number of bundles then, and the usage that each further one adds."""


def willing(
    candidates: Sequence[Candidate], given: Given
) -> tuple[Sequence[Candidate], tuple[RefusedCandidate, ...]] | NoPlace:
    """The eligible candidates and the refused ones; a broker that declined the bundle only if there is no other."""
    eligible, refused = sift(candidates, given)
    if not eligible:
        return NoPlace(_no_place(refused), tuple(refused))
    return [each for each in eligible if each.broker != given.declined_by] or eligible, tuple(refused)


def sift(candidates: Sequence[Candidate], given: Given) -> tuple[list[Candidate], list[RefusedCandidate]]:
    """The candidates that take bundles and have room, and the others."""
    eligible: list[Candidate] = []
    refused: list[RefusedCandidate] = []
    for each in candidates:
        if each.draining:
            refused.append(RefusedCandidate(each.broker, "draining", "it gives its bundles away"))
        elif each.max_bundles is not None and count(each, given) >= each.max_bundles:
            detail = f"{count(each, given)} bundles of at most {each.max_bundles}"
            refused.append(RefusedCandidate(each.broker, "full", detail))
        else:
            eligible.append(each)
    return eligible, refused


def count(candidate: Candidate, given: Given) -> int:
    """How many bundles it has, with those it was just given."""
    return candidate.bundles + given.bundles.get(candidate.broker, 0)


def mean_work(candidates: Sequence[Candidate]) -> float:
    """The mean usage that one bundle causes on these brokers; independent of their order."""
    reported = [each for each in candidates if each.usage is not None]
    return share(fsum(map(_work, reported)), sum(each.reported_bundles for each in reported))


def expected_usage(candidate: Candidate, bundles: int, mean: float) -> float | None:
    """The usage with this many bundles, at most that of a full broker: beyond it an estimate means nothing."""
    return None if candidate.usage is None else estimate(slope(candidate, mean), bundles)


def slope(candidate: Candidate, mean: float) -> Slope:
    """How its usage grows with each bundle beyond its report."""
    reported = candidate.reported_bundles
    return _own_usage(candidate), reported, share(_work(candidate), reported) if reported else mean


def estimate(of: Slope, bundles: int) -> float:
    """See `expected_usage`."""
    usage, reported, per_bundle = of
    came = bundles - reported
    return max(usage, min(_FULL, usage + came * per_bundle)) if came > 0 else usage


def slopes(candidates: Sequence[Candidate]) -> Floats:
    """(3, n): the `slope` of each candidate, by the same formula; meaningless if its usage is unknown."""
    usage = np.array([each.usage or 0.0 for each in candidates], np.float64)
    reported = np.array([0 if each.usage is None else each.reported_bundles for each in candidates], np.float64)
    traffic = np.array([each.traffic for each in candidates], np.bool_)
    own = np.where(traffic | (usage >= BUSY), usage, 0.0)
    work = np.maximum(0.0, own - MARGIN)
    mean = share(fsum(work), reported.sum())  # unknown brokers have no work
    return np.array([own, reported, np.where(reported > 0, work / np.maximum(reported, 1.0), mean)])


def estimates(of: Floats, bundles: Floats) -> Floats:
    """(n,): `estimate` of each."""
    usage, reported, per_bundle = of
    came = bundles - reported
    return np.where(came > 0, np.maximum(usage, np.minimum(_FULL, usage + came * per_bundle)), usage)


def _own_usage(candidate: Candidate) -> float:
    """The usage that counts: all, or 0 if the broker's bundles are idle and it is not busy otherwise."""
    usage = candidate.usage or 0.0
    return usage if candidate.traffic or usage >= BUSY else 0.0


def _work(candidate: Candidate) -> float:
    """The usage that its bundles cause: what exceeds the margin.

    A process without work also uses a few percent; blamed on its first bundles they would make each further one look
    expensive.
    """
    return max(0.0, _own_usage(candidate) - MARGIN)


def _no_place(refused: Sequence[RefusedCandidate]) -> str:
    if not refused:
        return "no broker is registered"
    return "no broker may take it: " + "; ".join(f"{each.broker.name}: {each.rule}, {each.detail}" for each in refused)
