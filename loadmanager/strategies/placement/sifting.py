"""Which candidates may take a bundle at all, and what each is expected to be like with what it was just given. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

import numpy as np
from numpy.typing import NDArray

from loadmanager.model.load.model import share
from loadmanager.strategies.placement.model import Candidate, Given, NoPlace, RefusedCandidate

MARGIN = 0.10
"""Usages this close count as equal: less than that is noise of the measurement."""

BUSY = 0.75
"""A broker whose bundles have no traffic is busy with something else (its start, lookups, a neighbour). Below this that
passes, and must not decide where bundles live for weeks; above, the broker is spared."""

_FULL = 1.0

Floats = NDArray[np.float64]
Slope = tuple[float, float, float]
"""Usage as reported, with how many bundles, and what each further one adds."""


def willing(
    candidates: Sequence[Candidate], given: Given
) -> tuple[Sequence[Candidate], tuple[RefusedCandidate, ...]] | NoPlace:
    """Who may be chosen, and who may not by which rule; a broker that declined the bundle only if there is no other."""
    eligible, refused = sift(candidates, given)
    if not eligible:
        return NoPlace(_no_place(refused), tuple(refused))
    return [each for each in eligible if each.broker != given.declined_by] or eligible, tuple(refused)


def sift(candidates: Sequence[Candidate], given: Given) -> tuple[list[Candidate], list[RefusedCandidate]]:
    """Those that take bundles and have room, and the others."""
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
    """How many bundles it has with what it was just given."""
    return candidate.bundles + given.bundles.get(candidate.broker, 0)


def mean_work(candidates: Sequence[Candidate]) -> float:
    """The usage that one bundle causes on these brokers, on average; the same in whatever order they come."""
    reported = [each for each in candidates if each.usage is not None]
    return share(fsum(map(_work, reported)), sum(each.reported_bundles for each in reported))


def expected_usage(candidate: Candidate, bundles: int, mean: float) -> float | None:
    """Usage with so many bundles; at most a full broker: beyond that an estimate says nothing more."""
    return None if candidate.usage is None else estimate(slope(candidate, mean), bundles)


def slope(candidate: Candidate, mean: float) -> Slope:
    """How its usage grows with each bundle that it did not report."""
    reported = candidate.reported_bundles
    return _own_usage(candidate), reported, share(_work(candidate), reported) if reported else mean


def estimate(of: Slope, bundles: int) -> float:
    """See `expected_usage`."""
    usage, reported, per_bundle = of
    came = bundles - reported
    return max(usage, min(_FULL, usage + came * per_bundle)) if came > 0 else usage


def slopes(candidates: Sequence[Candidate]) -> Floats:
    """(3, n): the `slope` of each among these candidates, the same numbers; anything where the usage is not known."""
    usage = np.array([each.usage or 0.0 for each in candidates], np.float64)
    reported = np.array([0 if each.usage is None else each.reported_bundles for each in candidates], np.float64)
    traffic = np.array([each.traffic for each in candidates], np.bool_)
    own = np.where(traffic | (usage >= BUSY), usage, 0.0)
    work = np.maximum(0.0, own - MARGIN)
    mean = share(fsum(work), reported.sum())  # who is not known does no work
    return np.array([own, reported, np.where(reported > 0, work / np.maximum(reported, 1.0), mean)])


def estimates(of: Floats, bundles: Floats) -> Floats:
    """(n,): `estimate` of each."""
    usage, reported, per_bundle = of
    came = bundles - reported
    return np.where(came > 0, np.maximum(usage, np.minimum(_FULL, usage + came * per_bundle)), usage)


def _own_usage(candidate: Candidate) -> float:
    """The usage that counts: all of it, or none while the broker's bundles are idle and it is not busy otherwise."""
    usage = candidate.usage or 0.0
    return usage if candidate.traffic or usage >= BUSY else 0.0


def _work(candidate: Candidate) -> float:
    """The usage that its bundles cause: what exceeds the margin. A process without work uses some percent as well, and
    blamed on its first bundles they would make every further one look expensive."""
    return max(0.0, _own_usage(candidate) - MARGIN)


def _no_place(refused: Sequence[RefusedCandidate]) -> str:
    if not refused:
        return "no broker is registered"
    return "no broker may take it: " + "; ".join(f"{each.broker.name}: {each.rule}, {each.detail}" for each in refused)
