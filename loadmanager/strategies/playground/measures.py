"""Figures of a run that do not depend on how its strategy works, and their comparison over seeds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from loadmanager.errors import Invalid
from loadmanager.model.cluster import Flags
from loadmanager.settings import Settings
from loadmanager.strategies.playground.bounds import Ruler, hindsight_bound
from loadmanager.strategies.playground.cluster import Conditions
from loadmanager.strategies.playground.game import Run, play
from loadmanager.strategies.playground.scenario import Size
from loadmanager.strategies.playground.workloads import TRACE, WORKLOADS, make
from loadmanager.strategies.rebalancing.strategy import Strategy
from loadmanager.strategies.registry import PLACEMENTS, STRATEGIES

TRANSFER_GAP_S = 0.027
"""The time that a bundle is not served in a transfer: p99 under load, docs/benchmarks.md."""
UNLOAD_GAP_S = 1.0
"""The same for an unload without destination: clients look the bundle up again. A round figure, not measured."""
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
    """The least load that any strategy had to move in the whole game to stay within tolerance; NaN if not computed."""

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


PULSAR = frozenset({"transfer", "threshold", "uniform", "overload", "avg"})
PULSARS_PLACEMENT = "least-resource-usage"
"""The placement for unloads of Pulsar's strategies, as in Pulsar."""


class Game(msgspec.Struct, frozen=True, eq=False):
    """A run and its figures."""

    measures: Measures
    run: Run


class Summary(msgspec.Struct, frozen=True):
    """One strategy on one workload over seeds; percentiles over seeds, nearest rank."""

    workload: str
    strategy: str
    seeds: int
    max_over_mean: float
    max_over_mean_p99: float
    max_over_mean_worst: float
    std: float
    moved_percent: float
    moved_percent_p99: float
    moved_percent_worst: float
    certificate_ratio: float
    """The mean of `Measures.certificate_ratio`."""
    certificate_ratio_worst: float
    over_hindsight: float
    """Load moved / the least that any strategy had to move, both summed over the seeds; NaN with several resources."""
    moves: float
    returns: int
    rounds_to_balance: float
    rounds_to_balance_worst: int
    above_tolerance_percent: float
    above_tolerance_percent_worst: float
    overloaded_broker_s: float
    gap_s: float
    ends_within: int
    """The number of seeds with this result."""


def placement_for(strategy: str, settings: Settings) -> str:
    """The name of the placement that belongs to a strategy."""
    return PULSARS_PLACEMENT if strategy in PULSAR and PULSARS_PLACEMENT in PLACEMENTS.names() else settings.placement


def games(
    strategies: Sequence[str | Strategy],
    workloads: Sequence[str],
    seeds: Iterable[int],
    size: Size,
    settings: Settings,
    *,
    trace: Path | None = None,
    conditions: Conditions | None = None,
    hindsight: bool = True,
) -> Iterator[Game]:
    """Play each strategy on each workload and seed. Raises Invalid for unknown names, before the first game."""
    check_names([each for each in strategies if isinstance(each, str)], STRATEGIES.names(), "strategy")
    check_names(workloads, [*WORKLOADS, TRACE], "workload")
    if TRACE in workloads and trace is None:
        raise Invalid("the workload trace needs a file: give it with --trace")
    for seed in seeds:
        for workload in workloads:
            scenario = make(workload, size, seed, trace)
            bound = hindsight_bound(scenario, Ruler.of(settings)) if hindsight else float("nan")
            for strategy in strategies:
                name = strategy if isinstance(strategy, str) else strategy.name
                run = play(
                    scenario,
                    strategy,
                    settings,
                    conditions=conditions,
                    placement=placement_for(name, settings),
                    seed=seed,
                )
                yield Game(measure(run, seed, bound), run)


def check_names(given: Sequence[str], known: Sequence[str], what: str) -> None:
    """Raises Invalid with the known names if one is unknown, or none is given."""
    unknown = [name for name in given if name not in known]
    if unknown or not given:
        told = f"no {what} is called {', '.join(map(repr, unknown))}" if unknown else f"give at least one {what}"
        raise Invalid(f"{told}; there are: {', '.join(known)}")


def summaries(measures: Iterable[Measures]) -> list[Summary]:
    """One row for each workload and strategy, in the order of their first game."""
    grouped: dict[tuple[str, str], list[Measures]] = {}
    for each in measures:
        grouped.setdefault((each.workload, each.strategy), []).append(each)
    return [_summary(group) for group in grouped.values()]


def _summary(group: list[Measures]) -> Summary:
    def mean(name: str) -> float:
        return float(np.mean([getattr(each, name) for each in group]))

    def p99(name: str) -> float:
        return float(np.percentile([getattr(each, name) for each in group], 99, method="inverted_cdf"))

    def worst(name: str) -> float:
        return float(max(getattr(each, name) for each in group))

    moved = sum(each.moved for each in group)
    least = sum(each.hindsight for each in group)
    return Summary(
        workload=group[0].workload,
        strategy=group[0].strategy,
        seeds=len(group),
        max_over_mean=mean("max_over_mean"),
        max_over_mean_p99=p99("max_over_mean_worst"),
        max_over_mean_worst=worst("max_over_mean_worst"),
        std=mean("std"),
        moved_percent=mean("moved_percent"),
        moved_percent_p99=p99("moved_percent"),
        moved_percent_worst=worst("moved_percent"),
        certificate_ratio=mean("certificate_ratio"),
        certificate_ratio_worst=worst("certificate_ratio"),
        over_hindsight=over(moved, least),
        moves=mean("moves"),
        returns=sum(each.returns for each in group),
        rounds_to_balance=mean("rounds_to_balance"),
        rounds_to_balance_worst=int(worst("rounds_to_balance_worst")),
        above_tolerance_percent=mean("above_tolerance_percent"),
        above_tolerance_percent_worst=worst("above_tolerance_percent"),
        overloaded_broker_s=mean("overloaded_broker_s"),
        gap_s=mean("gap_s"),
        ends_within=sum(each.ends_within for each in group),
    )


def over(moved: float, bound: float) -> float:
    """moved / bound; 1 if both are 0, infinite if only the bound is; NaN without a bound."""
    if np.isnan(bound) or bound > 1e-12:
        return moved / bound
    return float("inf") if moved > 1e-12 else 1.0
