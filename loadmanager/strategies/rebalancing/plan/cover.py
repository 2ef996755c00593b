"""Chooses bundles that together meet a need at the least cost: the smallest sufficient sum, with few moves. Pure.

Exact up to EXACT bundles (as many as a top-n report has). Beyond that sums lie so close together that the largest
bundles and a fitting last pair come within a hundredth of the need.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from loadmanager.model.cluster import Floats, Ints

EXACT = 14
CLOSE = 0.003
"""A cover whose cost is within this fraction of the minimum is not improved further."""
_NONE = np.zeros(0, np.int64)
_Scalar = TypeVar("_Scalar", bound=np.generic)


def cover(relief: Floats, cost: Floats, need: float) -> Ints:
    """Positions of the bundles to move, the largest first: their relief adds up to `need`; all if it can't.

    `relief` and `cost` are above 0, (k,).
    """
    if float(relief.sum()) < need:
        return _largest_first(np.arange(len(relief)), relief)
    cheap = _cheapest(relief, cost, need)
    chosen = (_exact if len(cheap) <= EXACT else _close)(relief[cheap], cost[cheap], need)
    return _largest_first(cheap[chosen], relief)


def _largest_first(chosen: Ints, relief: Floats) -> Ints:
    return chosen[np.argsort(-relief[chosen], kind="stable")]


def _cheapest(relief: Floats, cost: Floats, need: float) -> Ints:
    """The bundles with the most relief per cost, three times as many as needed; all if their ratios are alike."""
    worth = relief / cost
    if len(worth) <= EXACT or worth.min() > 0.8 * worth.max():
        return np.arange(len(relief))
    order = np.argsort(-worth, kind="stable")
    enough = int(np.searchsorted(np.cumsum(relief[order]), 3 * need)) + 1
    return np.sort(order[: max(EXACT, enough)])


def _exact(relief: Floats, cost: Floats, need: float) -> Ints:
    """The best of all subsets."""
    sums, costs = np.zeros((2, 1 << len(relief)))
    for at, (r, c) in enumerate(zip(relief.tolist(), cost.tolist(), strict=True)):
        size = 1 << at
        np.add(sums[:size], r, out=sums[size : 2 * size])
        np.add(costs[:size], c, out=costs[size : 2 * size])
    best = int(np.where(sums >= need, costs, np.inf).argmin())
    return np.flatnonzero((best >> np.arange(len(relief))) & 1)


def _close(relief: Floats, cost: Floats, need: float) -> Ints:
    """The largest that fit into the need, then one or two for the rest; the cheapest such cover."""
    order = np.argsort(relief, kind="stable")
    good = need * float((cost / relief).min()) * (1 + CLOSE)
    chosen, rest, best, best_cost = _bulk(relief, order, need)
    left = np.ones(len(relief), np.bool_)
    left[chosen] = False
    order = order[left[order]]
    sizes, costs = relief[order], cost[order]
    while order.size:
        finish = _finish(sizes, costs, rest)
        if finish.size:
            candidate = np.concatenate((chosen, order[finish]))
            spent = float(cost[candidate].sum())
            if spent < best_cost:
                best, best_cost = candidate, spent
        at = int(sizes.searchsorted(rest, side="right")) - 1
        if at < 0 or best_cost <= good:
            break
        chosen, rest = np.append(chosen, order[at]), rest - float(sizes[at])
        order, sizes, costs = _without(order, at), _without(sizes, at), _without(costs, at)
        if rest <= 0:
            break
    return best


def _bulk(relief: Floats, order: Ints, need: float) -> tuple[Ints, float, Ints, float]:
    """The largest bundles, while the need is much more than one of them gives."""
    fits = order[: int(np.searchsorted(relief[order], need, side="right"))][::-1]
    sums = np.cumsum(relief[fits])
    taken = fits[: int(np.searchsorted(sums, need - 3 * float(relief[fits[0]])))] if fits.size else _NONE
    return taken, need - float(relief[taken].sum()), order, float("inf")


def _without(values: NDArray[_Scalar], at: int) -> NDArray[_Scalar]:
    return np.concatenate((values[:at], values[at + 1 :]))


def _finish(relief: Floats, cost: Floats, need: float) -> Ints:
    """The cheapest sufficient one or two; `relief` ascends. Empty if no two suffice."""
    single = int(relief.searchsorted(need))
    best, least = _NONE, float("inf")
    if single < len(relief):
        best, least = np.array([single]), float(cost[single])
    small = relief[:single]
    partner = small.searchsorted(need - small)
    first = ((partner < len(small)) & (partner > np.arange(len(small)))).nonzero()[0]
    if first.size:
        costs = cost[first] + cost[partner[first]]
        at = int(costs.argmin())
        if costs[at] < least:
            best = np.array([first[at], partner[first[at]]])
    return best
