"""Swaps and chains, if no single move helps: a bundle goes to a broker that gives another one back, or onward.

For each broker out of tolerance, the emptiest brokers of its pool are tried as partners, and as third ones. All pairs
of bundles are compared at once; of the best, the first that the hard rules allow is made, both moves or none.
"""

from __future__ import annotations

import msgspec
import numpy as np

from loadmanager.model.cluster import Floats, Ints
from loadmanager.strategies.rebalancing.decision import Stage
from loadmanager.strategies.rebalancing.plan.draft import FULL, Draft
from loadmanager.strategies.rebalancing.plan.holdings import Holdings
from loadmanager.strategies.rebalancing.plan.objective import EPSILON

GIVERS = 16
"""How many brokers out of tolerance are considered at once."""
PARTNERS, THIRD = 6, 3
BUNDLES = 48
"""How many bundles of a broker are compared: the largest, and as many spread over the rest."""
TRIED = 8


class _Exchange(msgspec.Struct, frozen=True):
    gain: float
    given: int
    returned: int
    partner: int
    third: int
    """The destination of the returned bundle: the giver itself in a swap."""


def exchange(draft: Draft, holdings: Holdings) -> bool:
    """Make the best swap or chain for each of the fullest brokers; whether any was made."""
    made = False
    for broker in draft.hot()[:GIVERS]:
        if draft.moves_left >= 2 and draft.over(broker):
            made |= _exchange(draft, holdings, broker)
    return made


def _exchange(draft: Draft, holdings: Holdings, giver: int) -> bool:
    given = _sample(draft, draft.untaken(holdings.of(giver)))
    near = draft.coldest(giver, PARTNERS)
    found: list[_Exchange] = []
    for partner in near:
        returned = _sample(draft, draft.untaken(holdings.of(partner)))
        if not given.size or not returned.size:
            continue
        for third in (giver, *[other for other in near if other != partner][:THIRD]):
            found += _best(draft, given, returned, giver, partner, third)
    return any(_make(draft, each, giver) for each in sorted(found, key=lambda each: -each.gain)[:TRIED])


def _sample(draft: Draft, rows: Ints) -> Ints:
    if len(rows) <= BUNDLES:
        return rows
    order = rows[np.argsort(-draft.size[rows], kind="stable")]
    rest = order[BUNDLES // 2 :]
    return np.concatenate((order[: BUNDLES // 2], rest[:: -(-len(rest) // (BUNDLES // 2))]))


def _best(draft: Draft, given: Ints, returned: Ints, giver: int, partner: int, third: int) -> list[_Exchange]:
    """The best two pairs that gain something."""
    per_load, usage = draft.scale.per_load, draft.usage
    going, coming = draft.loads_of(given)[:, :, None], draft.loads_of(returned)[:, None, :]
    back = coming if third == giver else 0.0
    at_giver = _peaks(usage[:, giver], (back - going) * per_load[:, giver, None, None])
    at_partner = _peaks(usage[:, partner], (going - coming) * per_load[:, partner, None, None])
    gain = _cost(draft, giver) - draft.costs.usages(giver, at_giver)
    gain = gain + _cost(draft, partner) - draft.costs.usages(partner, at_partner)
    fits = at_partner <= FULL
    if third != giver:
        at_third = _peaks(usage[:, third], coming * per_load[:, third, None, None])
        gain += _cost(draft, third) - draft.costs.usages(third, at_third)
        fits &= at_third <= FULL
    gain -= _move_costs(draft, given, partner)[:, None] + _move_costs(draft, returned, third)[None, :]
    gain = np.where(fits, gain, -np.inf)
    best = np.argsort(-gain, axis=None, kind="stable")[:2]
    pairs = [np.unravel_index(int(at), gain.shape) for at in best]
    return [
        _Exchange(float(gain[i, j]), int(given[i]), int(returned[j]), partner, third)
        for i, j in pairs
        if gain[i, j] > EPSILON
    ]


def _peaks(usage: Floats, change: Floats) -> Floats:
    return (usage[:, None, None] + change).max(axis=0)


def _cost(draft: Draft, broker: int) -> float:
    return draft.costs.usage(broker, float(draft.peak[broker]), max(1, int(draft.bundles[broker])))


def _move_costs(draft: Draft, rows: Ints, destination: int) -> Floats:
    fixed = draft.costs.move(0.0, 1.0, float(draft.scale.target[destination]))
    return draft.model.constraints.weight[rows] * (draft.size[rows] + fixed)


def _make(draft: Draft, each: _Exchange, giver: int) -> bool:
    """Make the exchange if the hard rules and the budget allow it; the returned bundle goes first, to make room."""
    size = float(draft.size[each.given] + draft.size[each.returned])
    if not draft.worth(giver, size, draft.over(giver)) or not draft.affords(size, moves=2):
        return False
    freed = 1 if each.third == giver else 0
    if draft.forbids(each.given, giver, each.partner, freed=1):
        return False
    if draft.forbids(each.returned, each.partner, each.third, freed=freed):
        return False
    group = draft.group()
    for row, source, destination in ((each.returned, each.partner, each.third), (each.given, giver, each.partner)):
        draft.make(row, source, destination, Stage.SWAP, gain=draft.gain(row, source, destination), group=group)
    return True
