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

import msgspec
import numpy as np

from loadmanager.history.replay.recording import Recorded, Step
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
