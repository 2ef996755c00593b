"""A plan in the making: the model with the moves so far, the rules that depend on them, and the remaining budget.

The only mutable part of the strategy. Every move of every stage is made by `make`, which refuses none: the stages call
`destination` and `gain` first. Brokers and bundles are rows of the model.
"""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np

from loadmanager.model.cluster import ALLOWED, FREE, NOWHERE, UNLIMITED, ClusterModel, Flags, Floats, Ints
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Stage
from loadmanager.strategies.rebalancing.plan.eligibility import Affinity, Eligibility, eligibility_of
from loadmanager.strategies.rebalancing.plan.foresight import Outlook, outlook_of
from loadmanager.strategies.rebalancing.plan.scale import BARRED, EPSILON, UNEVEN, Costs, Scale, scale_of


class Step(msgspec.Struct, frozen=True):
    """A move. Usages are before and after it, with the moves ahead of it made: (source, destination)."""

    row: int
    source: int
    destination: int
    stage: Stage
    gain: float
    load: float
    """The load moved, as a fraction of the destination's capacity."""
    before: tuple[float, float]
    after: tuple[float, float]
    group: int


class Holdings:
    """Rows of the chosen bundles by their broker in the model, ascending, without a scan of all bundles for each."""

    def __init__(self, owner: Ints, chosen: Flags, brokers: int) -> None:
        rows = np.flatnonzero(chosen)
        # numpy sorts 16-bit keys by radix sort: linear
        small = owner[rows].astype(np.uint16 if brokers < 2**16 else np.int64)
        self._rows = rows[np.argsort(small, kind="stable")]
        self._ends = np.cumsum(np.bincount(owner[rows], minlength=brokers))

    def of(self, broker: int) -> Ints:
        """Rows of the bundles of one broker."""
        return self._rows[(self._ends[broker - 1] if broker else 0) : self._ends[broker]]


FULL = 1.0
"""Balance never fills a broker beyond its capacity."""


BUDGETED = frozenset((Stage.BALANCE, Stage.SWAP, Stage.EXACT))
"""Stages whose moves use the round's budget of load; emergencies don't wait."""

PATIENCE = 3.0


class Draft:
    """The draft; `usage` is (r, n), `peak` (n,) its maximum; both with the moves so far."""

    def __init__(self, model: ClusterModel, settings: Settings, memory: object = None) -> None:
        self.model = model
        self.settings = settings
        self._memory = memory
        self.eligibility: Eligibility = eligibility_of(model)
        leaving = self.eligibility.misplaced | self.eligibility.drained
        scale = scale_of(model, settings, leaving, self.eligibility.settled)
        self.outlook: Outlook = outlook_of(model, settings, scale, memory)
        self.scale: Scale = scale.lowered(self.outlook.margin)
        self.costs = Costs(self.scale)
        self.usage = self.scale.usage.copy()
        self.peak: Floats = np.maximum.reduce(self.usage, axis=0, initial=0.0)
        self.bundles = model.brokers.bundles.copy()
        self.size: Floats = self.scale.sizes(model.bundles.load)
        self.steps: list[Step] = []
        self.taken: Flags = np.zeros(len(model.bundles), np.bool_)
        self.affinity = Affinity(model)
        self._load = model.bundles.load[:, list(self.scale.resources)]
        self._no_room = np.where(self.bundles < model.brokers.max_bundles, 0.0, np.inf)
        self._barrier: dict[int, Floats] = {}
        self._groups = 0
        budget = settings.balancing_budget * float(self.scale.target[self.scale.takes_part].sum())
        self.moves_left: int = settings.balancing_moves_per_round
        """How many more moves this round may have."""
        self.load_left = budget
        """How much more load this round may move for balance, in mean brokers."""
        self._spent = self._refused = self._lifted = False

    @cached_property
    def free_holdings(self) -> Holdings:
        """The bundles that may move for balance."""
        return Holdings(self.model.bundles.owner, self.eligibility.free, len(self.peak))

    @cached_property
    def all_holdings(self) -> Holdings:
        """Every bundle that has an owner."""
        return Holdings(self.model.bundles.owner, self.model.bundles.owner != NOWHERE, len(self.peak))

    @cached_property
    def settled_holdings(self) -> Holdings:
        """The bundles that may ever be moved, rested or not."""
        return Holdings(self.model.bundles.owner, self.eligibility.settled, len(self.peak))

    def held_after(self, broker: int) -> Ints:
        """The bundles that the broker holds after the moves, of those that may ever be moved."""
        come = [step.row for step in self.steps if step.destination == broker]
        return np.concatenate((self.untaken(self.settled_holdings.of(broker)), np.array(come, np.int64)))

    @property
    def cut_short(self) -> bool:
        """Whether the round's allowance prevented a move."""
        return self._refused or self.moves_left == 0

    def affords(self, size: float, moves: int = 1) -> bool:
        """Returns True if the round's budget allows it.

        A first move always fits, or a large bundle could never move.
        """
        fits = self.moves_left >= moves and (size <= self.load_left or not self._spent)
        self._refused |= not fits
        return fits

    def load_of(self, row: int) -> Floats:
        """(r,), in natural units."""
        return self._load[row]

    def loads_of(self, rows: Ints) -> Floats:
        """(r, k), in natural units."""
        return self._load[rows].T

    def over(self, broker: int) -> float:
        """By how much the broker is above its limit; 0 if it isn't."""
        excess = float(self.peak[broker] - self.scale.limit[broker])
        return excess if excess > EPSILON else 0.0

    def hot(self) -> list[int]:
        """The brokers out of tolerance, the fullest first."""
        excess = self.peak - self.scale.limit
        rows = np.flatnonzero(excess > EPSILON)
        return rows[np.argsort(-excess[rows], kind="stable")].tolist()

    def above(self) -> Ints:
        """The brokers above their ceiling: some of their load could be taken away."""
        return np.flatnonzero(self.scale.takes_part & (self.peak - self.scale.ceiling > EPSILON))

    def idle(self) -> list[int]:
        """The idle brokers, the emptiest first."""
        lacking = self.scale.idle - self.peak
        rows = np.flatnonzero(self.scale.takes_part & (lacking > EPSILON))
        return rows[np.argsort(-lacking[rows], kind="stable")].tolist()

    def open_to(self, row: int, source: int, *, returning: bool = False) -> Floats:
        """(n,): 0 where the hard rules allow the bundle, else infinite."""
        barrier = self.rules_for(row, source, returning=returning)
        barrier += self._no_room
        return barrier

    def rules_for(self, row: int, source: int, *, returning: bool = False) -> Floats:
        """(n,): as `open_to`, but as if every broker had room for one more bundle."""
        barrier = self._barrier_of(int(self.model.constraints.kind[row])).copy()
        barrier[source] = np.inf
        if not returning:
            for broker in self.eligibility.barred(row):
                barrier[broker] = np.inf
        if self.model.constraints.group[row] != FREE:
            barrier[self.affinity.refused(row, source)] = np.inf
        return barrier

    def forbids(self, row: int, source: int, destination: int, *, freed: int = 0) -> bool:
        """Whether a hard rule forbids the destination, from which `freed` bundles are about to leave."""
        if self.bundles[destination] - freed >= self.model.brokers.max_bundles[destination]:
            return True
        return bool(self.rules_for(row, source, returning=False)[destination] > 0)

    def peaks_with(self, row: int) -> Floats:
        """(n,): each broker's fullest resource if it also had the bundle."""
        after = self.scale.per_load * self.load_of(row)[:, None]
        after += self.usage
        return np.maximum.reduce(after, axis=0, initial=0.0)

    def destination(self, row: int, source: int, *, returning: bool = False) -> tuple[int, float]:
        """The allowed broker that is least full with the bundle, and how full; NOWHERE if there is none."""
        after = self.peaks_with(row)
        after += self.open_to(row, source, returning=returning)
        best = int(after.argmin()) if after.size else NOWHERE
        return (best, float(after[best])) if best != NOWHERE and np.isfinite(after[best]) else (NOWHERE, np.inf)

    def coldest(self, source: int, count: int) -> list[int]:
        """The least full other brokers in the broker's pool."""
        mine = np.flatnonzero((self.scale.pool == self.scale.pool[source]) & self.scale.takes_part)
        mine = mine[mine != source]
        return mine[np.argsort(self.peak[mine], kind="stable")[:count]].tolist()

    def untaken(self, rows: Ints) -> Ints:
        """The bundles of these that this plan has not moved yet."""
        return rows[~self.taken[rows]]

    def peak_without(self, broker: int, row: int) -> float:
        """The broker's fullest resource without the bundle."""
        return _fullest(self.usage[:, broker] - self.load_of(row) * self.scale.per_load[:, broker])

    def gain(self, row: int, source: int, destination: int, after: float | None = None) -> float:
        """By how much the objective falls if the bundle goes; `after`: how full the destination will be, if known."""
        if after is None:
            load = self.load_of(row) * self.scale.per_load[:, destination]
            after = _fullest(self.usage[:, destination] + load)
        s, d = int(self.bundles[source]), int(self.bundles[destination])
        usage = self.costs.usage
        fall = usage(source, float(self.peak[source]), s) - usage(source, self.peak_without(source, row), s - 1)
        fall += usage(destination, float(self.peak[destination]), d) - usage(destination, after, d + 1)
        if self.eligibility.misplaced[row] or self.eligibility.drained[row]:
            fall += BARRED
        return fall - self.cost_of(row, destination)

    def cost_of(self, row: int, destination: int) -> float:
        """What moving the bundle costs."""
        weight = float(self.model.constraints.weight[row])
        return self.costs.move(float(self.size[row]), weight, float(self.scale.target[destination]))

    def costs_of(self, rows: Ints, brokers: Ints) -> Floats:
        """(k, b): as `cost_of`, for many bundles and brokers."""
        fixed = self.costs.move(0.0, 1.0, 1.0) * self.scale.target[brokers]
        return self.model.constraints.weight[rows][:, None] * (self.size[rows][:, None] + fixed)

    def worth(self, broker: int, size: float, relief: float) -> bool:
        """Whether moving `size` is justified if it reduces the excess by `relief`, for this broker.

        While some of its bundles only rest, waiting for them is cheaper than moving many times the excess.
        """
        if size <= PATIENCE * relief or self.peak[broker] > self.scale.overloaded:
            return True
        return bool(self.eligibility.rested[self.settled_holdings.of(broker)].all())

    def relief(self, row: int, source: int, destination: int) -> float:
        """By how much the brokers' excess falls, in sum, if the bundle goes."""
        limit = self.scale.limit
        after = float(self.peaks_with(row)[destination])
        fall = self.over(source) - max(0.0, self.peak_without(source, row) - float(limit[source]))
        return fall - max(0.0, after - float(limit[destination])) + self.over(destination)

    @property
    def total(self) -> float:
        """The objective with the moves so far, without groups."""
        peak, held = self.peak.tolist(), self.bundles.tolist()
        usage = sum(self.costs.usage(broker, peak[broker], held[broker]) for broker in range(len(peak)))
        left = (self.eligibility.misplaced | self.eligibility.drained) & ~self.taken
        moves = sum(self.cost_of(step.row, step.destination) for step in self.steps)
        return usage + moves + BARRED * int(np.count_nonzero(left)) + UNEVEN * len(self.uneven)

    @property
    def uneven(self) -> set[int]:
        """The pools with a broker above its ceiling."""
        return set(self.scale.pool[self.above()].tolist())

    def emptied(self) -> Draft:
        """An empty draft of the same model, under the same limits."""
        other = Draft(self.model, self.settings, self._memory)
        if self._lifted:
            other.lift()
        other._refused = self._refused
        return other

    def lift(self) -> None:
        """Lift the limits of the round."""
        self.moves_left, self.load_left = UNLIMITED, np.inf
        self._spent = self._refused = False
        self._lifted = True

    def group(self) -> int:
        """A number for moves that only make sense together."""
        self._groups += 1
        return self._groups

    def make(self, row: int, source: int, destination: int, stage: Stage, *, gain: float, group: int = 0) -> None:
        """Move the bundle."""
        before = float(self.peak[source]), float(self.peak[destination])
        load = self.load_of(row)
        part = load * self.scale.per_load[:, destination]
        self._book(source, -(load * self.scale.per_load[:, source]), -1)
        self._book(destination, part, 1)
        self.affinity.move(row, source, destination)
        self.taken[row] = True
        spent = float(self.size[row]) if stage in BUDGETED else 0.0
        self.load_left -= spent
        self._spent |= spent > 0
        self.moves_left -= 1
        after = float(self.peak[source]), float(self.peak[destination])
        self.steps.append(Step(row, source, destination, stage, gain, _fullest(part), before, after, group))

    def _book(self, broker: int, change: Floats, bundles: int) -> None:
        usage = self.usage[:, broker]
        np.maximum(0.0, usage + change, out=usage)
        self.peak[broker] = _fullest(usage)
        self.bundles[broker] += bundles
        self._no_room[broker] = 0.0 if self.bundles[broker] < self.model.brokers.max_bundles[broker] else np.inf

    def _barrier_of(self, kind: int) -> Floats:
        barrier = self._barrier.get(kind)
        if barrier is None:
            allowed = self.scale.takes_part & (self.model.constraints.forbidden[kind] == ALLOWED)
            barrier = self._barrier[kind] = np.where(allowed, 0.0, np.inf)
        return barrier


def _fullest(usage: Floats) -> float:
    """The largest of a broker's few usages, or 0; numpy would take several times as long for so few."""
    return max([0.0, *usage.tolist()])
