"""The plan's objective as a mixed integer program (HiGHS), over all placements of some bundles on some brokers.

It has all of the objective but the square of the excess. Its limit is in nodes, not seconds, so that the same model
gets the same answer everywhere. SciPy brings the solver; it is imported only when needed, since that is slow. Without
SciPy nothing is searched.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import msgspec
import numpy as np

from loadmanager.model.cluster import NOWHERE, Flags, Floats, Ints
from loadmanager.strategies.rebalancing.plan.draft import FULL, Draft
from loadmanager.strategies.rebalancing.plan.objective import OUT_OF_TOLERANCE, OVER, UNDER, UNEVEN

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint

SOLVER_INSTALLED = find_spec("scipy") is not None
GAP = 0.002
"""A placement whose cost is within this fraction of the proven bound is good enough."""


class Excerpt(msgspec.Struct, frozen=True, eq=False):
    """The part of the model to search: b brokers, k bundles, r resources."""

    brokers: Ints
    rows: Ints
    home: Ints
    """(k,), position of the bundle's broker in `brokers`; NOWHERE if it is not among them."""
    part: Floats
    """(r, k, b): the usage by each bundle on each broker."""
    allowed: Flags
    """(k, b)"""
    cost: Floats
    """(k, b): the cost of moving there, 0 at home."""
    rest: Floats
    """(r, b): the brokers' usage without these bundles."""
    most: Floats
    """(b,): the most usage of each broker."""
    others: Ints
    """(b,): how many other bundles they hold."""
    room: Ints
    """(b,): how many of these bundles they may hold."""
    moves: int
    """The most of these bundles that may move."""
    sizes: Floats
    """(k, b): the part of the round's budget that the move takes."""
    budget: float


def excerpt_of(
    draft: Draft,
    brokers: Ints,
    rows: Ints,
    here: Ints,
    *,
    home: Ints,
    stays: Ints,
    allowed: Flags,
    sizes: Floats,
    most: Floats,
    moves: int,
    budget: float,
) -> Excerpt:
    """The excerpt with these bundles and brokers.

    `here` (k,): where the draft has them, as a position in `brokers`, or NOWHERE. `stays`: positions in `rows` of
    bundles that may stay at home, at no cost.
    """
    part = draft.loads_of(rows)[:, :, None] * draft.scale.per_load[:, None, brokers]
    cost = draft.costs_of(rows, brokers)
    allowed[stays, home[stays]], cost[stays, home[stays]], sizes[stays, home[stays]] = True, 0.0, 0.0
    inside, b = np.flatnonzero(here != NOWHERE), len(brokers)
    now = here[inside]
    mine = np.bincount(now, minlength=b)
    others = draft.bundles[brokers] - mine
    return Excerpt(
        brokers=brokers,
        rows=rows,
        home=home,
        part=part,
        allowed=allowed,
        cost=cost,
        rest=draft.usage[:, brokers] - np.array([np.bincount(now, each[inside, now], b) for each in part]),
        most=np.maximum(most, FULL),
        others=others,
        room=np.maximum(mine, draft.model.brokers.max_bundles[brokers] - others),
        moves=moves,
        sizes=sizes,
        budget=budget,
    )


class _Columns:
    """The columns of each kind of variable in the program."""

    def __init__(self, excerpt: Excerpt) -> None:
        k, b = excerpt.allowed.shape
        ends = np.cumsum([k * b, b, b, b, b, len(excerpt.rest) * b]).tolist()
        self.places = slice(0, ends[0])
        """(k, b): whether the bundle is there."""
        self.over, self.whether, self.lacking, self.empty, self.picks = (
            slice(begin, end) for begin, end in pairwise(ends)
        )
        """(b,): how far over the limit, whether over, how far below idle, whether empty.

        The last one is (r, b): which resource counts for idleness.
        """
        self.uneven = ends[-1]
        """Whether any broker is above its ceiling."""
        self.width = ends[-1] + 1


def solve(draft: Draft, excerpt: Excerpt, nodes: int, *, even: bool = False) -> Ints | None:
    """(k,): the position of each bundle's best broker; None if the search found nothing, or there is no solver.

    `even`: of the placements that leave no broker above its ceiling.
    """
    if not SOLVER_INSTALLED:
        return None
    from scipy.optimize import Bounds, milp

    k, b = excerpt.allowed.shape
    at, target = _Columns(excerpt), draft.scale.target[excerpt.brokers]
    most = np.maximum(0.0, excerpt.most - draft.scale.limit[excerpt.brokers])
    cost, upper, integral = np.zeros(at.width), np.ones(at.width), np.ones(at.width)
    cost[at.places], upper[at.places] = excerpt.cost.ravel(), excerpt.allowed.ravel()
    cost[at.over], upper[at.over], integral[at.over] = OVER, most, 0
    cost[at.whether] = OUT_OF_TOLERANCE * target
    cost[at.lacking], upper[at.lacking], integral[at.lacking] = UNDER, draft.scale.idle[excerpt.brokers], 0
    cost[at.empty], integral[at.empty], cost[at.uneven] = target, 0, UNEVEN
    upper[at.uneven] = 0.0 if even else 1.0
    result = milp(
        cost,
        integrality=integral,
        bounds=Bounds(0.0, cast(float, upper)),  # an array, whatever the stub says
        constraints=list(_constraints(draft, excerpt, at, most)),
        options={"node_limit": nodes, "mip_rel_gap": GAP},
    )
    if result.x is None:
        return None
    return np.asarray(result.x[at.places].reshape(k, b).argmax(axis=1), dtype=np.int64)


def _constraints(draft: Draft, excerpt: Excerpt, at: _Columns, most: Floats) -> Iterator[LinearConstraint]:
    from scipy.optimize import LinearConstraint

    k, b = excerpt.allowed.shape
    one, each = np.eye(b), np.arange(k)
    limit, ceiling = draft.scale.limit[excerpt.brokers], draft.scale.ceiling[excerpt.brokers]
    idle = draft.scale.idle[excerpt.brokers]
    placed = np.zeros((k, at.width))
    placed[:, at.places].reshape(k, k, b)[each, each] = 1.0
    yield LinearConstraint(placed, 1, 1)
    for resource, (part, rest) in enumerate(zip(excerpt.part, excerpt.rest, strict=True)):
        over, under = np.zeros((b, at.width)), np.zeros((b, at.width))
        over[:, at.places] = under[:, at.places] = (part[None, :, :] * one[:, None, :]).reshape(b, k * b)
        over[:, at.over], under[:, at.lacking] = -one, one
        under[:, at.picks][:, resource * b : (resource + 1) * b] = np.diag(-idle)
        yield LinearConstraint(over, -np.inf, cast(float, limit - rest))
        yield LinearConstraint(under, -rest, np.inf)
    flags, uneven, picks = np.zeros((b, at.width)), np.zeros((b, at.width)), np.zeros((b, at.width))
    flags[:, at.over], flags[:, at.whether] = one, np.diag(-most)
    uneven[:, at.over], uneven[:, at.uneven] = one, -most
    picks[:, at.picks] = np.tile(one, len(excerpt.rest))
    yield LinearConstraint(flags, -np.inf, 0.0)
    yield LinearConstraint(uneven, -np.inf, cast(float, ceiling - limit))
    yield LinearConstraint(picks, 1, 1)
    count = np.zeros((b, at.width))
    count[:, at.places] = np.tile(one, k)
    if (excerpt.room < k).any():
        # a limit of 2**63 means none, but spoils the tolerances of HiGHS
        yield LinearConstraint(count, -np.inf, cast(float, np.minimum(excerpt.room, k)))
    below = (excerpt.others == 0) & (excerpt.rest.max(axis=0) < idle)
    if below.any():
        some = count.copy()
        some[:, at.empty] = one
        yield LinearConstraint(some[below], 1, np.inf)
    if excerpt.moves < k or np.isfinite(excerpt.budget):
        spent = np.zeros((2, at.width))
        spent[0, at.places], spent[1, at.places] = (excerpt.cost > 0).ravel(), excerpt.sizes.ravel()
        yield LinearConstraint(spent, -np.inf, cast(float, [min(excerpt.moves, k), min(excerpt.budget, float(k))]))
