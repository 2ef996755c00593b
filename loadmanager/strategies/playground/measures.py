"""Figures of a run that don't depend on how its strategy works."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np

from loadmanager.model.cluster import Flags
from loadmanager.strategies.playground.playing import Run

TRANSFER_GAP_S = 0.027
"""The time that a bundle is not served in a transfer: p99 under load, docs/benchmarks.md."""
UNLOAD_GAP_S = 1.0
"""The same for an unload without destination: clients come back and ask. A round figure, not measured."""
LAST_ROUNDS = 10


class Measures(msgspec.Struct, frozen=True):
    """The figures of one run. Usages are fractions, loads shares of the mean broker's capacity, times simulated."""

    workload: str
    strategy: str
    seed: int
    max_over_mean: float
    """The fullest broker's usage over the mean, averaged over the rounds."""
    max_over_mean_worst: float
    std: float
    """The mean over the rounds of the standard deviation of usages."""
    moved: float
    """Load that was moved on purpose: by transfers, unloads, and brokers that stopped."""
    moved_percent: float
    """The same as a percentage of all load (its mean over the game)."""
    bound: float
    """The load that had to move for the same outcome, summed over the rounds: see `load_that_had_to_move`."""
    moves: int
    returns: int
    """Moves back within the rest time of a bundle whose load had not changed."""
    rounds_to_balance: float
    """The mean number of consecutive rounds in which the cluster was beyond tolerance; 0 if it never was."""
    rounds_to_balance_worst: int
    above_tolerance_percent: float
    """The rounds in which some broker is beyond tolerance after the moves."""
    overloaded_broker_s: float
    """The time that brokers are overloaded, summed over brokers."""
    gap_s: float
    """The time that bundles are not served, summed over bundles."""
    ends_within: bool
    """Whether no broker is beyond tolerance in most of the last rounds."""
    one_dimension: bool
    certificate_ratio: float
    """The strategy's own claim: load of its whole plans / their proven bounds, both summed; NaN if it makes none."""
    hindsight: float = float("nan")
    """The least load that anybody had to move in the whole game to stay within tolerance; NaN if not computed."""

    @property
    def ratio(self) -> float:
        """moved / bound; 1 if both are 0, infinite if only the bound is."""
        if self.bound <= 1e-12:
            return 1.0 if self.moved <= 1e-12 else float("inf")
        return self.moved / self.bound


def measure(run: Run, seed: int, hindsight: float = float("nan")) -> Measures:
    """The figures of a run."""
    usage = np.where(run.taking_part, run.usage, np.nan)
    mean = np.nanmean(usage, axis=1)
    over = np.divide(np.nanmax(usage, axis=1), mean, out=np.ones_like(mean), where=mean > 0)
    above = np.atleast_1d(run.above.any(axis=1))
    episodes = lengths(above)
    planned = [each for each in run.moved if each.how != "death"]
    moved = sum(each.share for each in planned)
    overloaded = (run.usage > run.ruler.overloaded).sum() * run.scenario.interval_s
    return Measures(
        workload=run.scenario.name,
        strategy=run.strategy,
        seed=seed,
        max_over_mean=float(over.mean()),
        max_over_mean_worst=float(over.max()),
        std=float(np.nanstd(usage, axis=1).mean()),
        moved=moved,
        moved_percent=100 * moved / float(run.load.mean()),
        bound=float(run.had_to_move.sum()),
        moves=len(planned),
        returns=sum(each.returned for each in planned),
        rounds_to_balance=float(np.mean(episodes)) if episodes else 0.0,
        rounds_to_balance_worst=max(episodes, default=0),
        above_tolerance_percent=100 * float(above.mean()),
        overloaded_broker_s=float(overloaded),
        gap_s=sum(UNLOAD_GAP_S if each.how == "unload" else TRANSFER_GAP_S for each in planned),
        ends_within=bool(above[-LAST_ROUNDS:].mean() < 0.5),
        one_dimension=run.scenario.one_dimension,
        certificate_ratio=_certificate_ratio(run),
        hindsight=hindsight,
    )


def lengths(flags: Flags) -> list[int]:
    """The lengths of the runs of True."""
    return [len(list(group)) for up, group in itertools.groupby(flags.tolist()) if up]


def _certificate_ratio(run: Run) -> float:
    given = run.certified[~np.isnan(run.certified).any(axis=1)]
    if not len(given):
        return float("nan")
    bound, moved = given.sum(axis=0)
    if bound <= 1e-12:
        return 1.0 if moved <= 1e-12 else float("inf")
    return float(moved / bound)
