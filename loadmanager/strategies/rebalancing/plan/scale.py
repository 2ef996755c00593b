"""Defines full, fair and idle in a model, and what they cost: each broker's target and limits, and the objective. Pure.

Brokers that can take the same bundles form a pool (isolation policies cut the cluster into several); target and limits
are per pool. The target is the usage of every broker of the pool if load were a liquid. Load that can't flow (foreign
load, fixed bundles) stays where it is. A bundle too large for every allowed broker counts where it does least harm.
Brokers that are over the limit because of these are left out of the mean. A bundle's size is measured by the capacity
of the broker that would hold it. Nothing here depends on where the movable bundles are, so planning terminates.

The objective is the one number that the plan lowers: what the brokers' usages cost, plus what moving costs. With
x = usage above the limit, of a broker that takes part:

    over    target / 4 + 16 x + 16 x²     for being out of tolerance at all, for how much, and the fullest first
    idle    4 (idle - usage)              for each point below a quarter of the target
    empty   target                        for holding no bundle while there is something to hold
    uneven  4                             for each pool with a broker that is out of tolerance
    move    weight (size + target / 500)  a move costs its load, and a fixed part
    barred  1,000,000                     a bundle that a hard rule, or a drain, forbids to be where it is
    group   100                           a namespace that needlessly sits where another of its group does

Overshoot costs four times what undershoot does, as in Dicer. No move is made that doesn't lower the sum.
"""

from __future__ import annotations

import msgspec
import numpy as np

from loadmanager.model.cluster import ALLOWED, DIMENSIONS, FREE, NOWHERE, ClusterModel, Flags, Floats, Ints
from loadmanager.settings import Settings

TOLERATED = 0.01
"""Usage above the target that never justifies a move: a hundredth of a broker."""
IDLE_PART = 0.25
IDLE_BELOW = 0.04
"""A broker idles below a quarter of its target, and 4 points below it."""


class Scale(msgspec.Struct, frozen=True, eq=False):
    """The scale of n brokers and r resources that count: those with a weight and a declared capacity.

    Usages are weighted fractions. A broker that takes no part has the target 0 and no limit.
    """

    resources: tuple[int, ...]
    per_load: Floats
    """(r, n): usage per natural unit of load."""
    usage: Floats
    """(r, n)"""
    unit: Floats
    """(r,): as `per_load`, for the mean broker; sizes of bundles are in it."""
    takes_part: Flags
    pool: Ints
    """(n,), NOWHERE for a broker that takes no part."""
    target: Floats
    limit: Floats
    """(n,): the usage above which a broker is out of tolerance."""
    ceiling: Floats
    """(n,): the limit, or the usage that can't be taken from the broker if that is more."""
    kept: Floats
    """(r, n): the usage that can't be taken from the broker: of immovable bundles, and of unknown origin."""
    idle: Floats
    """(n,): the usage below which a broker idles; 0 if the load is too small to matter."""
    overloaded: float

    def lowered(self, margin: Floats) -> Scale:
        """The scale with limits that are lower by these usages, (n,)."""
        if not margin.any():
            return self
        limit = self.limit - margin
        ceiling = np.maximum(limit, np.maximum.reduce(self.kept, axis=0, initial=0.0))
        return msgspec.structs.replace(self, limit=limit, ceiling=ceiling)

    def sizes(self, load: Floats) -> Floats:
        """(m,): the sizes of bundles: the fraction of a mean broker in the resource that each needs most."""
        largest = np.zeros(len(load))
        for at, resource in enumerate(self.resources):
            np.maximum(largest, load[:, resource] * self.unit[at], out=largest)
        return largest


def scale_of(model: ClusterModel, settings: Settings, leaving: Flags, settled: Flags) -> Scale:
    """The scale of a model.

    `leaving` (m,): bundles that must go, so their load counts where it may go; `settled`: bundles that may move at all.
    """
    brokers = model.brokers
    weights = np.array(
        (settings.weight_cpu, settings.weight_memory, *2 * (settings.weight_bandwidth,), settings.weight_message_rate)
    )
    takes_part = brokers.takes_part
    declared = np.isfinite(brokers.capacity)
    resources = tuple(d for d in range(DIMENSIONS) if weights[d] > 0 and bool(declared[:, d].any()))
    columns = list(resources)
    per_load = np.ascontiguousarray((weights / brokers.capacity).T[columns])
    pool = _pools(model, takes_part)
    target = np.zeros(len(brokers))
    loads = _Loads(model, settings.tolerance, takes_part, leaving)
    for number in range(int(pool.max(initial=NOWHERE)) + 1):
        members = np.flatnonzero(pool == number)
        levels = [weights[d] * loads.level(d, members) for d in resources]
        target[members] = max(levels, default=0.0)
    limit = _limit(target, settings)
    limit[~takes_part] = np.inf
    idle = np.maximum(0.0, np.minimum(target * IDLE_PART, target - IDLE_BELOW))
    present = declared & (takes_part if takes_part.any() else np.ones(len(brokers), np.bool_))[:, None]
    finite = np.where(present, brokers.capacity, 0.0).sum(axis=0)
    mean = finite / np.maximum(1, present.sum(axis=0))
    unit = np.divide(weights, mean, out=np.zeros(DIMENSIONS), where=mean > 0)
    used = np.ascontiguousarray(brokers.used.T[columns])
    kept = np.maximum(0.0, used - _by_owner(model, columns, settled)) * per_load
    return Scale(
        resources=resources,
        per_load=per_load,
        usage=used * per_load,
        unit=unit[columns],
        takes_part=takes_part,
        pool=pool,
        target=target,
        limit=limit,
        ceiling=np.maximum(limit, np.maximum.reduce(kept, axis=0, initial=0.0)),
        kept=kept,
        idle=idle,
        overloaded=settings.overloaded_percent / 100,
    )


def _by_owner(model: ClusterModel, columns: list[int], chosen: Flags) -> Floats:
    """(r, n): the load of these bundles by owner, in natural units."""
    rows, n = np.flatnonzero(chosen), len(model.brokers)
    owner = model.bundles.owner[rows]
    sums = [np.bincount(owner, model.bundles.load[rows, each], minlength=n) for each in columns]
    return np.array(sums, np.float64).reshape(len(columns), n)


def _limit(target: Floats, settings: Settings) -> Floats:
    """The limits: the tolerance, or at high load the overload threshold, but at least half the tolerance."""
    tolerated = np.maximum(target * (1 + settings.tolerance), target + TOLERATED)
    strict = np.maximum(settings.overloaded_percent / 100, target * (1 + settings.tolerance / 2))
    return np.minimum(tolerated, strict)


def _pools(model: ClusterModel, takes_part: Flags) -> Ints:
    """Brokers to which one kind of movable bundles may go share a pool; overlapping pools are joined."""
    constraints = model.constraints
    used = np.bincount(constraints.kind[constraints.fixed == FREE], minlength=len(constraints.forbidden)) > 0
    allowed = (constraints.forbidden[used] == ALLOWED) & takes_part
    pool = np.where(takes_part, np.arange(len(takes_part)), NOWHERE)
    joined = True
    while joined:
        joined = False
        for row in np.unique(allowed, axis=0):
            mine = pool[row]
            if mine.size and mine.min() != mine.max():
                pool[np.isin(pool, mine)] = mine.min()
                joined = True
    numbers = {old: new for new, old in enumerate(np.unique(pool[takes_part]).tolist())}
    return np.array([numbers.get(old, NOWHERE) for old in pool.tolist()], np.int64)


class _Loads:
    """Load by broker and resource: all of it, and the part that can't go. Computed on demand."""

    def __init__(self, model: ClusterModel, tolerance: float, takes_part: Flags, leaving: Flags) -> None:
        self._brokers, self._bundles, self._constraints = model.brokers, model.bundles, model.constraints
        self._tolerance = tolerance
        self._leaving = np.flatnonzero(leaving)
        self._open = self._constraints.forbidden == ALLOWED
        self._places = np.maximum(1, (self._open & takes_part).sum(axis=1))
        self._used: dict[int, Floats] = {}
        self._free = (self._constraints.fixed == FREE) & (self._bundles.owner != NOWHERE)
        self._free &= (self._open & takes_part).any(axis=1)[self._constraints.kind]
        self._flow: dict[int, tuple[Floats, Floats]] = {}

    def level(self, resource: int, members: Ints) -> float:
        """The usage that all these brokers would have if all movable load flowed."""
        capacity = self._brokers.capacity[members, resource]
        declared = np.isfinite(capacity)
        if not declared.any():
            return 0.0
        members, capacity = members[declared], capacity[declared]
        used = self._used_of(resource)[members]
        total = float(used.sum())
        mean = total / float(capacity.sum())
        largest = (used / capacity).max()
        if largest <= mean * (1 + self._tolerance):
            return mean
        return _without_the_stuck(total, capacity, self._stuck(resource, members, capacity, mean), self._tolerance)

    def _used_of(self, resource: int) -> Floats:
        """(n,): the brokers' load once the bundles that must go are spread over where they may be."""
        if resource not in self._used:
            rows, n = self._leaving, len(self._brokers)
            load, kind = self._bundles.load[rows, resource], self._constraints.kind[rows]
            gone = np.bincount(self._bundles.owner[rows], load, minlength=n)
            coming = np.bincount(kind, load, minlength=len(self._open)) / self._places
            self._used[resource] = self._brokers.used[:, resource] - gone + coming @ self._open
        return self._used[resource]

    def _flow_of(self, resource: int) -> tuple[Floats, Floats]:
        """(m,): the load of each bundle that can flow, else 0; and (n,): its sum by owner."""
        if resource not in self._flow:
            owner = self._bundles.owner
            flow = np.where(self._free, self._bundles.load[:, resource], 0.0)
            by_owner = np.bincount(np.maximum(0, owner), flow, minlength=len(self._brokers)).astype(np.float64)
            self._flow[resource] = flow, by_owner
        return self._flow[resource]

    def _stuck(self, resource: int, members: Ints, capacity: Floats, mean: float) -> Floats:
        """The least usage of each broker: load that can't go from it, and giants.

        A giant is too large for every broker that may hold it. Each counts where it leaves the broker least full.
        """
        flow, by_owner = self._flow_of(resource)
        stuck = np.maximum(0.0, self._brokers.used[members, resource] - by_owner[members]) / capacity
        may_hold = self._open[:, members]
        room = np.where(may_hold, (mean * (1 + self._tolerance) - stuck) * capacity, 0.0).max(axis=1)
        room[~may_hold.any(axis=1)] = np.inf
        rows = np.flatnonzero(flow > np.maximum(0.0, room)[self._constraints.kind])
        rows = rows[self._belongs(rows, members)]
        for row in rows[np.argsort(-flow[rows], kind="stable")].tolist():
            full = np.where(may_hold[self._constraints.kind[row]], stuck + flow[row] / capacity, np.inf)
            at = int(full.argmin())
            stuck[at] = full[at]
        return stuck

    def _belongs(self, rows: Ints, members: Ints) -> Flags:
        """Whether bundles are at these brokers, or must go to them."""
        here = np.isin(self._bundles.owner[rows], members)
        if not self._leaving.size:
            return here
        may_come = self._open[self._constraints.kind[rows]][:, members].any(axis=1)
        return np.where(np.isin(rows, self._leaving), may_come, here)


def _without_the_stuck(total: float, capacity: Floats, stuck: Floats, tolerance: float) -> float:
    """The level without the brokers that must be over the limit."""
    inside = np.ones(len(capacity), np.bool_)
    level = total / float(capacity.sum())
    while True:
        over = inside & (stuck > level * (1 + tolerance))
        if not over.any() or bool((over == inside).all()):
            return level
        inside &= ~over
        level = max(0.0, total - float((stuck * capacity)[~inside].sum())) / float(capacity[inside].sum())


OVER, UNDER = 16.0, 4.0
OUT_OF_TOLERANCE = 0.25
UNEVEN = 4.0
FIXED_PART = 0.002
BARRED = 1_000_000.0
TOGETHER = 100.0
EPSILON = 1e-9
"""Usages that differ by less count as equal: they are sums of floating point numbers."""


class Costs:
    """Costs of brokers and moves under one scale; plain Python numbers, as it is called for one broker at a time."""

    def __init__(self, scale: Scale) -> None:
        self._takes_part = scale.takes_part.tolist()
        self._target = scale.target.tolist()
        self._limit = scale.limit.tolist()
        self._idle = scale.idle.tolist()

    def usage(self, broker: int, usage: float, bundles: int) -> float:
        """The cost of this usage of a broker's fullest resource; 0 for a broker that takes no part."""
        if not self._takes_part[broker]:
            return 0.0
        over = usage - self._limit[broker]
        if over > EPSILON:
            return OUT_OF_TOLERANCE * self._target[broker] + OVER * over + OVER * over * over
        idle = self._idle[broker]
        if usage >= idle:
            return 0.0
        empty = self._target[broker] if bundles <= 0 else 0.0
        return UNDER * (idle - usage) + empty

    def usages(self, broker: int, usage: Floats) -> Floats:
        """As `usage`, for many usages of a broker that holds bundles."""
        if not self._takes_part[broker]:
            return np.zeros_like(usage)
        over = np.maximum(0.0, usage - self._limit[broker])
        cost = np.where(over > EPSILON, OUT_OF_TOLERANCE * self._target[broker] + OVER * over * (1 + over), 0.0)
        return cost + UNDER * np.maximum(0.0, self._idle[broker] - usage)

    def move(self, size: float, weight: float, target: float) -> float:
        """The cost of moving a bundle to or from a broker with this target."""
        return weight * (size + FIXED_PART * target)
