"""The optimum of a small model, by a mixed integer program (HiGHS) that knows nothing of how `plan` works.

It takes from the strategy what it wants (`Scale`: limits, idleness, sizes), and the rules from the model's columns.
Anti-affinity is left out: groups make the optimum larger only.
"""

from __future__ import annotations

from copy import copy
from typing import Any, cast

import msgspec
import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from loadmanager.model.cluster import ALLOWED, FREE, NOWHERE, ClusterModel, Flags, Floats
from loadmanager.strategies.rebalancing.plan.scale import Scale

URGENT_REST = 0.1
SLACK = 1e-7
VIOLATED = 1e-6
"""By how much HiGHS may violate a row: with hundreds of placements, some are above a ceiling by less."""
_LARGE = 1e4


class State(msgspec.Struct, frozen=True):
    """How far a placement is from order, the most important first. All are 0 where all is well."""

    barred: int
    """Bundles that are where a rule or a drain forbids, and that have a place to go to."""
    excess: float
    """Usage above the limits, summed over brokers, each counted from what can't be taken from it on."""
    idleness: float
    """Usage missing to idle marks, summed over brokers."""


class Problem:
    """A model with what may be done in it. `rested`: rest times and ways back are kept, else they are ignored.

    `urgent`: rested bundles don't do, so overloaded brokers need not wait for the end of rest times.
    """

    def __init__(self, model: ClusterModel, scale: Scale, *, rested: bool, urgent: bool = False) -> None:
        self.model, self.scale = model, scale
        brokers, bundles, rules = model.brokers, model.bundles, model.constraints
        n, m = len(brokers), len(bundles)
        self.n, self.m = n, m
        self.home = bundles.owner
        takes = brokers.known & ~brokers.draining & ~brokers.paused
        settled = (self.home != NOWHERE) & ~bundles.in_flight & (rules.fixed == FREE) & ~brokers.paused[self.home]
        permitted = (rules.forbidden[rules.kind] == ALLOWED) & takes
        stays = (rules.forbidden[rules.kind, self.home] == ALLOWED) & ~brokers.draining[self.home]
        self.must: Flags = settled & ~stays & permitted.any(axis=1)
        may = settled & (self.must | (stays & brokers.known[self.home]))
        if rested:
            over = (scale.usage.max(axis=0)[self.home] > scale.overloaded) & urgent
            least = np.where(over, rules.rest_s * URGENT_REST, rules.rest_s)
            may &= self.must | bundles.changed | (bundles.moved_s >= least)
        allowed = permitted & may[:, None]
        if rested:
            for row, left in bundles.left.items():
                elsewhere = allowed[row].copy()
                elsewhere[list(left)] = False
                has_room = (elsewhere & (brokers.bundles < brokers.max_bundles)).any()
                if not bundles.changed[row] and (has_room or not self.must[row]):
                    allowed[row] = elsewhere
        allowed[np.arange(m), self.home] = True
        self.allowed = allowed
        self.part = bundles.load[:, list(scale.resources)].T[:, :, None] * scale.per_load[:, None, :]
        self.rest = scale.usage - _by_home(self.part, self.home, n)
        fixed = scale.usage - _by_home(np.where(settled[None, :, None], self.part, 0.0), self.home, n)
        self.ceiling = np.where(takes, np.maximum(scale.limit, fixed.max(axis=0, initial=0.0)), np.inf)
        self.takes = takes

    def stricter(self) -> Problem:
        """The same, but brokers stay below their ceilings by more than HiGHS lets a placement exceed them."""
        other = copy(self)
        other.ceiling = self.ceiling - VIOLATED
        return other

    def state(self, places: np.ndarray) -> State:
        """How far a placement is from order."""
        usage = self.rest + _by_home(self.part, places, self.n)
        peak = usage.max(axis=0, initial=0.0)
        excess = np.where(self.takes, np.maximum(0.0, peak - self.ceiling), 0.0)
        idleness = np.where(self.takes, np.maximum(0.0, self.scale.idle - peak), 0.0)
        return State(
            int((self.must & (places == self.home)).sum()), float(excess[excess > SLACK].sum()), float(idleness.sum())
        )

    def best(self, known: State | None = None) -> State:
        """The best state that any placement has: fewest barred, then the least excess, then the least idleness.

        `known` is one that some placement has: what is 0 there needs no search."""
        known = known or State(self.m, _LARGE, _LARGE)
        barred = self._least("barred", State(self.m, _LARGE, _LARGE)) if known.barred else 0.0
        state = State(round(barred), _LARGE, _LARGE)
        excess = self._least("excess", state) if known.excess > SLACK or known.barred else 0.0
        state = State(round(barred), max(0.0, excess), _LARGE)
        idle = known.idleness > SLACK or excess > SLACK or known.barred
        return State(state.barred, state.excess, self._least("idleness", state) if idle else 0.0)

    def least(self, cost: Floats, within: State) -> float:
        """The least sum of `cost` (m, n), which each bundle has where it goes, of the placements that are as good as
        `within`; infinite if there is none. What stays costs nothing."""
        cost = cost.copy()
        cost[np.arange(self.m), self.home] = 0.0
        return self._solve(cost.ravel(), "", within)

    def _least(self, what: str, within: State) -> float:
        return self._solve(np.zeros(self.m * self.n), what, within)

    def _solve(self, cost: Floats, what: str, within: State) -> float:
        """Columns: (m, n) places; n excesses; n idlenesses; (r, n) which resource lifts a broker out of idleness."""
        n, m, r = self.n, self.m, len(self.scale.resources)
        places, width = m * n, m * n + 2 * n + r * n
        whole = np.zeros(width)
        whole[:places] = cost
        at_home = np.arange(m) * n + self.home
        barred = np.zeros(width)
        barred[at_home[self.must]] = 1.0
        excess, idle = np.zeros(width), np.zeros(width)
        excess[places : places + n] = 1.0
        idle[places + n : places + 2 * n] = 1.0
        whole += {"barred": barred, "excess": excess, "idleness": idle}.get(what, 0.0)
        upper = np.full(width, np.inf)
        upper[:places], upper[places + 2 * n :] = self.allowed.ravel(), 1.0
        integral = np.ones(width)
        integral[places : places + 2 * n] = 0
        rows = [*self._placed(width), *self._levels(width), *self._counts(width)]
        rows += [(barred, -np.inf, within.barred), (excess, -np.inf, within.excess + SLACK)]
        rows.append((idle, -np.inf, within.idleness + SLACK))
        matrix, low, high = (np.array(each) for each in zip(*rows, strict=True))
        result = milp(
            whole,
            integrality=integral,
            bounds=Bounds(0.0, cast(Any, upper)),  # scipy says nothing of types; one guesses float by the defaults
            constraints=LinearConstraint(matrix, cast(Any, low), cast(Any, high)),
            options={"mip_rel_gap": 0.0},
        )
        if result.status == 2:
            return float("inf")
        if result.x is None or result.status != 0:
            raise RuntimeError(f"HiGHS did not come to an end: {result.message}")
        return float(result.fun)

    def _placed(self, width: int) -> list[tuple[Floats, float, float]]:
        rows = []
        for bundle in range(self.m):
            row = np.zeros(width)
            row[bundle * self.n : (bundle + 1) * self.n] = 1.0
            rows.append((row, 1.0, 1.0))
        return rows

    def _levels(self, width: int) -> list[tuple[Floats, float, float]]:
        """excess ≥ usage - ceiling in each resource; idleness ≥ idle mark - usage in the one that is chosen."""
        n, m = self.n, self.m
        rows: list[tuple[Floats, float, float]] = []
        for broker in np.flatnonzero(self.takes).tolist():
            chosen = np.zeros(width)
            for at in range(len(self.scale.resources)):
                usage = np.zeros(width)
                usage[np.arange(m) * n + broker] = self.part[at, :, broker]
                fixed = float(self.rest[at, broker])
                over, under = usage.copy(), usage.copy()
                over[m * n + broker] = -1.0
                rows.append((over, -np.inf, float(self.ceiling[broker]) - fixed))
                mark = float(self.scale.idle[broker])
                if mark > 0:
                    pick = m * n + 2 * n + at * n + broker
                    under[m * n + n + broker], under[pick], chosen[pick] = 1.0, -mark, 1.0
                    rows.append((under, -fixed, np.inf))
            if self.scale.idle[broker] > 0:
                rows.append((chosen, 1.0, 1.0))
        return rows

    def _counts(self, width: int) -> list[tuple[Floats, float, float]]:
        brokers, rows = self.model.brokers, []
        room = brokers.max_bundles - brokers.bundles
        for broker in np.flatnonzero(room < self.m).tolist():
            row = np.zeros(width)
            row[np.arange(self.m) * self.n + broker] = 1.0
            here = int((self.home == broker).sum())
            rows.append((row, -np.inf, float(here + max(0, int(room[broker])))))
        return rows


def _by_home(part: Floats, places: np.ndarray, n: int) -> Floats:
    """(r, n): the sums of what the bundles use where they are."""
    usage = np.zeros((len(part), n))
    for at, each in enumerate(part):
        np.add.at(usage[at], places, each[np.arange(len(places)), places])
    return usage
