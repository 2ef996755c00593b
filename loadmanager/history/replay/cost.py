"""The cost of a window's outcome: one objective, from who had each bundle when, and what was moved. Pure.

    J = overload · Σ over brokers of (usage - overloaded)⁺, mean over the rounds
      + imbalance · (fullest broker's usage - even level), mean over the rounds
      + moved · load moved, shares of the mean broker an hour
      + gap · seconds without service an hour

Usages are measured by the cluster's own settings, not by a candidate's: a candidate gains nothing by a wider tolerance.
The unit of J is brokers: 0.1 is as if a tenth of a broker were too much on the fullest one all the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from loadmanager.history.replay.game import Recorded, Step
from loadmanager.model.cluster import Flags, Floats, Ints
from loadmanager.strategies.playground.bounds import Ruler, allowed_usage, even_usage
from loadmanager.strategies.playground.measures import TRANSFER_GAP_S, UNLOAD_GAP_S

FREE = "death"
"""Moves away from a dead broker cost nothing: all candidates have the same deaths."""


class Gaps(msgspec.Struct, frozen=True):
    """How long a bundle is not served in a move; `source` says where the figures come from."""

    transfer_s: float = TRANSFER_GAP_S
    unload_s: float = UNLOAD_GAP_S
    source: str = "the playground's constants"

    def of(self, how: str) -> float:
        """In a move of this kind."""
        return 0.0 if how == FREE else self.unload_s if how == "unload" else self.transfer_s


class Objective(msgspec.Struct, frozen=True):
    """The weights; 0 or more each.

    `moved` is a time in hours: moving load pays if it lowers the fullest broker by as much for longer than that. `gap`:
    the cost of one second without service of one bundle, in brokers of imbalance for an hour.
    """

    overload: float = 4.0
    imbalance: float = 1.0
    moved: float = 0.1
    gap: float = 0.01


class Terms(msgspec.Struct, frozen=True):
    """One outcome. Usages are fractions of a broker, `moved` shares of the mean broker's capacity."""

    objective: float
    overload: float
    """This part of J, before its weight; so are the next three."""
    imbalance: float
    moved_an_hour: float
    gap_s_an_hour: float
    max_over_mean: float
    """The fullest broker's usage over the mean one's, mean over the rounds."""
    std: float
    above_percent: float
    """Per cent of rounds in which some broker is beyond tolerance."""
    moves: int
    moved: float
    gap_s: float


class Judge:
    """Judges outcomes of one game. T rounds, n brokers, m bundles, r resources that count."""

    def __init__(self, scenario: Recorded, ruler: Ruler, objective: Objective, gaps: Gaps) -> None:
        self.scenario = scenario
        self.ruler = ruler
        self.objective = objective
        self.gaps = gaps
        self.hours = scenario.rounds * scenario.interval_s / 3600
        self.counted: Ints = np.flatnonzero(np.isfinite(scenario.capacity).any(axis=0) & (ruler.weights > 0))
        """(r,)"""
        self.scale: Floats = (ruler.weights / scenario.capacity)[:, self.counted]
        """(n, r): usage by a natural unit."""
        self.shares: Floats = np.stack([self._shares(at) for at in range(scenario.rounds)])
        """(T, m): each bundle's load as a share of the mean running broker's."""
        self.even: Floats = np.array([self._even(at, scenario.present[at]) for at in range(scenario.rounds)])
        """(T,): the usage at which everything that can move is spread over the brokers that run."""

    def _shares(self, at: int) -> Floats:
        scenario = self.scenario
        return self.ruler.shares(scenario.load[at], scenario.capacity[scenario.present[at]])

    def _even(self, at: int, taking: Flags) -> float:
        scenario = self.scenario
        return even_usage(self.ruler, scenario.capacity[taking], scenario.foreign[at][taking], scenario.total(at))

    def usage(self, owner: Ints) -> Floats:
        """(T, n): usage of each broker's fullest resource, NaN for absent brokers."""
        scenario = self.scenario
        cells = owner + np.arange(scenario.rounds)[:, None] * scenario.brokers
        shape = (scenario.rounds, scenario.brokers)
        found = np.zeros(shape)
        for column, resource in enumerate(self.counted.tolist()):
            sums = np.bincount(cells.ravel(), scenario.load[:, :, resource].ravel(), shape[0] * shape[1])
            load = sums.reshape(shape) + scenario.foreign[:, :, resource]
            found = np.maximum(found, load * self.scale[:, column])
        found[~scenario.present] = np.nan
        return found

    def terms(self, owner: Ints, steps: Sequence[Step]) -> Terms:
        """The costs if `owner` (T, m) had the bundles after each round's moves, which were `steps`."""
        usage, wanted = self.usage(owner), self.objective
        planned = [step for step in steps if step.how != FREE]
        moved = float(sum(self.shares[step.round, step.bundle] for step in planned))
        gap_s = sum(self.gaps.of(step.how) for step in planned)
        overload = float(np.nansum(np.maximum(0.0, usage - self.ruler.overloaded), axis=1).mean())
        imbalance = float((np.nanmax(usage, axis=1) - self.even).mean())
        taking = np.where(self.scenario.draining, np.nan, usage)
        mean = np.nanmean(taking, axis=1)
        over = np.divide(np.nanmax(taking, axis=1), mean, out=np.ones_like(mean), where=mean > 0)
        return Terms(
            objective=wanted.overload * overload
            + wanted.imbalance * imbalance
            + wanted.moved * moved / self.hours
            + wanted.gap * gap_s / self.hours,
            overload=overload,
            imbalance=imbalance,
            moved_an_hour=moved / self.hours,
            gap_s_an_hour=gap_s / self.hours,
            max_over_mean=float(over.mean()),
            std=float(np.nanstd(taking, axis=1).mean()),
            above_percent=100 * float(self._above(owner, taking).mean()),
            moves=len(planned),
            moved=moved,
            gap_s=gap_s,
        )

    def _above(self, owner: Ints, taking: Floats) -> Flags:
        """(T,): whether some broker that takes part is beyond tolerance."""
        scenario, found = self.scenario, np.zeros(self.scenario.rounds, np.bool_)
        for at in range(scenario.rounds):
            active = scenario.present[at] & ~scenario.draining[at]
            own = (scenario.load[at][:, self.counted] * self.scale[owner[at]]).max(axis=1, initial=0.0)
            largest = np.zeros(scenario.brokers)
            np.maximum.at(largest, owner[at], own)
            even = self._even(at, active)
            allowed = allowed_usage(self.ruler, even, scenario.foreign[at], largest, scenario.capacity)
            found[at] = (taking[at][active] > allowed[active] * (1 + 1e-9)).any()
        return found


STRETCHES = 8
"""Stretches of a window; more make the bound tighter, and take longer."""


def least(judge: Judge, stretches: int = STRETCHES) -> float:
    """A lower bound of an outcome's J, knowing all of the window in advance; by linear programming.

    Regret is a candidate's J less this bound, so it is an *upper* bound of what it lost against the best possible. The
    bound is the optimum of a game with fewer rules:

    * in each round the fullest broker is at least at the even level, and at least as full as the largest bundle makes
    the emptiest broker;
    * bundles that begin on a broker fill it until they leave. They may leave in parts, and do not fill the broker that
    they go to (beyond the even level). A move costs as when the bundle is lightest in that stretch of rounds;
    * within a stretch a bundle that was away for one round was away for all, and only sums over the stretch count;
    * a broker that is absent, or was absent before, costs nothing: leaving it is free.

    Each true outcome is one of this game at no higher cost. So no outcome is below the bound.
    """
    stays = np.logical_and.accumulate(judge.scenario.present, axis=0)
    floor, overload = _floor(judge), _overload(judge)
    cuts = np.unique(np.linspace(0, judge.scenario.rounds, stretches + 1).astype(int))
    found = _found(judge, stays, floor, overload, cuts)
    return (found - judge.objective.imbalance * float(judge.even.sum())) / judge.scenario.rounds


def _floor(judge: Judge) -> Floats:
    """(T,): lower bound of the fullest broker's usage."""
    scenario, floor = judge.scenario, judge.even.copy()
    for at in range(scenario.rounds):
        there = scenario.present[at]
        heavy = np.unique(scenario.load[at][:, judge.counted].argmax(axis=0))
        for bundle in heavy.tolist():
            load = scenario.load[at, bundle, judge.counted] + scenario.foreign[at][there][:, judge.counted]
            floor[at] = max(floor[at], float((load * judge.scale[there]).max(axis=1).min()))
    return floor


def _overload(judge: Judge) -> Floats:
    """(T,): lower bound of the summed usages beyond `overloaded`: what exceeds the cluster's whole room."""
    scenario, limit = judge.scenario, judge.ruler.overloaded
    found = np.zeros(scenario.rounds)
    for at in range(scenario.rounds):
        scale = judge.scale[scenario.present[at]]
        total = scenario.total(at)[judge.counted] + scenario.foreign[at][scenario.present[at]][:, judge.counted].sum(0)
        counts = (scale > 0).all(axis=0)
        room = np.divide(limit, scale, out=np.full_like(scale, np.inf), where=scale > 0).sum(axis=0)
        found[at] = (np.maximum(0.0, total - room)[counts] * scale[:, counts].min(axis=0)).max(initial=0.0)
    return found


class _Broker(msgspec.Struct, frozen=True, eq=False):
    """One broker's part of the LP: its usage if all its bundles stay, and each bundle's part of that."""

    row: int
    bundles: Ints
    whole: Floats
    """(S, r): usage summed over those rounds of a stretch through which the broker stays."""
    rounds: Ints
    """(S,): how many such rounds there are."""
    beside: Floats
    """(S,): the floor, summed over the other rounds."""
    parts: Floats
    """(S, r, bundles)"""


def _broker(judge: Judge, row: int, stays: Flags, floor: Floats, cuts: Ints) -> _Broker:
    scenario = judge.scenario
    mine = np.flatnonzero(scenario.home == row)
    here = stays[:, row, None]
    load = scenario.load[:, mine][:, :, judge.counted] * judge.scale[row] * here[:, :, None]
    foreign = scenario.foreign[:, row][:, judge.counted] * judge.scale[row] * here
    begins = cuts[:-1]
    parts = np.add.reduceat(load, begins, axis=0).transpose(0, 2, 1)
    return _Broker(
        row=row,
        bundles=mine,
        whole=np.add.reduceat(foreign, begins, axis=0) + parts.sum(axis=2),
        rounds=np.add.reduceat(here[:, 0].astype(np.int64), begins),
        beside=np.add.reduceat(np.where(here[:, 0], 0.0, floor), begins),
        parts=parts,
    )


def _found(judge: Judge, stays: Flags, floor: Floats, overload: Floats, cuts: Ints) -> float:
    """Σ over the rounds of the bound of J, with the fullest broker's usage itself instead of its imbalance."""
    wanted, limit = judge.objective, judge.ruler.overloaded
    floors, overloads = np.add.reduceat(floor, cuts[:-1]), np.add.reduceat(overload, cuts[:-1])
    idle = wanted.imbalance * float(floors.sum()) + wanted.overload * float(overloads.sum())
    brokers = [_broker(judge, row, stays, floor, cuts) for row in np.unique(judge.scenario.home).tolist()]
    full = [
        each
        for each in brokers
        if (each.whole + each.beside[:, None] > floors[:, None] + 1e-12).any()
        or (each.whole > limit * each.rounds[:, None]).any()
    ]
    if not full or not (wanted.imbalance > 0 or wanted.overload > 0):
        return idle
    price = np.minimum.reduceat(judge.shares, cuts[:-1], axis=0)
    gap_s = min(judge.gaps.transfer_s, judge.gaps.unload_s)
    price = (wanted.moved * price + wanted.gap * gap_s) / judge.hours * judge.scenario.rounds
    return max(idle, _solved(judge, full, floors, overloads, price))


class _Rows:
    """Rows of the LP, each Σ value · column ≤ right."""

    def __init__(self) -> None:
        self.right: list[float] = []
        self._parts: list[tuple[Floats, Ints, Ints]] = []

    def add(self, level: int, away: Ints, part: Floats, whole: float) -> None:
        """level ≥ whole - Σ part · away"""
        row = np.full(len(away) + 1, len(self.right), np.int64)
        self._parts.append((np.append(-part, -1.0), row, np.append(away, level)))
        self.right.append(-whole)

    def grows(self, away: int, leaves: int, stretches: int, size: int) -> None:
        """leaves ≥ away - away in the stretch before; columns from these on, `size` for each stretch"""
        begin, each = len(self.right), np.arange(stretches * size, dtype=np.int64)
        self._parts.append((np.ones(len(each)), begin + each, away + each))
        self._parts.append((-np.ones(len(each)), begin + each, leaves + each))
        later = each[size:]
        self._parts.append((-np.ones(len(later)), begin + later, away + later - size))
        self.right += [0.0] * len(each)

    def entries(self) -> tuple[Floats, tuple[Ints, Ints]]:
        """Values, and their rows and columns."""
        values, rows, columns = (np.concatenate(each) for each in zip(*self._parts, strict=True))
        return values, (rows, columns)


def _solved(judge: Judge, full: list[_Broker], floors: Floats, overloads: Floats, price: Floats) -> float:
    """Solve the LP.

    Columns: usage of the fullest broker in each stretch; the overload of each broker in `full` in each stretch; for
    each of its bundles and stretches whether the bundle is away, and whether it leaves then.
    """
    from scipy.optimize import linprog  # takes a moment to import
    from scipy.sparse import coo_matrix

    wanted, stretches = judge.objective, len(floors)
    bundles = np.concatenate([each.bundles for each in full])
    size, away = len(bundles), stretches * (1 + len(full))
    leaves = away + stretches * size
    cost = np.zeros(leaves + stretches * size)
    cost[:stretches], cost[stretches:away] = wanted.imbalance, wanted.overload
    cost[leaves:] = price[:, bundles].ravel()
    rows, first = _Rows(), 0
    for number, each in enumerate(full):
        over = stretches * (1 + number)
        for at in range(stretches):
            inside = away + at * size + first + np.arange(len(each.bundles))
            for resource in range(each.parts.shape[1]):
                part = each.parts[at, resource]
                whole = float(each.whole[at, resource])
                rows.add(at, inside, part, whole + float(each.beside[at]))
                rows.add(over + at, inside, part, whole - judge.ruler.overloaded * float(each.rounds[at]))
        first += len(each.bundles)
    rows.grows(away, leaves, stretches, size)
    lower = np.zeros(len(cost))
    lower[:stretches] = floors
    upper = np.ones(len(cost))
    upper[:away] = np.inf
    answer: Any = linprog(
        cost,
        A_ub=coo_matrix(rows.entries(), shape=(len(rows.right), len(cost))).tocsr(),
        b_ub=rows.right,
        bounds=np.stack([lower, upper], axis=1),
        method="highs",
    )
    return float(answer.fun) if answer.success else 0.0
