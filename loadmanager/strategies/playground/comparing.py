"""Plays many games, each strategy on the same scenarios, and summarises them over the seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from loadmanager.errors import Invalid
from loadmanager.settings import Settings
from loadmanager.strategies.placement.registry import PLACEMENTS
from loadmanager.strategies.playground.hindsight import hindsight_bound
from loadmanager.strategies.playground.level import Ruler
from loadmanager.strategies.playground.measures import Measures, measure
from loadmanager.strategies.playground.observing import Conditions
from loadmanager.strategies.playground.playing import Run, play
from loadmanager.strategies.playground.scenario import Size
from loadmanager.strategies.playground.workloads.registry import TRACE, WORKLOADS, make
from loadmanager.strategies.rebalancing.registry import STRATEGIES

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
    """Load moved / the least that anybody had to move, both summed over the seeds; NaN with several resources."""
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
    strategies: Sequence[str],
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
    check_names(strategies, STRATEGIES.names(), "strategy")
    check_names(workloads, [*WORKLOADS, TRACE], "workload")
    if TRACE in workloads and trace is None:
        raise Invalid("the workload trace needs a file: give it with --trace")
    for seed in seeds:
        for workload in workloads:
            scenario = make(workload, size, seed, trace)
            bound = hindsight_bound(scenario, Ruler.of(settings)) if hindsight else float("nan")
            for name in strategies:
                run = play(
                    scenario, name, settings, conditions=conditions, placement=placement_for(name, settings), seed=seed
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
