"""Chooses bundles that together meet a need at the least cost: the smallest sufficient sum, with few moves. Pure.

Exact up to EXACT bundles (as many as a top-n report has). Beyond that sums lie so close together that the largest
bundles and a fitting last pair come within a hundredth of the need.
"""

from __future__ import annotations

import numpy as np

from loadmanager.model.cluster import Floats, Ints

EXACT = 14
CLOSE = 0.003
"""A cover whose cost is within this fraction of the minimum is not improved further."""
_NONE = np.zeros(0, np.int64)


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
    sums, costs = np.zeros(1), np.zeros(1)
    for r, c in zip(relief.tolist(), cost.tolist(), strict=True):
        sums, costs = np.concatenate((sums, sums + r)), np.concatenate((costs, costs + c))
    best = int(np.where(sums >= need, costs, np.inf).argmin())
    return np.flatnonzero((best >> np.arange(len(relief))) & 1)


def _close(relief: Floats, cost: Floats, need: float) -> Ints:
    """The largest that fit into the need, then one or two for the rest; the cheapest such cover."""
    order = np.argsort(relief, kind="stable")
    good = need * float((cost / relief).min()) * (1 + CLOSE)
    chosen, rest, best, best_cost = _bulk(relief, order, need)
    order = order[~np.isin(order, chosen)]
    while order.size:
        finish = _finish(relief[order], cost[order], rest)
        if finish.size:
            candidate = np.concatenate((chosen, order[finish]))
            spent = float(cost[candidate].sum())
            if spent < best_cost:
                best, best_cost = candidate, spent
        at = int(np.searchsorted(relief[order], rest, side="right")) - 1
        if at < 0 or best_cost <= good:
            break
        chosen, rest = np.append(chosen, order[at]), rest - float(relief[order[at]])
        order = np.delete(order, at)
        if rest <= 0:
            break
    return best


def _bulk(relief: Floats, order: Ints, need: float) -> tuple[Ints, float, Ints, float]:
    """The largest bundles, while the need is much more than one of them gives."""
    fits = order[: int(np.searchsorted(relief[order], need, side="right"))][::-1]
    sums = np.cumsum(relief[fits])
    taken = fits[: int(np.searchsorted(sums, need - 3 * float(relief[fits[0]])))] if fits.size else _NONE
    return taken, need - float(relief[taken].sum()), order, float("inf")


def _finish(relief: Floats, cost: Floats, need: float) -> Ints:
    """The cheapest sufficient one or two; `relief` ascends. Empty if no two suffice."""
    single = int(np.searchsorted(relief, need))
    options: list[tuple[float, Ints]] = []
    if single < len(relief):
        options.append((float(cost[single]), np.array([single])))
    small = relief[:single]
    partner = np.searchsorted(small, need - small)
    first = np.flatnonzero((partner < len(small)) & (partner > np.arange(len(small))))
    if first.size:
        costs = cost[first] + cost[partner[first]]
        at = int(costs.argmin())
        options.append((float(costs[at]), np.array([first[at], partner[first[at]]])))
    return min(options, key=lambda option: option[0])[1] if options else _NONE
